"""Ragged attention over a paged cache beside its peers: one run, one device, interleaved, device time, cold cache.

    python benchmarks/ragged_paged_peers.py --grid llama3-8b-ragged --out ragged.json
    python benchmarks/ragged_paged_peers.py --only float8-queries/ --out queries.json \
        --peers triton_8bit,triton_8bit_8_warps,triton_8bit_128_keys,wide_queries,wide_queries_hopper,wide_cache

For each point what ``attn_tune.ragged_paged`` chooses, the untuned ``triton`` kernel and the one for Hopper, ``triton``
without a launch of its own for sequences that decode, the tile that vLLM's unified kernel has (16 rows, 32 keys, one
launch), our forward over contiguous arrays of the same lengths, and cuDNN's through ``jax.nn.dot_product_attention``;
where ``flash_attn3_jax`` is installed and sequences are alike, FlashAttention-3 over the same pages. Where
queries are codes, ``triton_8bit`` with three tiles stands beside ``triton`` and the kernel for Hopper with the same
queries in 16 bits, and the latter with the cache in 16 bits too. A row says microseconds and the worst error as a
multiple of what is allowed. A GPU is needed.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from paged_decode_peers import fa3, options, record

from attn_tune.ops.ragged_paged.operands import Operands
from attn_tune.ops.ragged_paged.problem import Problem


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    return record("ragged_paged", _PEERS, "llama3-8b-ragged", str(__doc__), arguments)


def _ours(make: Callable[[Problem], Any], p: Problem, o: Operands) -> Any:
    import attn_tune

    chosen = make(p)

    def call(o: Operands) -> Any:
        more = options(p, o) | {"q_scale": o.q_scale, "out_dtype": p.dtype} | chosen
        return attn_tune.ragged_paged(o.q, o.k, o.v, o.kv_lens, o.cu_q_lens, o.page_table, **more)

    return call, (o,)


def _auto(p: Problem) -> dict[str, Any]:
    return {}


def _kernel(name: str, p: Problem) -> dict[str, Any]:
    return {"platform": name}


def _changed(kernel: str, knobs: dict[str, Any], p: Problem) -> dict[str, Any]:
    """The untuned config of a kernel with other values of some knobs."""
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel

    untuned = get_kernel(f"ragged_paged/{kernel}").searches["fwd"].heuristic(p, current_device())
    return {"platform": kernel, "cfg": dataclasses.replace(untuned, **knobs)}


def _wide(kernel: str, keeps_codes: bool, p: Problem, o: Operands) -> Any:
    """A kernel with queries that are codes in 16 bits, and with ``keeps_codes`` false with keys and values so too."""
    import jax.numpy as jnp

    if p.q_scale == "none" or p.kv_scale not in ("none", "tensor") or o.v is None:
        return "only with queries that are codes, and one scale of all keys and of all values, which lie apart"

    def wide(x: Any, scale: Any) -> Any:
        return (x.astype(jnp.float32) * (1 if scale is None else scale)).astype(p.dtype)

    o = o._replace(q=wide(o.q, o.q_scale[..., None] if p.q_scale == "token" else o.q_scale), q_scale=None)
    p = dataclasses.replace(p, q_scale="none")
    if not keeps_codes:
        o = o._replace(k=wide(o.k, o.k_scale), v=wide(o.v, o.v_scale), k_scale=None, v_scale=None)
        p = dataclasses.replace(p, kv_dtype="same", kv_scale="none")
    return _ours(functools.partial(_kernel, kernel), p, o)


def _contiguous(p: Problem, o: Operands) -> Any:
    """Queries, keys and values ``[B, T, heads, H]`` of sequences that are all alike, or why there are none."""
    import jax.numpy as jnp

    if p.workload != "eq" or p.tokens % p.batch or p.kv_dtype != "same" or not p.page_size or p.layout != "nhd":
        return "not with sequences of different lengths, or codes"
    if p.window is not None or p.has_sinks or p.soft_cap is not None or not p.causal:
        return "only with a causal mask and nothing else"
    table = jnp.clip(o.page_table, 0, o.k.shape[0] - 1)
    k, v = (jnp.where(jnp.isnan(x), 0, x)[table].reshape(p.batch, -1, *x.shape[2:])[:, : p.kv_len] for x in (o.k, o.v))
    return o.q.reshape(p.batch, -1, *o.q.shape[1:]), k, v


def _own_contiguous(p: Problem, o: Operands) -> Any:
    import attn_tune

    if isinstance(given := _contiguous(p, o), str):
        return given

    def call(q: Any, k: Any, v: Any) -> Any:
        return attn_tune.flash_attention(q, k, v, causal=True).reshape(o.q.shape)

    return call, given


def _cudnn(p: Problem, o: Operands) -> Any:
    import jax

    if isinstance(given := _contiguous(p, o), str):
        return given
    if p.tokens != p.batch * p.kv_len:
        return "its causal mask begins at the first key"

    def call(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn").reshape(o.q.shape)

    return call, given


def _fa3(p: Problem, o: Operands) -> Any:
    if p.workload != "eq" or p.tokens % p.batch or not p.causal:
        return "not with sequences of different lengths, or without a causal mask"
    return fa3(1, p, o, lambda q: q.reshape(p.batch, -1, *q.shape[1:]), is_causal=True)


_ONE_LAUNCH = {"decode_programs": None, "decode_block_k": 64}
_SMALL_TILE = _ONE_LAUNCH | {"block_q": 16, "block_k": 32, "num_warps": 4, "num_stages": 3}
_PEERS: dict[str, Callable[[Problem, Operands], Any]] = {
    "auto": functools.partial(_ours, _auto),
    "triton": functools.partial(_ours, functools.partial(_kernel, "triton")),
    "triton_hopper": functools.partial(_ours, functools.partial(_kernel, "triton_hopper")),
    "one_launch": functools.partial(_ours, functools.partial(_changed, "triton", _ONE_LAUNCH)),
    "small_tile": functools.partial(
        _ours,
        functools.partial(_changed, "triton", _SMALL_TILE),
    ),
    "triton_8bit": functools.partial(_ours, functools.partial(_kernel, "triton_8bit")),
    "triton_8bit_8_warps": functools.partial(_ours, functools.partial(_changed, "triton_8bit", {"num_warps": 8})),
    "triton_8bit_128_keys": functools.partial(
        _ours, functools.partial(_changed, "triton_8bit", {"num_warps": 8, "block_k": 128})
    ),
    "wide_queries": functools.partial(_wide, "triton", True),
    "wide_queries_hopper": functools.partial(_wide, "triton_hopper", True),
    "wide_cache": functools.partial(_wide, "triton_hopper", False),
    "own_contiguous": _own_contiguous,
    "cudnn_contiguous": _cudnn,
    "fa3": _fa3,
}

if __name__ == "__main__":
    sys.exit(main())
