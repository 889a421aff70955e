"""Compiles the Triton kernel without a GPU; prints a JSON line per launch. A script, so that nothing is interpreted."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp

from attn_tune.kernels.paged_append.triton import space
from attn_tune.kernels.paged_append.triton.forward import forward
from attn_tune.ops.paged_append.inputs import make_inputs
from attn_tune.ops.paged_append.problem import Problem
from attn_tune.schema.device import Device
from tests.kernels.triton_lowered import lower

_LLAMA = Problem(batch=32, tokens=32, num_kv_heads=8, head_dim=128, v_head_dim=128, page_size=64)
_CHUNK = dataclasses.replace(_LLAMA, batch=1, tokens=4096)
BUILDS = {
    "llama-80": (_LLAMA, 80),
    "llama-90": (_LLAMA, 90),
    "chunk-90": (_CHUNK, 90),
    "ragged-90": (dataclasses.replace(_LLAMA, tokens=100, ragged=True), 90),
    "float8-89": (dataclasses.replace(_LLAMA, kv_dtype="float8_e4m3fn", kv_scale="tensor"), 89),
    "float8-90": (dataclasses.replace(_CHUNK, kv_dtype="float8_e4m3fn", kv_scale="token"), 90),
    "int8-80": (dataclasses.replace(_CHUNK, kv_dtype="int8", kv_scale="head"), 80),
}


def main():
    for name, (problem, capability) in BUILDS.items():
        device = Device(platform="cuda", family=f"sm_{capability}", variant="nvidia-test", units=132)
        config = space.heuristic(problem, device)
        operands = jax.eval_shape(functools.partial(make_inputs, problem, "fwd"), jax.ShapeDtypeStruct((), jnp.int32))
        _, compiled = lower(functools.partial(forward, problem, config), operands, capability=capability)
        for launch in compiled:
            found = {"registers": launch.registers, "spills": launch.spill_bytes, "shared": launch.shared_bytes}
            narrow = sum(launch.ptx.count(f"st.global.b{bits}") for bits in (8, 16))
            print(json.dumps({"name": name, "narrow": narrow, "config": dataclasses.asdict(config), **found}))


if __name__ == "__main__":
    main()
