"""Kernels for TPU, compiled for two generations by the TPU compiler, in a process of its own."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chosen import exhaustive

CASES = (
    "flash_attention/pallas_tpu_splash,fwd,tpu-v5e",
    "flash_attention/pallas_tpu_splash,fwd,tpu-v6e",
    "flash_attention/pallas_tpu_flash,fwd,tpu-v6e",
    "flash_attention/pallas_tpu_flash,bwd,tpu-v5e",
    "block_sparse_attention/pallas_tpu_splash,fwd,tpu-v6e",
    "paged_decode/pallas_tpu_paged,fwd,tpu-v5e",
    "paged_decode/pallas_tpu_paged,fwd,tpu-v6e",
    "paged_decode/pallas_tpu_ragged,fwd,tpu-v6e",
    "ragged_paged/pallas_tpu_ragged,fwd,tpu-v6e",
)
if importlib.util.find_spec("tokamax") is not None:
    CASES = (
        *CASES,
        "paged_decode/tokamax_batched_rpa,fwd,tpu-v5e",
        "paged_decode/tokamax_batched_rpa,fwd,tpu-v6e",
        "ragged_paged/tokamax_batched_rpa,fwd,tpu-v5e",
        "ragged_paged/tokamax_batched_rpa,fwd,tpu-v6e",
    )


# Each kernel once, and both generations.
KEPT = (*CASES[1:2], *CASES[3:6], *CASES[7:])


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu has no wheel for this platform")
@pytest.mark.parametrize("cases", [KEPT, exhaustive(CASES)], ids=["kept", "every"])
def test_a_config_that_is_called_feasible_compiles(cases):
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        # There is no TPU to ask, and no TPU whose use must be exclusive.
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.tpu_compile", *cases],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert {line["case"]: line["result"] for line in lines} == dict.fromkeys(cases, "compiled")
