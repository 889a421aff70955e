"""The Triton kernel of ``indexer`` in Triton's interpreter against numpy."""

import os
import subprocess
import sys

import pytest

from tests.kernels.indexer.triton_cases import CASES


@pytest.fixture(scope="module")
def verdicts():
    """The line of each case: the interpreter is chosen before the kernel is imported."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.indexer.triton_cases"],
        env=os.environ | {"TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "queries", "keys"), CASES)
def test_the_interpreted_indexer_is_right(name, queries, keys, verdicts):
    assert [line for line in verdicts if line.startswith(f"{name} {queries} {keys} ")] == [
        f"{name} {queries} {keys} right"
    ]
