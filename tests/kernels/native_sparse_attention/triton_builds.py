"""Compiles the Triton kernels without a GPU; prints a JSON line per launch. Not interpreted: a script."""

import functools
import json
import sys

import jax
import jax.numpy as jnp

from attn_tune.kernels.native_sparse_attention.triton import SPEC
from attn_tune.ops.contract import load
from attn_tune.ops.native_sparse_attention.inputs import make_inputs
from attn_tune.ops.native_sparse_attention.op import OP
from attn_tune.schema.device import Device
from tests.kernels.triton_lowered import lower

_PAPER = "native_sparse_attention/v1 b=1 t=8192 s=8192 n=64 k=4 h=128 v=128 top=16 dtype=bfloat16"
BUILDS = {
    "paper-90": (_PAPER, 90),
    "paper-80": (_PAPER, 80),
    "wide-90": (_PAPER.replace("h=128", "h=256").replace("v=128", "v=256"), 90),
    "small-90": (_PAPER.replace("n=64", "n=4").replace("dtype", "block=16 dtype") + " ragged=1", 90),
    "float32-90": (_PAPER.replace("bfloat16", "float32"), 90),
    "unequal-90": (_PAPER.replace("h=128", "h=192").replace("n=64", "n=48"), 90),
}


def main():
    for name in sys.argv[1:] or BUILDS:
        text, capability = BUILDS[name]
        problem = OP.from_signature(OP.parse_signature(text))
        device = Device(platform="cuda", family=f"sm_{capability}", variant="nvidia-test", units=132)
        for direction, search in SPEC.searches.items():
            config = search.heuristic(problem, device)
            given = jax.eval_shape(
                functools.partial(make_inputs, problem, direction), jax.ShapeDtypeStruct((), jnp.int32)
            )
            _, launches = lower(functools.partial(load(search.call), problem, config), given, capability=capability)
            for launch in launches:
                found = {"registers": launch.registers, "spills": launch.spill_bytes, "shared": launch.shared_bytes}
                copies = launch.ptx.count("cp.async.cg")
                print(json.dumps({"name": name, "launch": launch.name, "copies": copies} | found), flush=True)


if __name__ == "__main__":
    main()
