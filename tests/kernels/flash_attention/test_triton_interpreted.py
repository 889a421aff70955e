"""The Triton kernels in Triton's interpreter, against a dense float64 attention with written-out gradients."""

import json

import pytest

from tests.chosen import chosen
from tests.kernels.flash_attention.triton_cases import CASES, OTHERS, PAIRS, RUNS, TESTED, expected_outputs
from tests.kernels.scripts import run_selected
from tests.kernels.triton_interpreter import name_of


@pytest.fixture(scope="module")
def results(request):
    """Each case's line of ``triton_cases``, by its name and its kernel."""
    found = map(json.loads, run_selected(request, "tests.kernels.flash_attention.triton_cases"))
    return {f"{line['case']} {line['kernel']}": line for line in found}


@pytest.mark.slow
@pytest.mark.parametrize("name", chosen(map(name_of, PAIRS), TESTED))
def test_outputs_and_gradients_are_right(name, results):
    line, (case_name, kernel) = results[name], name.split()
    (case,) = (case for case in CASES if case.name == case_name)
    assert "raised" not in line, line["raised"]
    assert line["errors"].keys() == expected_outputs(case, kernel)
    wrong = {name: error for name, error in line["errors"].items() if not error <= case.tolerance}
    assert not wrong


def test_the_cases_cover_every_feature():
    flags = (
        "causal",
        "mask_dims",
        "bias_dims",
        "has_segments",
        "has_positions",
        "has_sinks",
        "soft_cap",
        "dropout_rate",
    )
    for kernel in RUNS:
        for least, names in ((3, {" ".join(pair) for pair in PAIRS}), (2, TESTED)):
            tried = [c for c in CASES if f"{c.name} {kernel}" in names]
            for flag in flags:
                assert len([c for c in tried if getattr(c.problem, flag)]) >= least, (kernel, flag)
            assert {c.problem.dtype for c in tried} == {"float32", "float16", "bfloat16"}
    assert {c.problem.logits_dtype for c in CASES} == {"float32", "float16", "bfloat16"}
    assert {name for name, _ in PAIRS} >= OTHERS
    assert {name for name, _ in PAIRS} == {c.name for c in CASES}
