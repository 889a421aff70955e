"""The Triton kernels compiled without a GPU: gathered tiles are copied ahead, and nothing is spilled."""

import json
import os
import subprocess
import sys

import pytest

LAUNCHES = {"forward_kernel", "dq_kernel", "dkv_kernel", "add_kernel"}


@pytest.mark.slow
def test_untuned_launches_copy_gathered_tiles_ahead_and_spill_nothing():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.native_sparse_attention.triton_builds", "paper-90"],
        env=environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    launches = {launch["launch"]: launch for launch in map(json.loads, done.stdout.splitlines())}
    assert launches.keys() == LAUNCHES
    for name, launch in launches.items():
        assert launch["spills"] == 0, launch
        # Without a pipeline there is no asynchronous copy at all; sums are read once.
        assert launch["copies"] >= 16 or name == "add_kernel", launch
