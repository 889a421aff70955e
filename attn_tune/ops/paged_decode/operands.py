"""The array half of one decoding call."""

from typing import NamedTuple

from jaxtyping import Array, Float, Int

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"


class Operands(NamedTuple):
    """Normalised arrays. Optional ones are None exactly when the problem says so.

    Sizes that the problem does not say, the number of pages and the width of the page table, are those of the arrays.
    Only the keys and values of a sequence's first ``kv_lens`` tokens count. All else in the caches, in the pages and in
    the tails of the table may be anything: NaN, numbers of pages that do not exist, pages of other sequences.

    Attributes:
      q: the queries of the new tokens.
      k: keys, in the order of axes of the problem's layout; of ``interleaved`` keys and values together.
      v: values, or None for ``interleaved``.
      page_table: for each sequence the pages of its tokens in order; None for a contiguous cache.
      kv_lens: tokens of each sequence in the cache, the new ones included, from 0 to what the cache holds.
      sinks: one logit a query head.
      k_scale, v_scale: float32 factors of the codes: one number, ``[K]``, or the axes of the cache but the last.
    """

    q: Float[Array, "B T N H"]
    k: Array
    v: Array | None
    page_table: Int[Array, "B pages"] | None
    kv_lens: Int[Array, " B"]
    sinks: Float[Array, " N"] | None = None
    k_scale: Float[Array, "..."] | None = None
    v_scale: Float[Array, "..."] | None = None
