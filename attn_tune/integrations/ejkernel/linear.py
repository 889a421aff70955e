"""Linear attention of ejkernel, and its mean over sequences."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

import attn_tune
from attn_tune.integrations.ejkernel.arguments import kernel_of, leave_out, refuse
from attn_tune.ops.fields.heads import repeated
from attn_tune.ops.fields.integers import as_integer, positive_integer
from attn_tune.ops.fields.packed_arguments import checked_ends
from attn_tune.schema.errors import UsageError, shown

type Result = Float[Array, "B T N V"] | tuple[Float[Array, "B T N V"], Float[Array, "sequences N H V"]]


def recurrent_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K V"],
    g: Float[Array, "B T N H"] | None = None,
    g_gamma: Float[Array, "... N"] | None = None,
    gk: Float[Array, "B T N H"] | None = None,
    gv: Float[Array, "B T N V"] | None = None,
    initial_state: Float[Array, "sequences N H V"] | None = None,
    cu_seqlens: Int[Array, " ends"] | None = None,
    /,
    *,
    softmax_scale: float | None = None,
    reverse: bool = False,
    return_state: bool = False,
    platform: str | None = None,
    cfg: Any = None,
) -> Result:
    """``attn_tune.gla``, or ``linear_attention`` without gates by channel, by the arguments of ejkernel's function.

    ``g``, ``gk`` and ``g_gamma`` gate the same state and are added. States are float32, and all of them have
    gradients, ``g_gamma`` too.

    Args:
      query, key, value: ``[B, T, N, H]``, ``[B, T, K, H]``, ``[B, T, K, V]``; fewer key heads are repeated.
      g, gk: logarithms of the gates of key channels, at most 0.
      g_gamma: constant ones of heads, ``[N]``, ``[1, N]`` or, of a batch, ``[B, N]``.
      gv: refused: no op gates the channels of values.
      initial_state: float32 ``[B or sequences, N, H, V]``.
      cu_seqlens: offsets of sequences end to end in a batch of one.
      reverse: from the last token to the first; refused with ``cu_seqlens``.
      return_state: return ``(out, state)``.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "recurrent_attention"
    refuse(name, "gate the channels of keys, or scan in plain JAX", gv=gv)
    gates = [x for x in (g, gk) if x is not None]
    return _gated(
        name,
        query,
        key,
        value,
        sum(gates[1:], start=gates[0]) if gates else None,
        g_gamma,
        initial_state,
        cu_seqlens,
        scale=softmax_scale,
        reverse=reverse,
        return_state=return_state,
        kernel=kernel_of(name, platform, cfg),
    )


def gla_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K V"],
    g: Float[Array, "B T N H"] | None = None,
    g_gamma: Float[Array, "... N"] | None = None,
    initial_state: Float[Array, "sequences N H V"] | None = None,
    cu_seqlens: Int[Array, " ends"] | None = None,
    /,
    *,
    softmax_scale: float | None = None,
    reverse: bool = False,
    return_state: bool = False,
    platform: str | None = None,
    cfg: Any = None,
) -> Result:
    """``attn_tune.gla``, or ``linear_attention`` without ``g``, by the arguments of ``ejkernel.modules.gla_attention``.

    Args:
      query, key, value: ``[B, T, N, H]``, ``[B, T, K, H]``, ``[B, T, K, V]``; fewer key heads are repeated.
      g, g_gamma, initial_state, cu_seqlens, reverse, return_state: as in ``recurrent_attention``.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "gla_attention"
    return _gated(
        name,
        query,
        key,
        value,
        g,
        g_gamma,
        initial_state,
        cu_seqlens,
        scale=softmax_scale,
        reverse=reverse,
        return_state=return_state,
        kernel=kernel_of(name, platform, cfg),
    )


def lightning_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T K H"],
    value: Float[Array, "B T K V"],
    initial_state: Float[Array, "sequences N H V"] | None = None,
    cu_seqlens: Int[Array, " ends"] | None = None,
    /,
    *,
    layer_idx: int,
    num_layers: int,
    softmax_scale: float | None = None,
    reverse: bool = False,
    return_state: bool = False,
    platform: str | None = None,
    cfg: Any = None,
) -> Result:
    """``attn_tune.linear_attention`` with the gates of lightning attention, by ejkernel's arguments.

    Head ``n`` of layer ``layer_idx`` keeps ``exp(-8 n / N (1 - layer_idx / num_layers))`` of its state a token.

    Args:
      query, key, value: ``[B, T, N, H]``, ``[B, T, K, H]``, ``[B, T, K, V]``; fewer key heads are repeated.
      initial_state, cu_seqlens, reverse, return_state: as in ``recurrent_attention``.
      layer_idx: an integer from 0 up to, but without, ``num_layers``.
      num_layers: a positive integer.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "lightning_attention"
    layer, layers = as_integer(layer_idx), positive_integer(f"{name}: num_layers", num_layers)
    if layer is None or not 0 <= layer < layers:
        accepted = f"an integer from 0 to {layers - 1} of num_layers={layers}"
        raise UsageError(f"{name}: layer_idx must be {accepted}, got {shown(layer_idx)}")
    heads = query.shape[2]
    return _gated(
        name,
        query,
        key,
        value,
        None,
        -8 / heads * (1 - layer / layers) * jnp.arange(heads, dtype=jnp.float32),
        initial_state,
        cu_seqlens,
        scale=softmax_scale,
        reverse=reverse,
        return_state=return_state,
        kernel=kernel_of(name, platform, cfg),
    )


def mean_pooling(
    x: Float[Array, "..."],
    cu_seqlens: Int[Array, " ends"] | None = None,
    /,
    *,
    chunk_size: int = 32,
    platform: str | None = None,
    cfg: Any = None,
) -> Float[Array, "sequences width"]:
    """The mean over each sequence, as ejkernel's XLA function has it: plain JAX, not an op.

    Args:
      x: ``[B, T, width]``; with ``cu_seqlens`` ``[tokens, width]``.
      cu_seqlens: int32 ``[sequences + 1]``; a sequence without a token has zeros.
      chunk_size: another value than the default is left out with a warning.
      platform, cfg: left out with a warning.

    Returns:
      ``[B or sequences, width]``.
    """
    name = "mean_pooling"
    leave_out(name, chunk_size=None if chunk_size == 32 else chunk_size, platform=platform, cfg=cfg)
    if x.ndim != (3 if cu_seqlens is None else 2):
        wanted = "[B, T, width]" if cu_seqlens is None else "[tokens, width] with cu_seqlens"
        raise UsageError(f"{name}: x must be {wanted}, got {list(x.shape)}")
    if cu_seqlens is None:
        return jnp.mean(x, axis=1)
    ends = checked_ends(cu_seqlens, 1, x.shape[0])
    assert ends is not None
    sequences, lengths = ends.shape[0] - 1, ends[1:] - ends[:-1]
    # Tokens before the first sequence and behind the last go to one more, which is left out.
    of_token = (jnp.searchsorted(ends, jnp.arange(x.shape[0]), side="right", method="scan_unrolled") - 1) % (
        sequences + 1
    )
    sums = jax.ops.segment_sum(x.astype(jnp.float32), of_token, sequences + 1)[:sequences]
    return (sums / jnp.maximum(lengths, 1)[:, None]).astype(x.dtype)


def _gated(
    function: str,
    query: Array,
    key: Array,
    value: Array,
    g: Array | None,
    g_gamma: Array | None,
    initial_state: Array | None,
    cu_seqlens: Array | None,
    *,
    scale: float | None,
    reverse: bool,
    return_state: bool,
    kernel: str | None,
) -> Result:
    """Attention with gates of channels, constant ones of heads, both or none."""
    if reverse and cu_seqlens is not None:
        raise UsageError(f"{function}: reverse=True with cu_seqlens cannot be honoured; reverse each sequence before")
    batch, length, heads, _ = query.shape
    key, value = (repeated(x, heads // x.shape[2], 2) for x in (key, value))
    if g_gamma is not None and g_gamma.ndim == 2:
        if cu_seqlens is not None and g_gamma.shape[0] != 1:
            raise UsageError(
                f"{function}: g_gamma of each sequence with cu_seqlens cannot be honoured; give gates as g"
            )
        g_gamma = jnp.broadcast_to(g_gamma[:, None], (batch, length, heads))
    turned = [query, key, value, g]
    if reverse:
        turned = [None if x is None else jnp.flip(x, axis=1) for x in turned]
    q, k, v, gates = turned
    options: dict[str, Any] = {
        "scale": scale,
        "initial_state": float32(initial_state),
        "cu_seqlens": cu_seqlens,
        "return_state": return_state,
        "platform": kernel,
    }
    if gates is None:
        result: Any = attn_tune.linear_attention(q, k, v, g_gamma, **options)  # pyright: ignore[reportArgumentType]
    else:
        gates = gates if g_gamma is None else gates + jnp.broadcast_to(g_gamma, gates.shape[:3])[..., None]
        result = attn_tune.gla(q, k, v, gates, **options)  # pyright: ignore[reportArgumentType]
    if not reverse:
        return result
    return (jnp.flip(result[0], axis=1), result[1]) if return_state else jnp.flip(result, axis=1)


def float32(state: Array | None) -> Array | None:
    """``state`` in float32, if there is one."""
    return None if state is None else state.astype(jnp.float32)
