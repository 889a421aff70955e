"""Compiles the Triton kernel without a GPU; prints a JSON line per launch. A script, so that nothing is interpreted."""

import dataclasses
import functools
import json
import sys

import jax
import jax.numpy as jnp

from attn_tune.kernels.paged_decode.triton import space
from attn_tune.kernels.paged_decode.triton.forward import forward
from attn_tune.kernels.paged_decode.triton_hopper import space as hopper_space
from attn_tune.kernels.paged_decode.triton_hopper.forward import forward as hopper_forward
from attn_tune.ops.paged_decode.inputs import make_inputs
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.schema.device import Device
from tests.kernels.triton_lowered import lower

_LLAMA = Problem(
    batch=4, q_len=1, kv_len=4096, num_q_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128, page_size=64
)
_LATENT = Problem(
    batch=128,
    q_len=1,
    kv_len=4096,
    num_q_heads=16,
    num_kv_heads=1,
    head_dim=576,
    v_head_dim=512,
    page_size=64,
    layout="latent",
)
# What each of the others has, one of these has too, the interpreter, or the kernel of sparse latents.
KEPT = (
    *("llama-80", "float8-89", "float8-90", "float8-tokens-90", "int8-90", "latent-90", "wide-90"),
    *("hopper-narrow-90", "hopper-every-90"),
)
BUILDS = {
    "llama-80": (_LLAMA, 80),
    "llama-90": (_LLAMA, 90),
    "small-pages-90": (dataclasses.replace(_LLAMA, page_size=16, q_len=4), 90),
    "float8-89": (dataclasses.replace(_LLAMA, kv_dtype="float8_e4m3fn", kv_scale="tensor"), 89),
    "float8-90": (dataclasses.replace(_LLAMA, kv_dtype="float8_e4m3fn", kv_scale="tensor"), 90),
    "float8-tokens-90": (dataclasses.replace(_LLAMA, kv_dtype="float8_e4m3fn", kv_scale="token"), 90),
    "int8-90": (dataclasses.replace(_LLAMA, kv_dtype="int8", kv_scale="token", window=500, has_sinks=True), 90),
    "cluster-2-90": (dataclasses.replace(_LLAMA, q_len=8, window=100, has_sinks=True), 90),
    "cluster-8-90": (dataclasses.replace(_LLAMA, batch=1), 90),
    "latent-90": (_LATENT, 90),
    "latent-many-90": (dataclasses.replace(_LATENT, num_q_heads=128, page_size=0), 90),
    "hopper-90": (dataclasses.replace(_LATENT, num_q_heads=128), 90),
    "hopper-narrow-90": (dataclasses.replace(_LATENT, head_dim=192, v_head_dim=128), 90),
    "hopper-every-90": (
        dataclasses.replace(
            _LATENT, q_len=3, head_dim=48, v_head_dim=32, page_size=24, window=20, has_sinks=True, soft_cap=2.0
        ),
        90,
    ),
    "wide-90": (dataclasses.replace(_LLAMA, head_dim=256, v_head_dim=256, soft_cap=30.0), 90),
}


def main():
    for name in sys.argv[1:] or BUILDS:
        problem, capability = BUILDS[name]
        device = Device(platform="cuda", family=f"sm_{capability}", variant="nvidia-test", units=132)
        is_hopper = name.startswith("hopper")
        config = (hopper_space if is_hopper else space).heuristic(problem, device)
        call = hopper_forward if is_hopper else forward
        if name == "hopper-every-90":
            config = dataclasses.replace(config, halves_ahead=2)
        if name.startswith("cluster"):
            config = dataclasses.replace(config, num_programs=None, cluster=int(name.split("-")[1]))
        operands = jax.eval_shape(functools.partial(make_inputs, problem, "fwd"), jax.ShapeDtypeStruct((), jnp.int32))
        _, compiled = lower(
            functools.partial(call, problem, config),
            operands,
            capability=capability,
        )
        for launch in compiled:
            found = {"registers": launch.registers, "spills": launch.spill_bytes, "shared": launch.shared_bytes}
            slow = launch.ptx.count("ld.shared.b8") + launch.ptx.count("ld.shared.s8")
            found["products"] = launch.ptx.count("wgmma.mma_async")
            found |= {
                "clustered": getattr(config, "cluster", None) is not None,
                "waits": launch.ptx.count("barrier.cluster.wait.acquire"),
            }
            print(json.dumps({"name": name, "bytewise": slow, "copies": launch.ptx.count("cp.async"), **found}))


if __name__ == "__main__":
    main()
