"""The array half of one call over sequences with different numbers of new tokens."""

from typing import NamedTuple

from jaxtyping import Array, Float, Int

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"


class Operands(NamedTuple):
    """Normalised arrays. Optional ones are None exactly when the problem says so.

    Sizes that the problem does not say, the number of pages and the width of the page table, are those of the arrays.
    Only tokens that some query of their sequence sees count: before ``kv_lens`` and, with a window, not before that of
    the first query. All else may be anything: keys and values that are not finite, and in the table pages that do not
    exist or are another sequence's. Queries of no sequence may be anything too; their output is zero and their lse
    minus infinity.

    Attributes:
      q: the queries of the new tokens ``[tokens, N, H]``, one sequence after the other.
      k: keys, in the order of axes of the problem's layout; of ``interleaved`` and ``latent`` keys and values together.
      v: values, or None for these.
      page_table: for each sequence the pages of its tokens in order; None for a contiguous cache.
      kv_lens: tokens of each sequence in the cache, the new ones included; below 0 counts as 0, and above what
        the cache holds as that.
      cu_q_lens: the first query of each sequence, 0 of the first, and the end of the last one; it never falls.
      sinks: one logit a query head.
      k_scale, v_scale: float32 factors of the codes: one number, ``[K]``, or the axes of the cache but the last; of
        ``latent`` the same twice. None of a cache of bytes, which holds those of its blocks of columns.
      q_scale: float32 factors of queries that are codes: one number or ``[tokens, N]``; None of all others.
    """

    q: Array
    k: Array
    v: Array | None
    page_table: Int[Array, "B pages"] | None
    kv_lens: Int[Array, " B"]
    cu_q_lens: Int[Array, " ends"]
    sinks: Float[Array, " N"] | None = None
    k_scale: Float[Array, "..."] | None = None
    v_scale: Float[Array, "..."] | None = None
    q_scale: Float[Array, "..."] | None = None
