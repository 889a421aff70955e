"""The op's contract on top of cuDNN's call: whole pages are its own, the tokens of a last page are attended here.

cuDNN multiplies what lies behind a sequence by a weight of zero, and what lies there may be no number. So it is given
only pages that are full; a sequence's last page, where it is not, is gathered, and both are joined by their lse.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.kernels.lang.libraries.cudnn_paged import paged_call
from attn_tune.kernels.paged_decode.cudnn.config import Config
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem

# Pages that a contiguous cache is cut into: the largest power of two that divides it, in these bounds.
_LEAST_SLOTS, _MOST_SLOTS = 16, 64


class _Pages(NamedTuple):
    """A cache in pages, and a table that names pages which exist.

    Attributes:
      k, v: keys and values, ``[pages, P, K, H]`` or ``[pages, K, P, H]``.
      table: the pages of each sequence.
      slots: tokens of a page.
    """

    k: Array
    v: Array
    table: Int[Array, "B pages"]
    slots: int


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32.

    Each query is a row of its own, with its own length: cuDNN's causal edge starts at the top left.
    """
    p, o = problem, operands
    batch, q_len, heads, width = o.q.shape
    cache = _pages(p, o)
    # A contiguous cache may have been padded to whole pages.
    capacity = o.k.shape[1] if o.page_table is None else cache.slots * cache.table.shape[1]
    q = o.q.reshape(batch * q_len, heads, width)
    table = jnp.repeat(cache.table, q_len, axis=0)
    lengths = jnp.clip(o.kv_lens, 0, capacity)[:, None] - q_len + 1 + jnp.arange(q_len)
    lengths = jnp.maximum(lengths, 0).reshape(-1)
    full = lengths // cache.slots

    # Behind the full pages the first one stands in, which is full too; without any the result is not used.
    named = jnp.where(jnp.arange(table.shape[1]) < full[:, None], table, table[:, :1])
    out, lse = paged_call(
        q,
        cache.k,
        cache.v,
        jnp.maximum(full * cache.slots, 1),
        named,
        scale=p.scale,
        heads_first=p.layout == "hnd",
    )
    lse = jnp.where(full[:, None] > 0, lse, -jnp.inf)

    last = jnp.take_along_axis(table, jnp.minimum(full, table.shape[1] - 1)[:, None], axis=1)[:, 0]
    logits, values = _last_page(p, cache, q, last, lengths - full * cache.slots)
    parts = [lse, jax.nn.logsumexp(logits, axis=-1).reshape(lse.shape)]
    if o.sinks is not None:
        parts.append(jnp.broadcast_to(o.sinks.astype(jnp.float32), lse.shape))
    total = jax.nn.logsumexp(jnp.stack(parts), axis=0)
    shift = jnp.where(jnp.isneginf(total), 0.0, total)
    share = jnp.exp(lse - shift)[..., None]
    weights = jnp.exp(logits - shift.reshape(*logits.shape[:-1], 1)).astype(values.dtype)
    rest = jnp.einsum("rkgs,rskh->rkgh", weights, values, preferred_element_type=jnp.float32)
    joined = jnp.where(share > 0, out.astype(jnp.float32) * share, 0.0) + rest.reshape(out.shape)
    return {
        "out": joined.astype(o.q.dtype).reshape(o.q.shape),
        "lse": total.reshape(batch, q_len, heads),
    }


def _pages(p: Problem, o: Operands) -> _Pages:
    """The cache in pages. A contiguous one is cut, and copied only if no such page divides it."""
    assert o.v is not None, "limits.py refuses interleaved caches"
    if o.page_table is not None:
        table = jnp.clip(o.page_table, 0, o.k.shape[0] - 1)
        return _Pages(o.k, o.v, table, o.k.shape[2 if p.layout == "hnd" else 1])
    batch, capacity = o.k.shape[:2]
    slots = min(_MOST_SLOTS, capacity & -capacity)
    more = 0
    if slots < _LEAST_SLOTS:
        slots, more = _LEAST_SLOTS, -capacity % _LEAST_SLOTS
    width = (capacity + more) // slots

    def cut(x: Array) -> Array:
        if more:
            x = jnp.pad(x, ((0, 0), (0, more), (0, 0), (0, 0)))
        return x.reshape(batch * width, slots, *x.shape[2:])

    return _Pages(cut(o.k), cut(o.v), jnp.arange(batch * width, dtype=jnp.int32).reshape(batch, width), slots)


def _last_page(
    p: Problem, cache: _Pages, q: Float[Array, "R N H"], page: Int[Array, " R"], count: Int[Array, " R"]
) -> tuple[Float[Array, "R K group P"], Float[Array, "R P K H"]]:
    """The logits of the first ``count`` tokens of a page, minus infinity of all others, and values, zero likewise."""
    k, v = (jnp.swapaxes(x[page], 1, 2) if p.layout == "hnd" else x[page] for x in (cache.k, cache.v))
    counts = jnp.arange(cache.slots) < count[:, None]
    k, v = (jnp.where(counts[:, :, None, None], x, 0) for x in (k, v))
    grouped = q.reshape(q.shape[0], k.shape[2], -1, q.shape[2])
    logits = jnp.einsum("rkgh,rskh->rkgs", grouped, k, preferred_element_type=jnp.float32) * p.scale
    return jnp.where(counts[:, None, None, :], logits, -jnp.inf), v
