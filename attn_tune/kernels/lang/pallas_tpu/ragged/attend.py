"""Ragged attention over JAX's kernel: what an op asks for and the kernel does not do by itself.

The kernel wants at least one token of every sequence and a query of the last one, reads all pages of a sequence from
the first, and hides keys before a window by adding to their logits, which a NaN survives. So what is before the page in
which a window begins is cut from its row of the table; positions count from there. The tokens between the window's
begin and the next page, which are fewer than a page and seen by the first queries alone, are attended by XLA.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.kernels.lang.cache import attend_to, merged
from attn_tune.kernels.lang.pallas_tpu.ragged.config import Config
from attn_tune.kernels.lang.pallas_tpu.ragged.launch import launch
from attn_tune.ops.fields.cache import SAME, sizes_of


def attend(
    problem: Any, config: Config, operands: Any, q: Float[Array, "tokens N H"], ends: Int[Array, " ends"], longest: int
) -> tuple[Float[Array, "tokens N H"], Float[Array, "tokens N"]]:
    """The output in q's dtype and the natural lse in float32; zero and minus infinity, or the sink, where nothing is.

    Args:
      operands: the cache, its table, lengths and scales, and the sinks.
      q: the queries of all sequences, and padding.
      ends: the first query of each sequence, and the end of the last one.
      longest: the most queries that a sequence has.
    """
    p, o = problem, operands
    sizes, tokens = sizes_of(p.layout, o.k.shape), q.shape[0]
    slots, pages = sizes["slot"], o.page_table.shape[1]
    lengths = jnp.clip(o.kv_lens, 0, slots * pages)
    new = ends[1:] - ends[:-1]
    # The first token that the first query sees, and the first page that holds no token before it.
    first = jnp.zeros_like(lengths) if p.window is None else jnp.maximum(lengths - new - p.window, 0)
    cut = -(-first // slots)
    column = jnp.minimum(jnp.arange(pages) + cut[:, None], pages - 1)
    table = jnp.clip(jnp.take_along_axis(o.page_table, column, axis=1), 0, sizes["page"] - 1)
    left = lengths - cut * slots

    # A sequence without queries, or with nothing to see, takes one block, of which nothing is used.
    given = jnp.where(new > 0, jnp.maximum(left, 1), 1)
    # Behind the last sequence with queries the kernel would start copies that nothing waits for; before the first one
    # too, if there is none.
    count = jnp.max(jnp.where(new > 0, jnp.arange(1, new.shape[0] + 1), 1))
    given_ends = jnp.where(ends[-1] > 0, ends, (jnp.arange(ends.shape[0]) > 0).astype(ends.dtype))
    out, lse = launch(
        config,
        q,
        o.k,
        given.astype(jnp.int32),
        table.astype(jnp.int32),
        given_ends.astype(jnp.int32),
        count.astype(jnp.int32)[None],
        _scales(p, o),
        scale=p.scale,
        window=None if p.window is None else p.window + 1,
        soft_cap=p.soft_cap,
    )
    row = jnp.arange(tokens)
    sequence = jnp.clip(jnp.searchsorted(ends, row, side="right") - 1, 0, new.shape[0] - 1)
    position = row - ends[sequence + 1] + left[sequence]
    seen = (row >= ends[0]) & (row < ends[-1]) & (position >= 0)
    out = jnp.where(seen[:, None, None], out, 0)
    lse = jnp.where(seen[:, None], lse, -jnp.inf)
    if p.window is not None and slots > 1:
        out, lse = _with_edges(p, o, q, ends, (out, lse), first, min(longest, slots - 1))
    if o.sinks is not None:
        is_row = (row >= ends[0]) & (row < ends[-1])
        sinks = jnp.where(is_row[:, None], o.sinks, -jnp.inf)
        wide, lse = merged((out.astype(jnp.float32), lse), (jnp.zeros(out.shape), sinks))
        out = wide.astype(q.dtype)
    return out, lse


def _scales(p: Any, o: Any) -> Float[Array, " two"] | None:
    if p.kv_dtype == SAME:
        return None
    return jnp.ones(2) if o.k_scale is None else jnp.stack([o.k_scale, o.v_scale]).astype(jnp.float32)


def _with_edges(
    p: Any,
    o: Any,
    q: Float[Array, "tokens N H"],
    ends: Int[Array, " ends"],
    kernel: tuple[Array, Array],
    first: Int[Array, " B"],
    count: int,
) -> tuple[Array, Array]:
    """The outputs of the kernel joined with those over the tokens before its first page.

    Args:
      first: the first token that the first query of a sequence sees.
      count: the queries of a sequence that may see such tokens.
    """
    tokens, slots = q.shape[0], sizes_of(p.layout, o.k.shape)["slot"]
    index = jnp.arange(count)
    row = ends[:-1, None] + index
    is_row = row < ends[1:, None]
    place = jnp.minimum(row, tokens - 1)
    lengths = jnp.clip(o.kv_lens, 0, slots * o.page_table.shape[1])
    position = jnp.where(is_row, row - ends[1:, None] + lengths[:, None], -1)
    token = first[:, None] + jnp.arange(slots - 1)
    stop = jnp.minimum(-(-first // slots) * slots, lengths)
    rows = jnp.where(is_row[..., None, None], q[place], 0)
    sequences = jnp.arange(row.shape[0])
    edges = attend_to(p, o._replace(sinks=None), rows, sequences, position, token, token < stop[:, None])
    out, lse = kernel
    both, both_lse = merged((out[place].astype(jnp.float32), lse[place]), edges)
    # What is no row goes to a place that does not exist.
    place = jnp.where(is_row, row, tokens)
    return out.at[place].set(both.astype(out.dtype), mode="drop"), lse.at[place].set(both_lse, mode="drop")
