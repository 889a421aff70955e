"""Compiles the forward for Hopper without a GPU; prints a JSON line per build. Nothing is interpreted here."""

import functools
import json
import sys

import jax
import jax.numpy as jnp

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.block_sparse_attention.triton_hopper import space
from attn_tune.kernels.block_sparse_attention.triton_hopper.forward import forward
from attn_tune.kernels.block_sparse_attention.triton_hopper.limits import masked
from attn_tune.kernels.lang.gluon.attention.plan import shared_bytes
from attn_tune.ops.block_sparse_attention.inputs import make_inputs
from attn_tune.ops.block_sparse_attention.op import OP
from tests.kernels.triton_lowered import lower

H200 = device_from_kind("nvidia-h200")
_LLAMA = "block_sparse_attention/v1 b=1 t=8192 s=8192 n=32 k=8 h=128 v=128 dtype=bfloat16"
BUILDS = {
    "h128": _LLAMA + " causal=1",
    "h64": _LLAMA.replace("=128", "=64") + " causal=1 blocks=1n",
    "lengths": _LLAMA + " seg=1 len=1",
    "everything": _LLAMA.replace("8192", "300") + " left=99 right=9 bk=64 seg=1 cap=1",
}


def main():
    for name in sys.argv[1:] or BUILDS:
        problem = OP.from_signature(OP.parse_signature(BUILDS[name]))
        config = space.heuristic(problem, H200)
        inputs = jax.eval_shape(functools.partial(make_inputs, problem, "fwd"), jax.ShapeDtypeStruct((), jnp.int32))
        _, (launch,) = lower(functools.partial(forward, problem, config), inputs)
        found = {
            "name": name,
            "registers": launch.registers,
            "spills": launch.spill_bytes,
            "shared": launch.shared_bytes,
            "counted": shared_bytes(masked(problem), config),
            "products": launch.ptx.count("wgmma.mma_async"),
            "copies": launch.ptx.count("cp.async.bulk.tensor"),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
