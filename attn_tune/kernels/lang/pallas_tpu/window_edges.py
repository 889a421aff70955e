"""Windows over caches for kernels that hide keys before one by their logits, which a NaN survives.

What is before the page in which a window begins is cut from its row of the table; positions count from there. The
tokens between the window's begin and the next page, which are fewer than a page and seen by the first queries alone,
are attended by XLA.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.kernels.lang.cache import attend_to, merged
from attn_tune.ops.fields.cache import sizes_of


class Cut(NamedTuple):
    """The pages that a kernel walks.

    Attributes:
      table: of each sequence, its pages from the first that holds no token before its window; all exist.
      lengths: the tokens of each sequence in them; below zero where the window begins behind all pages.
      first: the first token that the first query of each sequence sees.
    """

    table: Int[Array, "B width"]
    lengths: Int[Array, " B"]
    first: Int[Array, " B"]


def cut(problem: Any, operands: Any, ends: Int[Array, " ends"]) -> Cut:
    """The pages of each sequence that hold no token before its window.

    Args:
      ends: the first query of each sequence, and the end of the last one.
    """
    p, o = problem, operands
    sizes = sizes_of(p.layout, o.k.shape)
    slots, pages = sizes["slot"], o.page_table.shape[1]
    lengths = jnp.clip(o.kv_lens, 0, slots * pages)
    new = ends[1:] - ends[:-1]
    first = jnp.zeros_like(lengths) if p.window is None else jnp.maximum(lengths - new - p.window, 0)
    before = -(-first // slots)
    column = jnp.minimum(jnp.arange(pages) + before[:, None], pages - 1)
    table = jnp.clip(jnp.take_along_axis(o.page_table, column, axis=1), 0, sizes["page"] - 1)
    return Cut(table.astype(jnp.int32), (lengths - before * slots).astype(jnp.int32), first)


def finished(
    problem: Any,
    operands: Any,
    q: Float[Array, "tokens N H"],
    ends: Int[Array, " ends"],
    longest: int,
    pages: Cut,
    kernel: tuple[Float[Array, "tokens N H"], Float[Array, "tokens N"]],
) -> tuple[Float[Array, "tokens N H"], Float[Array, "tokens N"]]:
    """The output and the lse of all rows: zero and minus infinity, or the sink, where nothing is seen.

    Args:
      longest: the most queries that a sequence has.
      kernel: the output and the natural lse over ``pages``, of rows that see nothing there whatever they are.
    """
    p, o = problem, operands
    (out, lse), tokens, slots = kernel, q.shape[0], sizes_of(p.layout, o.k.shape)["slot"]
    row = jnp.arange(tokens)
    sequence = jnp.clip(jnp.searchsorted(ends, row, side="right", method="scan_unrolled") - 1, 0, ends.shape[0] - 2)
    position = row - ends[sequence + 1] + pages.lengths[sequence]
    is_row = (row >= ends[0]) & (row < ends[-1])
    seen = is_row & (position >= 0)
    out = jnp.where(seen[:, None, None], out, 0)
    lse = jnp.where(seen[:, None], lse, -jnp.inf)
    if p.window is not None and slots > 1:
        out, lse = _with_edges(p, o, q, ends, (out, lse), pages.first, min(longest, slots - 1))
    if o.sinks is not None:
        sinks = jnp.where(is_row[:, None], o.sinks, -jnp.inf)
        wide, lse = merged((out.astype(jnp.float32), lse), (jnp.zeros(out.shape), sinks))
        out = wide.astype(out.dtype)
    return out, lse


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
