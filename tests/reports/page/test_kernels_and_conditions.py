"""Kernels of a problem side by side, the conditions of their times, and the names of what is drawn."""

import dataclasses

import pytest

from attn_tune.reports.page import conditions
from attn_tune.reports.page.parts import evidence, kernels, landscape, speedups
from attn_tune.reports.page.searches import searches
from attn_tune.schema.words import duration
from tests.db.facts import DEVICE, ENVIRONMENT, make_trial
from tests.reports.page import labs

# --- Kernels ---


@pytest.fixture(scope="module")
def rivals(tmp_path_factory):
    """The data of a lab in which two kernels did one problem."""
    path = tmp_path_factory.mktemp("rivals") / "lab.db"
    times = {"flash_attention/triton": 100_000, "flash_attention/xla": 250_000}
    trials = [
        make_trial({"size": n}, labs.samples(time + 1000 * n, 9), kernel=kernel, is_heuristic=n == 1)
        for kernel, time in times.items()
        for n in (0, 1)
    ]
    return labs.data_of(labs.fill(path, trials))


def test_kernels_of_a_problem_stand_side_by_side_with_their_errors(rivals):
    table = kernels.compared(rivals.kernels)
    assert list(table["kernel"]) == ["triton", "xla"]
    assert list(table["ratio"]) == pytest.approx([1.0, 2.5], rel=0.02)
    fast, slow = labs.classes(labs.tree(kernels.part(rivals)), "row")[1:]
    assert duration(table["median_ns"][1]) in labs.words(slow)
    assert f"{table['ratio'][1]:.2f}×" in labs.words(slow)
    for row, error in zip((fast, slow), table["worst_error"], strict=True):
        assert f"error {error:.2f} of what is allowed" in labs.words(row)
    (bar,) = labs.classes(slow, "bar")
    assert labs.share(bar.get("width")) > 0.8


def test_a_problem_of_one_kernel_comes_last_and_has_its_error(data):
    table = kernels.compared(data.kernels)
    assert set(table["ratio"]) == {1.0}
    assert len(table) == len(data.kernels)


# --- Conditions ---


def test_the_page_says_with_what_its_times_were_taken(data):
    words = conditions.in_words(data.software)
    environment = ENVIRONMENT
    for part in (f"JAX {environment.jax}", f"Triton {environment.triton}", "cache before each sample"):
        assert part in words
    rows = [[cell.text for cell in row] for row in labs.tree(conditions.part(data.software)).iter("tr")][1:]
    measured = data.trials["median_us"].notna().sum()
    assert sum(int(row[-1]) for row in rows) == measured
    assert {row[0] for row in rows} == {"nvidia-h200"}


def test_the_version_of_cudnn_is_that_of_the_device_as_it_was_seen(tmp_path):
    seen = dataclasses.replace(DEVICE, evidence=(("name", "x"), ("cudnn", "9.15.1")))
    found = labs.data_of(labs.fill(tmp_path / "lab.db", [make_trial({"n": 1}, (5, 5, 6), device=seen)]))
    assert "cuDNN 9.15.1" in conditions.in_words(found.software)


def test_a_legend_says_what_a_dashed_cell_is(data):
    assert "not tried" in labs.words(labs.tree(landscape.part(data, searches(data.trials))))


def test_the_two_speedups_have_two_names(data):
    drawn = labs.tree(speedups.part(data))
    (row,) = [e for e in labs.classes(drawn, "winner") if "row" in e.get("class")][:1]
    assert "paired speedup" in next(e.text for e in row.iter("title"))
    assert "paired speedup" in labs.words(labs.tree(evidence.part(data)))
