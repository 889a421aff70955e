"""Compiles the Triton kernels without a GPU; prints a line of JSON a launch. A script: nothing is interpreted."""

import dataclasses
import functools
import json
import re
import sys

import jax
import jax.numpy as jnp

from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.contract import load
from attn_tune.ops.fields.cache import LATENT
from attn_tune.ops.ragged_paged.inputs import make_inputs
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device
from tests.kernels.triton_lowered import lower

_LLAMA = Problem(
    batch=4, tokens=4096, kv_len=4096, num_q_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128, page_size=64
)
_FLOAT8_QUERIES = dataclasses.replace(_LLAMA, kv_dtype="float8_e4m3fn", kv_scale="tensor", q_scale="token")
_INT8_QUERIES = dataclasses.replace(_LLAMA, kv_dtype="int8", kv_scale="head", q_scale="tensor", window=500)
# Products of 8-bit numbers: of a group of warps on Hopper, of a warp elsewhere.
_OF_CODES = re.compile(r"(?:wgmma|mma)\S+\.(e4m3\.e4m3|s8\.s8)\b")
# What each of the others has, one of these has too, or the interpreter.
KEPT = (
    *("llama-80", "mixed-90", "float8-90", "int8-90", "queries-int8-80", "queries-mixed-90", "latent-90"),
    *("without-rope-90", "wide-90"),
)
BUILDS = {
    "llama-80": (_LLAMA, 80),
    "llama-90": (_LLAMA, 90),
    "mixed-90": (dataclasses.replace(_LLAMA, page_size=16, workload="mix"), 90),
    "float8-90": (dataclasses.replace(_LLAMA, kv_dtype="float8_e4m3fn", kv_scale="tensor"), 90),
    "int8-90": (dataclasses.replace(_LLAMA, kv_dtype="int8", kv_scale="token", window=500, has_sinks=True), 90),
    "queries-float8-90": (_FLOAT8_QUERIES, 90),
    "queries-float8-89": (_FLOAT8_QUERIES, 89),
    "queries-int8-90": (_INT8_QUERIES, 90),
    "queries-int8-80": (_INT8_QUERIES, 80),
    "queries-mixed-90": (dataclasses.replace(_FLOAT8_QUERIES, workload="mix", kv_scale="token", dtype="float16"), 90),
    "prefix-90": (dataclasses.replace(_LLAMA, causal=False), 90),
    "latent-90": (
        dataclasses.replace(_LLAMA, num_q_heads=128, num_kv_heads=1, head_dim=576, v_head_dim=512, layout="latent"),
        90,
    ),
    "without-rope-90": (
        dataclasses.replace(_LLAMA, num_kv_heads=1, head_dim=256, v_head_dim=256, layout="latent", page_size=0),
        90,
    ),
    "wide-90": (dataclasses.replace(_LLAMA, head_dim=256, v_head_dim=256, soft_cap=30.0), 90),
}


def main():
    for name in sys.argv[1:] or BUILDS:
        problem, capability = BUILDS[name]
        device = Device(platform="cuda", family=f"sm_{capability}", variant="nvidia-test", units=132)
        kernel = "triton_latent" if problem.layout == LATENT else "triton"
        kernel = kernel if problem.q_scale == "none" else "triton_8bit"
        search = get_kernel(f"ragged_paged/{kernel}").searches["fwd"]
        forward, config = load(search.call), search.heuristic(problem, device)
        operands = jax.eval_shape(functools.partial(make_inputs, problem, "fwd"), jax.ShapeDtypeStruct((), jnp.int32))
        _, compiled = lower(functools.partial(forward, problem, config), operands, capability=capability)
        for launch in compiled:
            products = sorted(set(_OF_CODES.findall(launch.ptx)))
            found = {
                "products": products,
                "groups": launch.ptx.count("wgmma.mma_async"),
                "registers": launch.registers,
                "spills": launch.spill_bytes,
                "shared": launch.shared_bytes,
            }
            print(json.dumps({"name": name, "copies": launch.ptx.count("cp.async.cg"), **found}), flush=True)


if __name__ == "__main__":
    main()
