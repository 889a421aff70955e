"""The Triton kernels in Triton's interpreter, against a dense float64 attention with written-out gradients."""

import json
import os
import subprocess
import sys

import pytest

from tests.kernels.flash_attention.triton_cases import CASES, OTHERS, RUNS, TESTED, expected_outputs


@pytest.fixture(scope="module")
def results():
    """Each case's line of ``triton_cases``, by kernel: the interpreter is chosen before the kernels are imported."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "JAX_PLATFORMS": "cpu",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.flash_attention.triton_cases", "tested"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = map(json.loads, done.stdout.splitlines())
    return {(line["kernel"], line["case"]): line for line in found}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kernel"), TESTED)
def test_outputs_and_gradients_are_right(name, kernel, results):
    line = results[kernel, name]
    (case,) = (case for case in CASES if case.name == name)
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
        tried = [c for c in CASES if (c.name, kernel) in TESTED]
        for flag in flags:
            assert len([c for c in tried if getattr(c.problem, flag)]) >= 3, (kernel, flag)
        assert {c.problem.dtype for c in tried} == {"float32", "float16", "bfloat16"}
    assert {c.problem.logits_dtype for c in CASES} == {"float32", "float16", "bfloat16"}
    assert {name for name, _ in TESTED} >= OTHERS
    assert {name for name, _ in TESTED} == {c.name for c in CASES}
