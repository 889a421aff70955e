"""Compiles the kernel for Hopper without a GPU; prints a JSON line per build. A script: nothing is interpreted."""

import dataclasses
import functools
import json
import sys

import jax
import jax.numpy as jnp

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.ragged_paged.triton_hopper import space
from attn_tune.kernels.ragged_paged.triton_hopper.forward import forward
from attn_tune.kernels.ragged_paged.triton_hopper.plan import shared_bytes
from attn_tune.ops.ragged_paged.inputs import make_inputs
from attn_tune.ops.ragged_paged.problem import Problem
from tests.kernels.triton_lowered import lower

H200 = device_from_kind("nvidia-h200")
_SMALL = Problem(
    batch=3, tokens=99, kv_len=300, num_q_heads=4, num_kv_heads=2, head_dim=32, v_head_dim=32, page_size=8, scale=0.2
)
_LLAMA = Problem(
    batch=4, tokens=4096, kv_len=4096, num_q_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128, page_size=64
)
_FLOAT8 = dataclasses.replace(_LLAMA, kv_dtype="float8_e4m3fn", kv_scale="tensor")
BUILDS = {
    "llama": (_LLAMA, {}),
    "mixed": (dataclasses.replace(_SMALL, workload="mix"), {}),
    "everything": (
        dataclasses.replace(
            _SMALL, num_q_heads=142, head_dim=24, v_head_dim=40, page_size=24, window=20, has_sinks=True, soft_cap=2.0
        ),
        {"block_k": 64, "ping_pong": True},
    ),
    "contiguous": (
        dataclasses.replace(_SMALL, page_size=0, num_q_heads=10, layout="hnd", causal=False),
        {"consumers": 3, "block_k": 32},
    ),
    "float8": (_FLOAT8, {}),
    "float8_groups": (_FLOAT8, {"consumers": 3, "block_k": 32}),
    "float8_token": (dataclasses.replace(_FLOAT8, kv_scale="token"), {}),
    "int8": (dataclasses.replace(_LLAMA, kv_dtype="int8", kv_scale="head", dtype="float16"), {}),
    "int8_everything": (
        dataclasses.replace(
            _SMALL,
            num_q_heads=142,
            head_dim=48,
            v_head_dim=32,
            page_size=24,
            window=20,
            has_sinks=True,
            soft_cap=2.0,
            kv_dtype="int8",
            kv_scale="token",
        ),
        {"block_k": 64, "ping_pong": True},
    ),
    "float8_wide": (
        dataclasses.replace(_FLOAT8, num_q_heads=16, head_dim=256, v_head_dim=256, kv_scale="none"),
        {},
    ),
}


def main():
    for name in sys.argv[1:] or BUILDS:
        problem, knobs = BUILDS[name]
        config = dataclasses.replace(space.heuristic(problem, H200), **knobs)
        operands = jax.eval_shape(functools.partial(make_inputs, problem, "fwd"), jax.ShapeDtypeStruct((), jnp.int32))
        _, compiled = lower(functools.partial(forward, problem, config), operands)
        (launch,) = (launch for launch in compiled if "forward_kernel" in launch.name)
        found = {
            "name": name,
            "spills": launch.spill_bytes,
            "shared": launch.shared_bytes,
            "counted": shared_bytes(problem, config),
            "products": launch.ptx.count("wgmma.mma_async"),
            "copies": launch.ptx.count("cp.async.bulk.tensor"),
            "launches": len(compiled),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
