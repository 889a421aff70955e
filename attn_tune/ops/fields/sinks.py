"""Attention sinks: extra logits that join the softmax and are dropped from the output."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_tune.ops.fields.arguments import check_array
from attn_tune.ops.fields.heads import repeated
from attn_tune.schema.errors import UsageError


def sinks_of(softmax_aux: Array, num_q_heads: int, num_kv_heads: int) -> Float[Array, " N"]:
    """One float32 logit a query head: several sinks act as one whose logit is their logsumexp.

    ``[N | K | 1, num_sinks]`` is unambiguous. A vector of ``N`` entries is one sink for each query head; a vector of
    another length is that many sinks, shared by all heads. Minus infinity is no sink; its gradient is zero.

    Raises:
      UsageError: another rank or number of heads.
    """
    aux = _by_head(softmax_aux, num_q_heads, num_kv_heads)
    some = ~jnp.all(jnp.isneginf(aux), axis=1)
    # Two guards: the derivative of the logarithm of zero is not a number, and a product with zero does not hide it.
    logits = jnp.where(some, jax.nn.logsumexp(jnp.where(some[:, None], aux, 0), axis=1), -jnp.inf)
    return repeated(logits, num_q_heads // logits.size, 0)


def largest_sinks_of(softmax_aux: Array, num_q_heads: int, num_kv_heads: int) -> Float[Array, " N"]:
    """The largest single sink of each query head; arguments and errors as of ``sinks_of``."""
    logits = jnp.max(_by_head(softmax_aux, num_q_heads, num_kv_heads), axis=1)
    return repeated(logits, num_q_heads // logits.size, 0)


def _by_head(softmax_aux: Array, num_q_heads: int, num_kv_heads: int) -> Float[Array, "heads num_sinks"]:
    aux = check_array("softmax_aux", softmax_aux)
    if not jnp.issubdtype(aux.dtype, jnp.floating):
        raise UsageError(f"softmax_aux must be floating-point, got {aux.dtype}")
    if aux.ndim == 1:
        aux = aux[:, None] if aux.size == num_q_heads else aux[None]
    if aux.ndim != 2 or aux.shape[0] not in (1, num_kv_heads, num_q_heads) or aux.shape[1] == 0:
        raise UsageError(
            f"softmax_aux must be [num_sinks], [{num_q_heads}] or [heads, num_sinks] with heads 1, {num_kv_heads} "
            f"or {num_q_heads}, got shape {jnp.shape(softmax_aux)}"
        )
    return aux.astype(jnp.float32)
