"""Code of kernels imported by several threads at one time."""

import subprocess
import sys

import pytest

_PROGRAM = """
import sys, threading
from attn_tune.ops.contract import load

CALLS = ("triton.forward:forward", "triton_hopper.forward:forward", "triton_split.forward:forward",
         "triton.backward:backward", "triton_fused.backward:backward", "triton_hopper_fused.backward:backward")
start, failed = threading.Barrier(len(CALLS)), []

def call(path):
    start.wait()
    try:
        load("attn_tune.kernels.flash_attention." + path)
    except Exception as error:
        failed.append(f"{path}: {error}")

threads = [threading.Thread(target=call, args=(path,)) for path in CALLS]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit("; ".join(failed) or 0)
"""


def test_threads_that_load_triton_kernels_first_see_whole_modules():
    # Triton's modules import one another in circles: without a lock some thread sees half of one.
    pytest.importorskip("triton")
    ran = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
