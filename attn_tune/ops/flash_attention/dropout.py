"""The choice of dropped softmax weights: a function of the seed and absolute indices, the same bits in every kernel.

The decision for (batch ``b``, query head ``n``, row ``i``, column ``j``) reads no tile index and no random state, so a
sharded, re-tiled or recomputed call drops exactly the same weights. ``mix`` is the 32-bit finaliser "lowbias32" of
Chris Wellons (hash-prospector). All arithmetic is uint32 and wraps.

Four weights share one hash, those of rows ``i & ~8`` and ``i | 8`` and columns ``j & ~8`` and ``j | 8``. One thread
holds the four in the accumulators of ``mma.m16n8k16`` and ``wgmma`` (PTX ISA, their matrix fragments), whichever way
round the tile is, and hashes once. What tells them apart is the last multiplier of ``mix``, ``FACTOR`` times
``ROW_FACTOR`` where the row has bit 3 and ``COLUMN_FACTOR`` where the column has it. The xorshift that ends ``mix`` is
left out: the high half of the bits would stay as it is.

For a uniform hash ``x`` the bits of the four are a lattice, ``x * (1, c, r, r * c)`` modulo ``2**32``. The two factors
were searched for its figures of merit, which are 1 at best (Steele and Vigna, "Computationally easy, spectrally good
multipliers for congruential pseudorandom number generators", arXiv 2001.05304): at least 0.94 for each two of the
weights, 0.79 for each three and 0.77 for the four.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

FACTOR = 0x846CA68B  # the last multiplier of lowbias32
ROW_FACTOR = 0x770D1A13
COLUMN_FACTOR = 0x74C90AA3


def threshold(rate: float) -> int:
    """A weight is kept if and only if its 32 bits are at least this."""
    return min(round(rate * 2**32), 2**32 - 1)


def mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Scrambles 32 bits; a bijection."""
    x = x ^ (x >> jnp.uint32(16))
    x = x * jnp.uint32(0x7FEB352D)
    x = x ^ (x >> jnp.uint32(15))
    x = x * jnp.uint32(FACTOR)
    return x ^ (x >> jnp.uint32(16))


def keep_bits(
    dropout: UInt32[Array, " 3"],
    *,
    batch: Int[Array, "..."],
    head: Int[Array, "..."],
    row: Int[Array, "..."],
    col: Int[Array, "..."],
) -> UInt32[Array, "..."]:
    """The 32 bits of each weight; the four index arrays broadcast against one another.

    ``batch`` and ``head`` count within this shard; ``dropout`` (seed, first batch, first head) makes them absolute.
    """
    seed, first_batch, first_head = (dropout[i].astype(jnp.uint32) for i in range(3))
    b = _u32(batch) + first_batch
    n = _u32(head) + first_head
    h = mix(seed + jnp.uint32(0x9E3779B9))
    h = mix(h ^ (b * jnp.uint32(0x85EBCA6B)))
    h = mix(h ^ (n * jnp.uint32(0xC2B2AE35)))
    i, j, eight = _u32(row), _u32(col), jnp.uint32(8)
    x = mix(h + (i & ~eight)) ^ ((j & ~eight) * jnp.uint32(0x27D4EB2F))
    x = x ^ (x >> jnp.uint32(16))
    x = x * jnp.uint32(0x7FEB352D)
    x = x ^ (x >> jnp.uint32(15))
    one = jnp.uint32(1)
    of_row = jnp.where((i & eight) != 0, jnp.uint32(ROW_FACTOR), one)
    of_column = jnp.where((j & eight) != 0, jnp.uint32(COLUMN_FACTOR), one)
    return x * (of_row * of_column * jnp.uint32(FACTOR))


def keep_mask(
    dropout: UInt32[Array, " 3"],
    rate: float,
    *,
    batch: Int[Array, "..."],
    head: Int[Array, "..."],
    row: Int[Array, "..."],
    col: Int[Array, "..."],
) -> Bool[Array, "..."]:
    """True where a weight is kept. Kept weights are to be divided by ``1 - rate``."""
    bits = keep_bits(dropout, batch=batch, head=head, row=row, col=col)
    return bits >= jnp.uint32(threshold(rate))


def _u32(x: Int[Array, "..."]) -> jax.Array:
    return jnp.asarray(x).astype(jnp.uint32)
