"""The Triton kernel compiled without a GPU: no spills, and every part read 16 bytes at a time."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_untuned_launches_spill_nothing_and_read_sixteen_bytes_at_a_time():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.merge_attention.triton_builds"],
        env=environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    launches = {launch.pop("name"): launch for launch in map(json.loads, done.stdout.splitlines())}
    assert launches.keys() >= {"llama-80", "llama-90", "one-90", "four-90", "float32-90"}
    for name, launch in launches.items():
        assert launch["spills"] == 0, launch
        # A part has one such load at least.
        assert launch["wide_loads"] >= (4 if name == "four-90" else 2), launch
