"""The Triton kernels in Triton's interpreter against the op's reference, by the rule of proof."""

import os
import subprocess
import sys

import pytest

from tests.kernels.native_sparse_attention.triton_cases import TESTED


@pytest.fixture(scope="module")
def verdicts():
    """The line of each case: the interpreter is chosen before the kernel is imported."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.native_sparse_attention.triton_cases", *TESTED],
        env=os.environ | {"TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", TESTED)
def test_outputs_and_gradients_are_right(name, verdicts):
    assert [line for line in verdicts if line.startswith(f"{name} ")] == [f"{name} right"]
