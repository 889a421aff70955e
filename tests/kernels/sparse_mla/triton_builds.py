"""Compiles the Triton kernels without a GPU; prints a JSON line a launch. A script, so that nothing is interpreted."""

import json
import sys

from attn_tune.kernels.registry import get_kernel
from attn_tune.kernels.sparse_mla.triton.config import Config
from attn_tune.kernels.sparse_mla.triton.limits import shared_bytes
from attn_tune.ops.registry import get_op
from attn_tune.schema.device import Device
from tests.kernels.triton_lowered import launches

_H100 = Device(platform="cuda", family="sm_90", variant="nvidia-test", units=132)
_DEEPSEEK = "sparse_mla/v1 b=1 t=4096 s=32768 n=128 h=576 v=512 top=2048 dtype=bfloat16"
BUILDS = {
    "narrow": ("triton", "sparse_mla/v1 b=1 t=4096 s=4096 n=64 h=192 v=128 top=512 dtype=bfloat16"),
    "hopper": ("triton_hopper", _DEEPSEEK),
    "indexer": ("triton", "indexer/v1 b=1 t=4096 s=32768 n=64 h=128 dtype=bfloat16"),
}


# Capability, dtype, columns of keys and latents, and tile: cases of how shared memory is counted ahead.
SIZES = {
    f"{case[0]} {case[1]}": case
    for case in (
        (80, "bfloat16", 576, 512, 16, 64),
        (80, "float32", 128, 128, 64, 32),
        (90, "bfloat16", 576, 512, 64, 64),
        (90, "float32", 128, 128, 64, 32),
        (100, "bfloat16", 576, 512, 64, 32),
        (120, "float32", 192, 128, 32, 32),
    )
}
# Float32 of an Ampere is counted as that of a Blackwell of 12.0.
KEPT = ("80 bfloat16", "90 bfloat16", "90 float32", "100 bfloat16", "120 float32", *BUILDS)


def main():
    names = sys.argv[1:] or [*SIZES, *BUILDS]
    for name in (name for name in names if name in SIZES):
        capability, dtype, h, v, block_n, block_k = SIZES[name]
        op = get_op("sparse_mla")
        text = f"sparse_mla/v1 b=1 t=64 s=4096 n=128 h={h} v={v} top=2048 dtype={dtype}"
        problem = op.from_signature(op.parse_signature(text))
        config = Config(block_n=block_n, block_k=block_k, num_warps=8 if block_n > 16 else 4, num_stages=2)
        (launch,) = launches(
            op, problem, get_kernel("sparse_mla/triton").searches["fwd"], config, capability=capability
        )
        device = Device(platform="cuda", family=f"sm_{capability}", variant="nvidia-test", units=132)
        counted = shared_bytes(problem, device, config)
        print(json.dumps({"name": name, "shared": launch.shared_bytes, "counted": counted}))
    for name in (name for name in names if name in BUILDS):
        kernel, text = BUILDS[name]
        op = get_op(text.partition("/")[0])
        problem = op.from_signature(op.parse_signature(text))
        search = get_kernel(f"{op.name}/{kernel}").searches["fwd"]
        (launch,) = launches(op, problem, search, search.heuristic(problem, _H100))
        found = {"wgmma": launch.ptx.count("wgmma.mma_async"), "copies": launch.ptx.count("cp.async.cg")}
        print(json.dumps({"name": name, "spills": launch.spill_bytes, **found}))


if __name__ == "__main__":
    main()
