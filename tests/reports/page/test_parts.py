"""Parts of the page: the numbers in pictures are those of the frames."""

import dataclasses
import math

import numpy as np
import pandas as pd
import pytest

from attn_tune.ops.registry import get_op
from attn_tune.reports.page import draw
from attn_tune.reports.page.parts import (
    coverage,
    evidence,
    failures,
    knobs,
    landscape,
    noise,
    roofline,
    speedups,
    traces,
)
from attn_tune.reports.page.searches import searches
from attn_tune.schema import Status
from attn_tune.schema.words import duration
from tests.db.facts import DEVICE
from tests.reports.page import labs


@pytest.fixture(scope="module")
def main(data):
    """The search of the main problem."""
    return next(s for s in searches(data.trials) if s.signature == labs.MAIN.text)


def item(data, root, signature, name="row"):
    """The one element with a class that the filter finds for a problem."""
    place = str(data.marks(signature=signature.text)["data_p"])
    (found,) = [e for e in labs.classes(root, name) if e.get("data-p") == place]
    return found


def race(data, signature):
    (found,) = data.races.loc[data.races["signature"] == signature.text].itertuples()
    return found


# --- Coverage ---


@pytest.mark.parametrize(
    ("signature", "state"),
    [
        (labs.MAIN, "measured"),
        (labs.TIED, "measured"),
        (labs.NEAR, "neighbour"),
        (labs.BROKEN, "refused"),
        (labs.FOREIGN, "undecided"),
    ],
)
def test_a_cell_has_the_state_of_its_problem(data, signature, state):
    cells = data.cells
    (found,) = cells.loc[
        (cells["signature"] == signature.text) & (cells["direction"] == "fwd") & (cells["device"] == "nvidia-h200"),
        "state",
    ]
    assert found == state


def test_the_matrix_shows_every_state_and_its_reason(data):
    root = labs.tree(coverage.part(data))
    place = str(data.marks(signature=labs.MAIN.text)["data_p"])
    (row,) = [e for e in root.iter("tr") if e.get("data-p") == place]
    (gain,) = data.winners.loc[data.winners["signature"] == labs.MAIN.text, "speedup"]
    assert f"{gain:.2f}×" in labs.words(row)
    (refused,) = [e for e in root.iter("td") if "head dim 96" in e.get("title", "")]
    assert refused.get("class") == "c c-refused"
    assert [e for e in root.iter("li") if "head dim 96 is too odd" in labs.words(e)]
    predicted = [e for e in root.iter("td") if e.get("class") == "c c-predicted"]
    assert len(predicted) == 1
    assert predicted[0].get("data-d") == str(data.devices.index("tpu-v6e"))


def test_a_point_that_was_asked_for_is_untuned_where_nothing_is_near(lab):
    from tests.db.facts import make_signature

    far = make_signature(q_len=65536, kv_len=65536, head_dim=256, v_head_dim=256)
    data = labs.data_of(lab, wanted={s.text: "x" for s in (labs.MAIN, far)})
    states = set(data.cells.loc[data.cells["signature"] == far.text, "state"])
    assert states == {"untuned"}


# --- Speedups ---


def test_a_bar_ends_at_the_speedup_and_its_whisker_at_the_interval(data):
    table = speedups._with_races(data)
    scale = speedups._scale(table)
    found = race(data, labs.MAIN)
    assert found.speedup == pytest.approx(2.0, rel=0.01)
    row = item(data, labs.tree(speedups.part(data)), labs.MAIN)
    (bar,) = labs.classes(row, "bar")
    assert labs.share(bar.get("x")) == pytest.approx(scale.at(1.0), abs=1e-4)
    assert labs.share(bar.get("width")) == pytest.approx(scale.at(found.speedup) - scale.at(1.0), abs=1e-4)
    whisker = labs.classes(row, "whisker")[0]
    assert labs.share(whisker.get("x1")) == pytest.approx(scale.at(found.low), abs=1e-4)
    assert labs.share(whisker.get("x2")) == pytest.approx(scale.at(found.high), abs=1e-4)
    assert f"{found.speedup:.2f}×" in labs.words(row)
    assert f"[{found.low:.2f}, {found.high:.2f}]" in labs.words(row)


def test_a_tie_is_marked_as_one_and_has_no_bar(data):
    row = item(data, labs.tree(speedups.part(data)), labs.TIED)
    assert "tie" in row.get("class").split()
    assert not labs.classes(row, "bar")
    assert "tie" in labs.words(row)
    (mark,) = [e for e in row.iter("path") if e.get("class") == "tie"]
    assert mark is not None


def test_the_only_right_config_is_no_win(data):
    winners = data.winners.assign(rule="only", speedup=1.0)
    root = labs.tree(speedups.part(dataclasses.replace(data, winners=winners, races=data.races.iloc[:0])))
    (rows,) = labs.classes(root, "rows")
    assert not labs.classes(rows, "win")
    assert "the one config that was right" in labs.words(rows)


def test_wins_come_before_ties_and_the_largest_first(data):
    table = speedups._with_races(data)
    assert list(table["place"]) == sorted(table["place"])
    wins = table.loc[table["place"] == 0, "speedup"]
    assert list(wins) == sorted(wins, reverse=True)


# --- Landscapes ---


def test_a_cell_is_the_best_time_over_the_other_knobs(data, main):
    trials = labs.searched(data)
    x, y = main.knobs.index("block_q"), main.knobs.index("block_k")
    picture = labs.tree([landscape._map(main, x, y)])
    titles = {e.text.split(":")[0]: e.text for e in picture.iter("title")}
    pivot = trials.pivot_table("median_us", "cfg_block_q", "cfg_block_k", aggfunc="min")
    failed = trials.assign(bad=trials["status"] != "ok").pivot_table("bad", "cfg_block_q", "cfg_block_k", aggfunc="sum")
    seen = 0
    for q in (64, 128):
        for k in (32, 64):
            text = titles[f"block_q={q} block_k={k}"]
            if (q, k) == (64, 64):
                assert "4 configs, all failed, most: out of resources" in text
                continue
            best = pivot.loc[q, k]
            assert duration(best * 1000) in text
            assert f"{best / pivot.min().min():.3f} of the best" in text
            assert f"4 configs, {int(failed.loc[q, k])} failed" in text
            seen += 1
    assert seen == 3


def test_the_words_and_shades_of_cells_are_those_of_their_times(data, main):
    x, y = main.knobs.index("block_q"), main.knobs.index("block_k")
    picture = labs.tree([landscape._map(main, x, y)])
    shown = {labs.words(e) for e in labs.classes(picture, "v")}
    pivot = labs.searched(data).pivot_table("median_us", "cfg_block_q", "cfg_block_k", aggfunc="min")
    times = [value for row in pivot.to_numpy() for value in row if not math.isnan(value)]
    assert shown == {landscape.digits(value) for value in times} | {"memory"}
    shades = sorted(landscape.bin_of(value / min(times)) for value in times)
    assert (
        sorted(
            int(e.get("class")[1:]) for e in picture.iter("rect") if e.get("class", "") in {f"h{i}" for i in range(8)}
        )
        == shades
    )
    (best,) = labs.classes(picture, "best")
    columns = main.values[x]
    assert labs.share(best.get("x")) == pytest.approx(columns.index(128) / len(columns))
    (hatched,) = labs.classes(picture, "h-fail")
    assert hatched.get("fill") == "url(#f-out-of-resources)"


def test_the_embedded_data_holds_every_config(data, main):
    compact = landscape._compact(data, main)
    numbers, times = compact["r"][::2], compact["r"][1::2]
    assert len(set(numbers)) == len(main.configs) == len(labs.CONFIGS)
    for number, time, config, expected in zip(numbers, times, main.configs, main.times, strict=True):
        places = []
        for values in reversed(main.values):
            places.append(number % len(values))
            number //= len(values)
        assert tuple(v[p] for v, p in zip(main.values, reversed(places), strict=True)) == config
        assert time == round(1000 * expected / main.best) if math.isfinite(expected) else time < 0


# --- Roofline ---


def test_the_share_is_that_of_the_limit_that_binds(data):
    op, problem = get_op("flash_attention"), get_op("flash_attention").from_signature(labs.MAIN)
    (row,) = roofline.rates(data.winners).loc[lambda f: f["signature"] == labs.MAIN.text].itertuples()
    seconds = row.median_ns / 1e9
    matmul = op.flops(problem, "fwd") / seconds / 790e12
    copy = op.bytes_moved(problem, "fwd") / seconds / 4.3e12
    assert row.share == pytest.approx(max(matmul, copy))
    assert row.bound == ("compute" if matmul >= copy else "memory")
    drawn = item(data, labs.tree(roofline.part(data)), labs.MAIN)
    scale = roofline._scale(roofline.rates(data.winners).loc[lambda f: f["bound"] == row.bound])
    assert labs.share(labs.classes(drawn, "bar")[0].get("width")) == pytest.approx(scale.at(row.share), abs=1e-4)
    assert f"{100 * row.share:.0f} %" in labs.words(drawn)
    assert "measured" in labs.words(drawn)


def test_an_op_that_is_not_installed_is_not_in_the_roofline(data):
    assert set(roofline.rates(data.winners)["op"]) == {"flash_attention"}


@pytest.mark.parametrize(
    ("tflops", "text"),
    [(658.0, "658 TFLOP/s"), (6.47e-3, "6.47 GFLOP/s"), (3.2e-8, "0.032 MFLOP/s"), (99.6, "100 TFLOP/s")],
)
def test_units_of_rates_scale(tflops, text):
    assert roofline._rate(tflops, "TFLOP/s") == text


def test_where_limits_are_not_known_operations_and_bytes_have_bars_of_their_own(data):
    free = data.winners.assign(matmul_tflops=0.0, copy_tb_s=0.0)
    copies = free.dropna(subset=["bytes"]).assign(flops=0, signature="other/v1 b=1", point="other")
    found = roofline.rates(pd.concat([free, copies], ignore_index=True))
    kept = found.loc[found["signature"] == labs.MAIN.text].iloc[0]
    assert kept["bound"] == "unknown"
    assert kept["share"] == pytest.approx(kept["tflops"])
    other = found.loc[found["point"] == "other"]
    assert set(other["bound"]) == {"bytes"}
    assert other["share"].tolist() == pytest.approx(other["tb_s"].tolist())


def test_labels_of_an_axis_never_touch():
    wide = draw.spaced([(0.0, "100 MFLOP/s"), (0.1, "300 MFLOP/s"), (0.5, "1 GFLOP/s"), (1.0, "3 GFLOP/s")], 10)
    assert [labs.words(labs.tree([one])) for one in wide] == ["100 MFLOP/s", "1 GFLOP/s", "3 GFLOP/s"]


# --- Traces ---


def test_a_trace_is_the_best_so_far_in_the_order_tried(data, main):
    trials = labs.searched(data).sort_values("trial")
    times = trials["median_us"].fillna(math.inf).to_numpy(float)
    assert traces.trace(main).found == pytest.approx(np.minimum.accumulate(times) / np.nanmin(times))


def test_random_orders_have_a_median_between_their_tenths_and_end_at_the_best(main):
    found = traces.trace(main)
    assert (found.low <= found.middle).all()
    assert (found.middle <= found.high).all()
    assert found.low[-1] == found.high[-1] == 1.0
    # Half of the orders have seen the best after half of the configs; none before the untuned one.
    assert found.high[0] == found.low[0] == pytest.approx(main.times[0] / main.best)
    again = traces.trace(main)
    assert (again.middle == found.middle).all()


def test_configs_to_counts_from_one():
    curve = np.array([np.inf, 3.0, 1.5, 1.0])
    assert traces.configs_to(curve, 1.0) == 4
    assert traces.configs_to(curve, 2.0) == 3
    assert traces.configs_to(curve[:2], 1.0) is None


def test_a_landscape_has_room_for_the_words_of_its_values(main):
    words = ("substitution", "doubling")
    configs = tuple((*config[:-1], words[i % 2]) for i, config in enumerate(main.configs))
    long = dataclasses.replace(main, values=(*main.values[:-1], words), configs=configs)
    picture = labs.tree([landscape._map(long, 0, len(long.knobs) - 1)])
    gutter = picture.find(".//svg")
    ends = {text.text: float(text.get("x")) for text in gutter.iter("text")}
    assert set(ends) == set(words)
    # A letter of this size is about 6 pixels wide.
    assert 6.3 * len(words[0]) <= ends[words[0]] < float(gutter.get("width"))


# --- Knobs ---


def test_a_loss_is_that_of_the_best_config_with_the_value(data, main):
    trials = labs.searched(data)
    best = trials["median_us"].min()
    for place, knob in enumerate(main.knobs):
        by_value = trials.groupby(f"cfg_{knob}")["median_us"].min() / best - 1
        assert main.losses[place] == pytest.approx([by_value[value] for value in main.values[place]])


def test_the_knob_that_matters_most_comes_first(data, main):
    assert main.knobs[main.by_worth[0]] == "block_q"
    root = labs.tree(knobs.part(data, [main]))
    assert next(labs.words(e) for e in root.iter("dt")) == "block_q"
    chips = labs.classes(root, "chip")
    expected = [knobs.loss_words(loss) for place in main.by_worth for loss in main.losses[place]]
    assert [labs.words(list(chip)[1]) for chip in chips] == expected
    assert sum("is-untuned" in chip.get("class") for chip in chips) == len(main.knobs)


# --- Failures ---


def test_failures_are_counted_by_class_with_the_first_error(data):
    root = labs.tree(failures.part(data))
    failed = data.trials.loc[data.trials["status"].isin([str(s) for s in Status if s.is_failure])]
    rows = labs.classes(root, "row")
    counts = {labs.words(e[0]).split("first")[0]: int(labs.words(e[2][0])) for e in rows}
    names = {"out of resources": "out_of_resources", "compile error": "compile_error", "crashed": "crashed"}
    assert {names[name]: count for name, count in counts.items()} == failed["status"].value_counts().to_dict()
    memory = failed.loc[failed["status"] == "out_of_resources", "reason"].iloc[0]
    assert [e for e in root.iter("pre") if e.text == memory]


# --- Noise and cost ---


def test_spreads_and_phases_are_sums_of_the_frame(data):
    spread = noise.spreads(data.trials).set_index("signature")
    ours = data.trials.loc[data.trials["signature"] == labs.MAIN.text, "dispersion"].dropna()
    assert spread.loc[labs.MAIN.text, "middle"] == pytest.approx(ours.median())
    assert spread.loc[labs.MAIN.text, "high"] == pytest.approx(ours.quantile(0.9))
    phases = noise.phases(data.trials).set_index(["device", "kernel"])
    row = phases.loc[("nvidia-h200", "flash_attention/triton")]
    kept = data.trials.loc[
        (data.trials["kernel"] == "flash_attention/triton") & (data.trials["device"] == "nvidia-h200")
    ]
    assert row["compile"] == pytest.approx(kept["compile_ms"].sum() / 1e3)
    assert row["final"] == pytest.approx(4 * 0.3)
    text = labs.words(labs.tree(noise.part(data)))
    assert "1905 to 1980" in text
    assert "41 to 57" in text


# --- Evidence ---


def test_every_sample_of_a_decision_is_drawn_at_its_time(data):
    found = race(data, labs.MAIN)
    assert (found.is_paired, found.rounds) == (True, (24,))
    assert found.untuned_ns == labs.samples(200_000, 24)
    assert found.rival_ns == labs.samples(100_000, 24, step=9)
    block = item(data, labs.tree(evidence.part(data)), labs.MAIN, "evidence")
    scale = evidence.spanning([*found.untuned_ns, *found.rival_ns])
    for name, expected in (("s-untuned", found.untuned_ns), ("s-rival", found.rival_ns)):
        (cloud,) = labs.classes(block, name)
        assert [labs.share(e.get("x")) for e in cloud] == pytest.approx([scale.at(s) for s in expected], abs=1e-4)
    (ratios,) = labs.classes(block, "s-ratio")
    assert len(ratios) == 24
    assert "slower in 24 of 24 turns" in labs.words(block)


def test_the_interval_of_a_race_holds_the_ratio_of_its_samples(data):
    for found in data.races.itertuples():
        assert found.low <= found.speedup <= found.high
        if found.is_paired:
            assert math.log(found.speedup) == pytest.approx(float(np.median(np.log(evidence.ratios(found)))))


def test_the_device_of_the_facts_has_measured_limits(data):
    assert DEVICE.variant in set(data.winners["device"])
    assert data.winners["is_matmul_measured"].all()
    assert pd.api.types.is_number(data.winners["flops"].dropna().iloc[0])


def test_a_device_without_limits_is_said_to_have_none_that_is_known():
    none = {"copy_tb_s": 0.0, "is_matmul_measured": False, "is_copy_measured": False}
    assert roofline._limit_words(none, 0.0) == "no limit is known of this device, so no roof is drawn"
    assert roofline._limit_words(none | {"copy_tb_s": 4.0}, 0.0).startswith("matrix limit not known, copy limit 4 TB/s")
