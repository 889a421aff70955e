"""Compiles the fused backward for Hopper without a GPU; prints a JSON line per build. Nothing is interpreted here."""

import dataclasses
import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
from triton import knobs

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.flash_attention.triton_hopper_fused import space
from attn_tune.kernels.flash_attention.triton_hopper_fused.backward import backward
from attn_tune.kernels.flash_attention.triton_hopper_fused.plan import shared_bytes
from attn_tune.ops.flash_attention.inputs import make_inputs
from attn_tune.ops.flash_attention.problem import Problem
from tests.kernels.triton_lowered import lower

H200 = device_from_kind("nvidia-h200")
_LLAMA = Problem(
    batch=2, q_len=4096, kv_len=4096, num_q_heads=8, num_kv_heads=2, head_dim=128, v_head_dim=128, causal=True,
    scale=0.1,
)  # fmt: skip
_NARROW = dataclasses.replace(_LLAMA, head_dim=64, v_head_dim=64, num_kv_heads=8)
# The untuned knobs at h=128 are also those of everything together; narrow heads make dq late.
KEPT = ("h128 behind, from registers", "h64", "h256", "everything")
BUILDS = {
    "h128": (_LLAMA, {}),
    "h128 behind, from registers": (_LLAMA, {"ahead": False, "staged_dq": False}),
    "h128 late dq, tiles taken early": (_LLAMA, {"late_dq": True, "takes_late": False}),
    "h64": (_NARROW, {}),
    "h256": (dataclasses.replace(_LLAMA, head_dim=256, v_head_dim=256), {}),
    "lengths": (dataclasses.replace(_LLAMA, kv_len=4096, has_segments=True, has_lengths=True), {}),
    "everything": (
        dataclasses.replace(
            _LLAMA, q_len=300, kv_len=260, window=(99, None), has_segments=True, soft_cap=2.0, dropout_rate=0.1
        ),
        {},
    ),
}


def waits(cubin: bytes) -> int:
    """Waits for products in the machine code."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(cubin)
        done = subprocess.run([knobs.nvidia.nvdisasm.path, "-c", file], capture_output=True, text=True, check=True)
    return done.stdout.count("WARPGROUP.DEPBAR")


def main():
    for name in sys.argv[1:] or BUILDS:
        problem, changed = BUILDS[name]
        config = dataclasses.replace(space.heuristic(problem, H200), **changed)
        inputs = jax.eval_shape(functools.partial(make_inputs, problem, "bwd"), jax.ShapeDtypeStruct((), jnp.int32))
        _, compiled = lower(functools.partial(backward, problem, config), inputs)
        (launch,) = (launch for launch in compiled if "backward_kernel" in launch.name)
        found = {
            "name": name,
            "spills": launch.spill_bytes,
            "shared": launch.shared_bytes,
            "counted": shared_bytes(problem, config),
            "products": launch.ptx.count("wgmma.mma_async"),
            "copies": launch.ptx.count("cp.async.bulk.tensor"),
            "added": launch.ptx.count("cp.reduce.async.bulk.tensor"),
            "waits": waits(launch.cubin),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
