"""The pages of each sequence that all of its queries see whole, and the tokens beside them.

The kernel is given whole pages alone. It masks none of them, so that it needs no window and no order among queries, and
nothing that it reads belongs to no query: it multiplies what it masks by zero, which a NaN survives. The tokens of the
pages at both edges, fewer than two pages a sequence, are attended by XLA.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from attn_tune.kernels.paged_decode.pallas_tpu_paged.width import table_width


class Pages(NamedTuple):
    """Places of the tokens of each sequence.

    Attributes:
      table: the numbers of whole pages in order, then that of the first of them again; every one exists.
      counts: whole pages.
      token: tokens at the edges.
      is_edge: which of ``token`` there are.
    """

    table: Int[Array, "B pages"]
    counts: Int[Array, " B"]
    token: Int[Array, "B edge"]
    is_edge: Bool[Array, "B edge"]


def pages_of(
    table: Int[Array, "B pages"],
    lengths: Int[Array, " B"],
    *,
    q_len: int,
    page_size: int,
    window: int | None,
    num_pages: int,
    multiple: int,
) -> Pages:
    """The pages and edges of sequences of ``lengths`` tokens, the last ``q_len`` of which are queries.

    Args:
      lengths: at most what the table holds.
      num_pages: those that exist.
      multiple: of which the new table's width is one.
    """
    # The last query has the latest begin, the first one the earliest end.
    if window is None:
        first, begin = jnp.zeros_like(lengths), jnp.zeros_like(lengths)
    else:
        first = jnp.maximum(lengths - q_len - window, 0)
        begin = -(-jnp.maximum(lengths - 1 - window, 0) // page_size)
    end = jnp.maximum(jnp.maximum(lengths - q_len + 1, 0) // page_size, begin)
    counts = end - begin

    width = table_width(table.shape[1], page_size, window)
    column = jnp.arange(-(-width // multiple) * multiple)
    column = begin[:, None] + jnp.where(column < counts[:, None], column, 0)
    whole = jnp.take_along_axis(table, jnp.minimum(column, table.shape[1] - 1), axis=1)

    # Either edge is shorter than a page and the queries together.
    offset = jnp.arange(page_size + q_len - 2) if page_size + q_len > 2 else jnp.arange(1)
    tail = end[:, None] * page_size + offset
    token, is_edge = tail, tail < lengths[:, None]
    if window is not None:
        head = first[:, None] + offset
        is_head = head < jnp.minimum(begin * page_size, lengths)[:, None]
        token, is_edge = jnp.concatenate([head, token], axis=1), jnp.concatenate([is_head, is_edge], axis=1)
    return Pages(table=jnp.clip(whole, 0, num_pages - 1), counts=counts, token=token, is_edge=is_edge)
