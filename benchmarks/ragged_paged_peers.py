"""Ragged attention over a paged cache beside its peers: one run, one device, interleaved, device time, cold cache.

    python benchmarks/ragged_paged_peers.py --grid llama3-8b-ragged --out ragged.json

For each point what ``attn_tune.ragged_paged`` chooses, the untuned ``triton`` kernel and the one for Hopper, ``triton``
without a launch of its own for sequences that decode, the tile that vLLM's unified kernel has (16 rows, 32 keys, one
launch), our forward over contiguous arrays of the same lengths, and cuDNN's through ``jax.nn.dot_product_attention``;
where ``flash_attn3_jax`` is installed and sequences are alike, FlashAttention-3 over the same pages. A row says
microseconds and the worst error as a multiple of what is allowed. A GPU is needed.
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
        return attn_tune.ragged_paged(o.q, o.k, o.v, o.kv_lens, o.cu_q_lens, o.page_table, **options(p, o), **chosen)

    return call, (o,)


def _auto(p: Problem) -> dict[str, Any]:
    return {}


def _kernel(name: str, p: Problem) -> dict[str, Any]:
    return {"platform": name}


def _one_launch(p: Problem) -> dict[str, Any]:
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.ragged_paged.triton.space import heuristic

    config = dataclasses.replace(heuristic(p, current_device()), decode_programs=None, decode_block_k=64)
    return {"platform": "triton", "cfg": config}


def _small_tile(p: Problem) -> dict[str, Any]:
    from attn_tune.kernels.ragged_paged.triton.config import Config

    return {"platform": "triton", "cfg": Config(block_q=16, block_k=32, num_warps=4, num_stages=3)}


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


_PEERS: dict[str, Callable[[Problem, Operands], Any]] = {
    "auto": functools.partial(_ours, _auto),
    "triton": functools.partial(_ours, functools.partial(_kernel, "triton")),
    "triton_hopper": functools.partial(_ours, functools.partial(_kernel, "triton_hopper")),
    "one_launch": functools.partial(_ours, _one_launch),
    "small_tile": functools.partial(_ours, _small_tile),
    "own_contiguous": _own_contiguous,
    "cudnn_contiguous": _cudnn,
    "fa3": _fa3,
}

if __name__ == "__main__":
    sys.exit(main())
