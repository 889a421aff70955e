"""The fit of the cost model: what it computes is what the package computes from its figures."""

import collections
import functools
import json

import fit_costs
import numpy as np
import pytest
import raced_work
import unseen_shapes

from attn_tune.kernels.flash_attention import costs
from attn_tune.ops.flash_attention.problem import Problem


@pytest.fixture(scope="module", autouse=True)
def races_read_once():
    read = fit_costs.races
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_costs, "races", functools.cache(lambda paths: tuple(read(paths))))
        yield


@pytest.mark.parametrize(
    ("direction", "kernel"),
    [(direction, kernel) for direction, kernels in fit_costs.LAUNCHES.items() for kernel in kernels],
)
def test_the_package_and_the_fit_predict_the_same(direction, kernel, monkeypatch):
    resident = collections.defaultdict(lambda: 2)
    lone = fit_costs.lone_times_of(direction, kernel)[:20]
    times = fit_costs.times_of(fit_costs.RACES, direction, kernel)[:60] + lone
    fit = fit_costs.Fit(direction, {kernel: times}, resident)
    # Figures that are no starts, so that none can be left out unseen.
    x = fit.start + np.random.default_rng(0).normal(0, 0.2, len(fit.start))
    launches, calls = fit.figures(x)
    figures = {"launches": launches, "kernels": calls}
    monkeypatch.setattr(costs, "_table", lambda: figures)
    costs.launch_us.cache_clear()
    try:
        for time, expected in zip(times, fit.predict(x), strict=True):
            us = sum(costs.launch_us(one, time.problem, time.device) for one in time.launches)
            us += costs.call_us(time.launches[0].name, time.problem, time.device) * time.is_call
            # Figures are written with three digits.
            assert us == pytest.approx(expected, rel=0.02)
    finally:
        costs.launch_us.cache_clear()


def test_a_recorded_race_takes_the_place_of_an_older_one(tmp_path):
    signature = "flash_attention/v1 b=1 t=64 s=64 n=2 k=2 h=64 v=64 dtype=bfloat16"
    into = tmp_path / "races.jsonl"
    tile = {"block_q": 64, "block_k": 64, "num_warps": 4, "num_stages": 3, "max_registers": None}

    def race(us):
        side = {"kernel": "triton", "config": tile}
        return {
            "signature": signature, "direction": "fwd",
            "us": {"auto": us, "triton": us, "triton 1": float("inf")},
            "sides": {"auto": side, "triton": side, "triton 1": {"kernel": "triton", "config": {}}},
        }  # fmt: skip

    unseen_shapes.record([race(7.0)], into)
    unseen_shapes.record([race(5.0)], into)
    (line,) = into.read_text().splitlines()
    assert json.loads(line)["times"] == [["triton", [64, 64, 4, 3], 5.0]]
    (found,) = fit_costs.races((into,))
    assert (found.problem.q_len, found.direction) == (64, "fwd")


def test_a_fit_comes_near_the_figures_that_times_were_made_by():
    resident = collections.defaultdict(lambda: 2)
    times = fit_costs.times_of(fit_costs.RACES, "fwd", "triton_hopper")[:120]
    fit = fit_costs.Fit("fwd", {"triton_hopper": times}, resident)
    x = fit.start + np.random.default_rng(0).normal(0, 0.2, len(fit.start))
    made = [t._replace(us=us, best=us) for t, us in zip(times, fit.predict(x, raced=True), strict=True)]
    fit = fit_costs.Fit("fwd", {"triton_hopper": made}, resident)
    kept = fit.race != made[0].race

    def error(x):
        return np.median(np.abs(np.log(fit.predict(x, raced=True) / fit.us))[kept])

    found = fit.fit(kept)
    assert error(found) < error(fit.start) / 3
    # A race that is left out moves nothing.
    fit.us[~kept] *= 10
    assert fit.fit(kept) == pytest.approx(found)


def test_chosen_is_what_should_take_least():
    times = fit_costs.times_of(fit_costs.RACES, "bwd", "cudnn")[:30]
    fit = fit_costs.Fit("bwd", {"cudnn": times}, collections.defaultdict(lambda: 1))
    found = fit_costs.losses(fit, fit.us, {})
    assert set(found) == {t.race for t in times}
    assert all(found[t.race] == pytest.approx(t.us / t.best) for t in times)
    slowest = max(t.us - t.best for t in times)
    assert set(fit_costs.losses(fit, fit.us, {}, tie_us=slowest).values()) == {1.0}
    first = times[0]
    ruled = {first.race: (first.us / 2, first.best)}
    assert fit_costs.losses(fit, fit.us, ruled)[first.race] == 1.0


def test_configs_that_a_rule_chooses_are_raced_ones():
    ruled = fit_costs.ruled(fit_costs.RACES)
    assert ruled
    raced = {race.number: race.times for race in fit_costs.races(fit_costs.RACES)}
    assert all(us in [t for _, _, t in raced[number]] for number, (_, us) in ruled.items())


def test_races_held_out_by_model_leave_no_race_of_its_heads_in_the_fit():
    times = fit_costs.times_of(fit_costs.RACES, "bwd", "cudnn")[:40]
    fold_of = fit_costs.held_out(times, 3, "model")
    assert set(fold_of.values()) == {0, 1, 2}
    folds = collections.defaultdict(set)
    for time in times:
        p = time.problem
        folds[p.num_q_heads, p.num_kv_heads, p.head_dim].add(fold_of[time.race])
    assert all(len(found) == 1 for found in folds.values())


@pytest.mark.parametrize("flags", [{"has_lengths": True}, {}])
@pytest.mark.parametrize("name", ["triton/dq", "triton/dkv"])
def test_raced_work_is_that_of_the_inputs(name, flags):
    problem = Problem(
        batch=3, q_len=700, kv_len=700, num_q_heads=4, num_kv_heads=2, head_dim=64, v_head_dim=64,
        scale=0.125, causal=True, has_segments=True, **flags,
    )  # fmt: skip
    launch = costs.Launch(name, (64, 64, 4, 2))
    q_ids, kv_ids, lengths = raced_work.drawn_ids(problem)
    visible = np.tril(q_ids[:, :, None] == kv_ids[:, None, :])
    padded = np.pad(visible, ((0, 0), (0, 4), (0, 4)))
    tiles = padded.reshape(3, 11, 64, 11, 64).any((2, 4))
    least, usual_of_causal = 4 * tiles.sum(), 4 * 3 * 66
    work, usual = raced_work.raced_work(launch, problem), costs.work_of(launch, problem)
    assert (work.programs, work.facts) == (usual.programs, usual.facts)
    if lengths is not None:
        assert work.tiles == least
    else:
        # Ranges of ids hold all that is visible, and the tile with the padding more.
        assert least <= work.tiles <= usual_of_causal
        assert work.longest <= 11 * (2 if name == "triton/dkv" else 1)
