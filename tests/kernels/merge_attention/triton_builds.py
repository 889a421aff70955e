"""Compiles the Triton kernel without a GPU; prints a JSON line per launch. A script, so that nothing is interpreted."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp

from attn_tune.kernels.merge_attention.triton import space
from attn_tune.kernels.merge_attention.triton.forward import forward
from attn_tune.ops.merge_attention.inputs import make_inputs
from attn_tune.ops.merge_attention.problem import Problem
from attn_tune.schema.device import Device
from tests.kernels.triton_lowered import lower

_LLAMA = Problem(num_rows=256, num_q_heads=32, v_head_dim=128)
BUILDS = {
    "llama-80": (_LLAMA, 80),
    "llama-90": (_LLAMA, 90),
    "one-90": (dataclasses.replace(_LLAMA, num_rows=1), 90),
    "four-90": (dataclasses.replace(_LLAMA, num_parts=4), 90),
    "float32-90": (dataclasses.replace(_LLAMA, dtype="float32", out_dtype="bfloat16"), 90),
    "wide-90": (dataclasses.replace(_LLAMA, v_head_dim=512), 90),
}


def main():
    for name, (problem, capability) in BUILDS.items():
        device = Device(platform="cuda", family=f"sm_{capability}", variant="nvidia-test", units=132)
        config = space.heuristic(problem, device)
        operands = jax.eval_shape(functools.partial(make_inputs, problem, "fwd"), jax.ShapeDtypeStruct((), jnp.int32))
        _, (launch,) = lower(functools.partial(forward, problem, config), operands, capability=capability)
        found = {"registers": launch.registers, "spills": launch.spill_bytes, "shared": launch.shared_bytes}
        loads = launch.ptx.count("ld.global.v4.b32")
        print(json.dumps({"name": name, "wide_loads": loads, "config": dataclasses.asdict(config), **found}))


if __name__ == "__main__":
    main()
