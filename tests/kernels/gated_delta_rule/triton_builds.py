"""Compiles the Triton kernels without a GPU; a JSON line per launch. A script, so that nothing is interpreted."""

import dataclasses
import functools
import json
import sys

import jax
import jax.numpy as jnp

from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.contract import load
from attn_tune.ops.gated_delta_rule.problem import Problem
from attn_tune.ops.recurrent.inputs import make_inputs
from attn_tune.schema.device import Device
from tests.kernels.triton_lowered import lower

_QWEN = Problem(
    batch=1, length=8192, num_value_heads=32, num_key_heads=16, head_dim=128, v_head_dim=128, has_final_state=True
)
_DECODE = dataclasses.replace(_QWEN, batch=32, length=1, has_initial_state=True)
# What each of the others has, one of these has too.
KEPT = ("forward-90", "forward-float32-80", "forward-wide-90", "backward-90", "decode-90")
BUILDS = {
    "forward-90": ("triton", "fwd", _QWEN, 90),
    "forward-80": ("triton", "fwd", _QWEN, 80),
    "forward-float32-80": ("triton", "fwd", dataclasses.replace(_QWEN, dtype="float32"), 80),
    "forward-float32-90": ("triton", "fwd", dataclasses.replace(_QWEN, dtype="float32"), 90),
    "forward-wide-90": ("triton", "fwd", dataclasses.replace(_QWEN, head_dim=256, v_head_dim=256), 90),
    "backward-90": ("triton", "bwd", _QWEN, 90),
    "decode-90": ("triton_steps", "fwd", _DECODE, 90),
}


def main():
    for name in sys.argv[1:] or BUILDS:
        kernel, direction, problem, capability = BUILDS[name]
        device = Device(platform="cuda", family=f"sm_{capability}", variant="nvidia-test", units=132)
        search = get_kernel(f"gated_delta_rule/{kernel}").searches[direction]
        config = search.heuristic(problem, device)
        assert search.infeasible(problem, device, config) is None, config
        abstract = functools.partial(make_inputs, problem, direction)
        inputs = jax.eval_shape(abstract, jax.ShapeDtypeStruct((), jnp.int32))
        call = functools.partial(load(search.call), problem, config)
        _, launches = lower(call, inputs, capability=capability)
        for launch in launches:
            found = {"registers": launch.registers, "spills": launch.spill_bytes, "shared": launch.shared_bytes}
            found |= {"wgmma": launch.ptx.count("wgmma.mma_async"), "wide_loads": launch.ptx.count("ld.global.v4")}
            found |= {"copies": launch.ptx.count("cp.async.cg")}
            print(json.dumps({"name": name, "launch": launch.name, **found}))


if __name__ == "__main__":
    main()
