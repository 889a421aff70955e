"""The Triton kernel compiled without a GPU: no spills, and stores of several elements."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_untuned_launches_spill_nothing_and_store_several_elements_at_a_time():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.paged_append.triton_builds"],
        env=environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    launches = [json.loads(line) for line in done.stdout.splitlines()]
    assert {launch["name"] for launch in launches} >= {"llama-90", "ragged-90", "float8-90", "int8-80"}
    for launch in launches:
        assert launch["spills"] == 0, launch
        assert launch["narrow"] == 0, launch
