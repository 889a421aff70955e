"""The array half of one update of a cache."""

from typing import NamedTuple

from jaxtyping import Array, Float, Int

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"


class Operands(NamedTuple):
    """Normalised arrays. Optional ones are None exactly when the problem says so.

    New token ``i`` of the ``T`` of a sequence goes to position ``kv_lens - T + i`` of it. Nothing is written for a
    position below zero or behind what the cache holds, for a page that does not exist, and for padding. No two tokens
    go to one place.

    Attributes:
      new_k: the keys of the new tokens; of a ragged call [tokens, K, H], one sequence after the other.
      new_v: their values.
      k: keys, in the order of axes of the problem's layout; of ``interleaved`` keys and values together.
      v: values, or None for ``interleaved``.
      page_table: for each sequence the pages of its tokens in order; None for a contiguous cache. Only entries of pages
        that new tokens go to count.
      kv_lens: tokens of each sequence in the cache, the new ones included.
      cu_q_lens: of a ragged call, the first new token of each sequence and the end of the last one; it never falls.
      k_scale, v_scale: float32 factors of the codes: one number, ``[K]``, or the axes of the cache but the last. The
        last are written.
    """

    new_k: Float[Array, "B T K H"] | Float[Array, "tokens K H"]
    new_v: Float[Array, "B T K V"] | Float[Array, "tokens K V"]
    k: Array
    v: Array | None
    page_table: Int[Array, "B pages"] | None
    kv_lens: Int[Array, " B"]
    cu_q_lens: Int[Array, " ends"] | None = None
    k_scale: Float[Array, "..."] | None = None
    v_scale: Float[Array, "..."] | None = None
