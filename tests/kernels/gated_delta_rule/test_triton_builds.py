"""The Triton kernels compiled without a GPU: launches spill little, and walks copy ahead and use tensor cores."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_untuned_walks_and_gradients_spill_little_and_walks_copy_ahead():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.gated_delta_rule.triton_builds"],
        env=environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    launches = {(x["name"], x["launch"]): x for x in map(json.loads, done.stdout.splitlines())}
    for name in ("forward-90", "backward-90"):
        walks = [x for (of, _), x in launches.items() if of == name and x["launch"] in _WALKS]
        assert walks
        for walk in walks:
            # Of 64 columns some are spilled, and all walks run at one time (``space.py``).
            assert walk["spills"] <= (0 if name == "forward-90" else 256), walk
            assert walk["copies"] > 0, walk
            assert walk["wgmma"] > 0, walk
    # Capped on purpose (``space.py``): a few registers are spilled.
    assert launches["forward-90", "prepare_kernel"]["spills"] <= 128
    assert launches["backward-90", "prepare_kernel"]["spills"] == 0
    for name in ("pairs_kernel", "queries_kernel", "keys_kernel"):
        assert launches["backward-90", name]["spills"] <= 64
    decode = launches["decode-90", "steps_kernel"]
    assert decode["spills"] == 0
    # Rows of a state are read 16 bytes a thread.
    assert decode["wide_loads"] > 0


_WALKS = ("scan_kernel", "walk_kernel")
