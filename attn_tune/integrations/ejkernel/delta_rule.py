"""Linear attention with the delta rule, by ejkernel's names."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

import attn_tune
from attn_tune.integrations.ejkernel.arguments import kernel_of, leave_out, refuse_mesh
from attn_tune.integrations.ejkernel.linear import Result, float32
from attn_tune.ops.fields.arguments import check_array
from attn_tune.ops.fields.cache_arguments import check_integers
from attn_tune.ops.fields.packed_arguments import packed_ends
from attn_tune.schema.errors import UsageError

type Specs = Sequence[PartitionSpec | None] | None


def kernel_delta_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T N H"],
    value: Float[Array, "B T N V"],
    beta: Float[Array, "B T N"],
    decay: Float[Array, "B T N"] | None = None,
    initial_state: Float[Array, "B N H V"] | None = None,
    /,
    *,
    softmax_scale: float | None = None,
    chunk_size: int = 64,
    use_qk_l2norm: bool = True,
    use_chunked: bool = True,
    return_state: bool = False,
    platform: str | None = None,
    cfg: Any = None,
) -> Result:
    """``attn_tune.gated_delta_rule`` by the arguments of ejkernel's function, also ``kda_attention``.

    Its gates are of heads, so that it is the gated delta rule; gates of channels, those of Kimi delta attention, are
    ``attn_tune.kda``. The output has the dtype of ``value``, there float32.

    Args:
      query, key, value: ``[B, T, N, H]`` twice and ``[B, T, N, V]``.
      beta: strengths ``[B, T, N]``.
      decay: logarithms of the gates ``[B, T, N]``, at most 0.
      initial_state: float32 ``[B, N, H, V]``.
      use_qk_l2norm: normalise queries and keys, with 1e-6 under the root.
      chunk_size, use_chunked: other values than the default are left out with a warning.
      return_state: return ``(out, state)``.

    Raises:
      UsageError: an argument is malformed.
    """
    name = "kernel_delta_attention"
    leave_out(name, chunk_size=None if chunk_size == 64 else chunk_size, use_chunked=None if use_chunked else "False")
    return attn_tune.gated_delta_rule(
        *_normal(query, key, use_qk_l2norm),
        value,
        decay,
        beta,
        scale=softmax_scale,
        initial_state=float32(initial_state),
        return_state=return_state,
        platform=kernel_of(name, platform, cfg),
    )


def gated_delta_rule(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B T N H"],
    value: Float[Array, "B T N V"],
    beta: Float[Array, "B T N"],
    decay: Float[Array, "B T N"] | None = None,
    seg_ids: Int[Array, "B T"] | None = None,
    initial_state: Float[Array, "B N H V"] | None = None,
    /,
    *,
    autotune_chunk_candidates: Sequence[int] | None = None,
    use_qk_l2norm: bool = True,
    use_chunked: bool = True,
    return_state: bool = False,
    platform: str | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs = None,
    out_specs: Any = None,
) -> Result:
    """``attn_tune.gated_delta_rule`` by the arguments of ejkernel's function, also ``gdr_attention``.

    States are float32. Gates are not bounded, where ejkernel's XLA kernel keeps their sums within -20 and 20.

    Args:
      query, key, value: ``[B, T, N, H]`` twice and ``[B, T, N, V]``.
      beta: strengths ``[B, T, N]``.
      decay: logarithms of the gates ``[B, T, N]``, at most 0.
      seg_ids: ``[B, T]``; where the id changes the state is forgotten, by a gate of minus infinity.
      initial_state: float32 ``[B, N, H, V]``; the first segment's.
      use_qk_l2norm: normalise queries and keys, with 1e-6 under the root.
      autotune_chunk_candidates, use_chunked: left out with a warning.
      return_state: return ``(out, state)``.
      mesh, in_specs, out_specs: refused.

    Raises:
      UsageError: an argument is malformed or cannot be honoured.
    """
    name = "gated_delta_rule"
    refuse_mesh(name, mesh, in_specs, out_specs)
    leave_out(name, autotune_chunk_candidates=autotune_chunk_candidates, use_chunked=None if use_chunked else "False")
    if seg_ids is not None:
        starts = jnp.pad(seg_ids[:, 1:] != seg_ids[:, :-1], ((0, 0), (1, 0)))[:, :, None]
        decay = jnp.zeros(beta.shape, jnp.float32) if decay is None else decay
        decay = jnp.where(starts, -jnp.inf, decay)
    return attn_tune.gated_delta_rule(
        *_normal(query, key, use_qk_l2norm),
        value,
        decay,
        beta,
        initial_state=float32(initial_state),
        return_state=return_state,
        platform=kernel_of(name, platform, cfg),
    )


def ragged_gated_delta_rule(
    query: Float[Array, "tokens N H"],
    key: Float[Array, "tokens N H"],
    value: Float[Array, "tokens N V"],
    beta: Float[Array, "tokens N"],
    decay: Float[Array, "tokens N"] | None = None,
    recurrent_state: Float[Array, "slots N H V"] | None = None,
    query_start_loc: Int[Array, " ends"] | None = None,
    state_indices: Int[Array, " sequences"] | None = None,
    *,
    chunk_size: int = 64,
    use_qk_l2norm: bool = True,
    platform: str | None = None,
    cfg: Any = None,
) -> tuple[Float[Array, "tokens N V"], Float[Array, "slots N H V"]]:
    """``attn_tune.gated_delta_rule`` with ``cu_seqlens`` over slots of states: ``(out, recurrent_state)``.

    Slots of sequences without a token stay as they are.

    Args:
      query, key, value: ``[tokens, N, H]`` twice and ``[tokens, N, V]``, those of one sequence after the other.
      beta: strengths ``[tokens, N]``.
      decay: logarithms of the gates ``[tokens, N]``, at most 0.
      recurrent_state: ``[slots, N, H, V]``; float32 and donated under ``jax.jit`` it is updated in place. Needed, as
        are the next two.
      query_start_loc: int32 ``[sequences + 1]``.
      state_indices: int32 ``[sequences]``, the slot of each sequence; one that there is not is read as zeros, and not
        written.
      use_qk_l2norm: normalise queries and keys, with 1e-6 under the root.
      chunk_size: another value than the default is left out with a warning.

    Raises:
      UsageError: an argument is malformed or missing.
    """
    name = "ragged_gated_delta_rule"
    leave_out(name, chunk_size=None if chunk_size == 64 else chunk_size)
    if recurrent_state is None or query_start_loc is None or state_indices is None:
        raise UsageError(f"{name}: needs recurrent_state, query_start_loc and state_indices; or call gated_delta_rule")
    pool, tokens = check_array("recurrent_state", recurrent_state), check_array("query", query).shape[0]
    ends = packed_ends("query_start_loc", query_start_loc, tokens)
    indices = check_integers("state_indices", state_indices, (ends.size - 1,), "query_start_loc")
    slots, in_place = jnp.where(ends[1:] > ends[:-1], indices, -1), pool.dtype == jnp.float32
    # A negative slot would count from the end.
    places = jnp.where(slots < 0, pool.shape[0], slots)
    q, k = _normal(query, key, use_qk_l2norm)
    out, states = attn_tune.gated_delta_rule(
        q[None],
        k[None],
        value[None],
        None if decay is None else decay[None],
        beta[None],
        initial_state=pool if in_place else pool.at[places].get(mode="fill", fill_value=0).astype(jnp.float32),
        cu_seqlens=ends,
        slots=slots if in_place else None,
        return_state=True,
        platform=kernel_of(name, platform, cfg),
    )
    if in_place:
        return out[0], states
    return out[0], pool.at[places].set(states.astype(pool.dtype), mode="drop")


def _normal(query: Array, key: Array, use_qk_l2norm: bool) -> tuple[Array, Array]:
    """Queries and keys of length one, where that is asked for."""
    if not use_qk_l2norm:
        return query, key
    exact = (x.astype(jnp.float32) for x in (query, key))
    q, k = (x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6) for x in exact)
    return q.astype(query.dtype), k.astype(key.dtype)


kda_attention = kernel_delta_attention
gdr_attention = gated_delta_rule
