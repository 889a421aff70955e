"""Compiles the Triton kernels without a GPU; prints a JSON line a launch. A script, so that nothing is interpreted."""

import functools
import json

import jax
import jax.numpy as jnp

from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.contract import load
from attn_tune.ops.registry import get_op
from attn_tune.schema.device import Device
from tests.kernels.triton_lowered import lower

_H100 = Device(platform="cuda", family="sm_90", variant="nvidia-test", units=132)
_DEEPSEEK = "sparse_mla/v1 b=1 t=4096 s=32768 n=128 h=576 v=512 top=2048 dtype=bfloat16"
BUILDS = {
    "narrow": ("triton", "sparse_mla/v1 b=1 t=4096 s=4096 n=64 h=192 v=128 top=512 dtype=bfloat16"),
    "hopper": ("triton_hopper", _DEEPSEEK),
    "indexer": ("triton", "indexer/v1 b=1 t=4096 s=32768 n=64 h=128 dtype=bfloat16"),
}


def main():
    for name, (kernel, text) in BUILDS.items():
        op = get_op(text.partition("/")[0])
        problem = op.from_signature(op.parse_signature(text))
        search = get_kernel(f"{op.name}/{kernel}").searches["fwd"]
        forward = functools.partial(load(search.call), problem, search.heuristic(problem, _H100))
        made = functools.partial(load(op.inputs), problem, "fwd")
        _, (launch,) = lower(forward, jax.eval_shape(made, jax.ShapeDtypeStruct((), jnp.int32)), capability=90)
        found = {"wgmma": launch.ptx.count("wgmma.mma_async"), "copies": launch.ptx.count("cp.async.cg")}
        print(json.dumps({"name": name, "spills": launch.spill_bytes, **found}))


if __name__ == "__main__":
    main()
