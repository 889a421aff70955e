"""The Triton kernels of sparse attention compiled for Hopper without a GPU: products, and copies of gathered keys."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_untuned_launches_of_sparse_attention_multiply_by_wgmma_and_gather_without_waiting():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.sparse_mla.triton_builds"],
        env=environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    launches = {launch.pop("name"): launch for launch in map(json.loads, done.stdout.splitlines())}
    assert launches.keys() == {"deepseek", "hopper", "indexer"}
    for launch in launches.values():
        assert launch["wgmma"] > 0, launch
        assert launch["copies"] > 0, launch
    assert launches["indexer"]["spills"] == 0, launches
