"""Decays within tiles: products of the gates of several tokens, and products of tokens that decay in between.

With a gate a head a matrix has the decay from each token of a tile to each other one. With a gate a channel every pair
of tokens has its own decay in each channel; all are formed for neighbours alone. Other pairs meet at one level of
halving, one token in the first half of a block and one in the second: the first one decays to the end of its half, the
second one from there on, and a product sums over the channels.

No logarithm is above zero, and none is the difference of two sums, which behind a gate of -128 would be right to 1e-5.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attn_tune.kernels.lang.xla.linear.products import product

# Tokens of a block whose decays are all formed: more cost more than a level of halving.
_NEIGHBOURS = 8


class Decayed(NamedTuple):
    """Decays of tiles, and products of their tokens with those before.

    Attributes:
      since, until: the logarithms of the decays from the start to each token, its own gate included, and behind each
        token to the end.
      reads, pairs: the products of queries, and of keys, with keys that decay from one token to the other, zero above
        their diagonals. The latter are None without the delta rule.
    """

    since: Float[Array, "tiles L K G C gates"]
    until: Float[Array, "tiles L K G C gates"]
    reads: Float[Array, "tiles L K G C C"]
    pairs: Float[Array, "tiles L K G C C"] | None


def decayed(
    q: Float[Array, "tiles L K C H"],
    k: Float[Array, "tiles L K C H"],
    gates: Float[Array, "tiles L K G C gates"],
    has_delta: bool,
    dtype: jnp.dtype,
) -> Decayed:
    """The decays of tiles and the products of their tokens.

    Args:
      has_delta: products of keys with keys are needed.
      dtype: of the operands of products of decayed tokens; others have that of the tokens.
    """
    exact = k.dtype
    q, k = (x.astype(jnp.float32) for x in (q, k))
    if gates.shape[-1] > 1:
        shape = (*gates.shape[:-1], k.shape[-1])
        q, k = (jnp.broadcast_to(x[:, :, :, None], shape) for x in (q, k))
        return _halved(jnp.stack([q, k] if has_delta else [q]), k, gates, dtype)
    since, until, decays = _within(gates)
    reads, pairs = (
        decays[..., 0] * product("zlkih,zlkjh->zlkij", x, k, dtype=exact)[:, :, :, None] if wanted else None
        for x, wanted in ((q, True), (k, has_delta))
    )
    assert reads is not None
    return Decayed(since, until, reads, pairs)


def _within(
    gates: Float[Array, "*blocks C gates"],
) -> tuple[Float[Array, "*blocks C gates"], Float[Array, "*blocks C gates"], Float[Array, "*blocks C C gates"]]:
    """``since`` and ``until`` of blocks, and the decays from columns' tokens to rows', zero above the diagonal."""
    row = jnp.arange(gates.shape[-2])
    upto, behind = row[:, None] >= row, (row[:, None] > row).astype(gates.dtype)
    own = jnp.where(upto[..., None], gates[..., None, :, :], 0.0)
    sums = jnp.einsum("...isg,sj->...ijg", own, behind, precision=lax.Precision.HIGHEST)
    return jnp.cumsum(gates, axis=-2), sums[..., -1, :, :], jnp.where(upto[..., None], jnp.exp(sums), 0.0)


def _halved(
    rows: Float[Array, "rows tiles L K G C H"],
    k: Float[Array, "tiles L K G C H"],
    gates: Float[Array, "tiles L K G C H"],
    dtype: jnp.dtype,
) -> Decayed:
    """The same with a gate a channel; ``rows`` are the queries and, with the delta rule, the keys."""
    size = min(_NEIGHBOURS, k.shape[-2])

    def blocks(x: Array) -> Array:
        return x.reshape(*x.shape[:-2], -1, size, x.shape[-1])

    since, until, decays = _within(blocks(gates))
    found = jnp.sum(decays * blocks(rows)[..., :, None, :] * blocks(k)[..., None, :, :], axis=-1)
    while size < k.shape[-2]:
        first, second = (lambda x: x[..., 0::2, :, :]), (lambda x: x[..., 1::2, :, :])
        late, early = jnp.exp(second(since)) * second(blocks(rows)), jnp.exp(first(until)) * first(blocks(k))
        below = product("xzlkgbih,zlkgbjh->xzlkgbij", late, early, dtype=dtype)
        top = jnp.concatenate([first(found), jnp.zeros_like(below)], axis=-1)
        found = jnp.concatenate([top, jnp.concatenate([below, second(found)], axis=-1)], axis=-2)
        until = jnp.concatenate([first(until) + second(since)[..., -1:, :], second(until)], axis=-2)
        since = jnp.concatenate([first(since), first(since)[..., -1:, :] + second(since)], axis=-2)
        size *= 2
    reads, *pairs = found[..., 0, :, :]
    return Decayed(since[..., 0, :, :], until[..., 0, :, :], reads, pairs[0] if pairs else None)
