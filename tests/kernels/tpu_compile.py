"""Compiles TPU kernels with libtpu, which needs no TPU. Run as a script it prints one JSON line per case.

A script because libtpu wants a process of its own: it takes a lock of the whole machine, and its flags are read once.
"""

import json
import sys
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.registry import get_kernel
from attn_tune.kernels.spec import Search
from attn_tune.ops.block_sparse_attention import problem as sparse
from attn_tune.ops.contract import load
from attn_tune.ops.flash_attention import problem as attention
from attn_tune.ops.paged_decode import problem as decoding
from attn_tune.ops.ragged_paged import problem as ragged
from attn_tune.ops.registry import get_op
from attn_tune.tuner.offline.compilers.tpu import seeming, target_device
from attn_tune.tuner.offline.target import TOPOLOGIES

_CACHE = {"num_q_heads": 8, "num_kv_heads": 2, "head_dim": 128, "v_head_dim": 128, "page_size": 16, "has_sinks": True}
# The last are by kernel, for their layouts differ.
PROBLEMS = {
    "flash_attention": attention.Problem(
        batch=2, q_len=300, kv_len=520, num_q_heads=4, num_kv_heads=2, head_dim=80, v_head_dim=80, causal=True,
        scale=80**-0.5, has_sinks=True, has_segments=True,
    ),
    "block_sparse_attention": sparse.Problem(
        batch=2, q_len=300, kv_len=520, num_q_heads=4, num_kv_heads=2, head_dim=128, v_head_dim=128, causal=True,
        scale=0.1, block_dims="b1",
    ),
    "paged_decode/pallas_tpu_paged": decoding.Problem(
        batch=3, q_len=2, kv_len=520, layout="head_first", window=100, scale=0.1, kv_dtype="float8_e4m3fn",
        kv_scale="head", **_CACHE,
    ),
    "paged_decode/pallas_tpu_ragged": decoding.Problem(
        batch=3, q_len=1, kv_len=300, layout="interleaved", scale=0.1, soft_cap=30.0, **_CACHE
    ),
    "ragged_paged/pallas_tpu_ragged": ragged.Problem(
        batch=3, tokens=60, kv_len=300, layout="interleaved", window=100, scale=0.1, kv_dtype="int8",
        kv_scale="tensor", **_CACHE,
    ),
    "paged_decode/tokamax_batched_rpa": decoding.Problem(
        batch=3, q_len=2, kv_len=300, layout="interleaved", scale=0.1, soft_cap=30.0, kv_dtype="float8_e4m3fn",
        kv_scale="tensor", **_CACHE,
    ),
    "ragged_paged/tokamax_batched_rpa": ragged.Problem(
        batch=3, tokens=60, kv_len=300, layout="interleaved", window=100, scale=0.1, **_CACHE
    ),
}  # fmt: skip


def compiled(kernel: str, direction: str, target: str) -> str:
    """``"compiled"``, or the compiler's error."""
    spec, device = get_kernel(kernel), device_from_kind(target)
    problem = PROBLEMS.get(kernel) or PROBLEMS[spec.op]
    search = spec.searches[direction]
    assert spec.unsupported(problem, direction, device) is None
    config = search.heuristic(problem, device)
    return compile_error(spec.op, problem, search, config, direction=direction, target=target) or "compiled"


def compile_error(op: str, problem: Any, search: Search, config: Any, *, direction: str, target: str) -> str | None:
    """The error of Mosaic or of the compiler at a kernel's call with a config, of inputs as the op makes them."""
    device, make_inputs, call = target_device(TOPOLOGIES[target]), load(get_op(op).inputs), load(search.call)
    sharding = SingleDeviceSharding(device)
    inputs = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        jax.eval_shape(lambda seed: make_inputs(problem, direction, seed), 0),
    )
    try:
        with seeming(device):
            traced = jax.jit(lambda x: call(problem, config, x)).trace(inputs)
            lowered = traced.lower(lowering_platforms=("tpu",))
        lowered.compile()
    except Exception as error:  # Of JAX's kernels and of Mosaic's lowering, each of another type.
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    for case in sys.argv[1:]:
        print(json.dumps({"case": case, "result": compiled(*case.split(","))}), flush=True)
