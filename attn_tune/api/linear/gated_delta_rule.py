"""The public ``gated_delta_rule``: linear attention with a gated state and the delta rule."""

from collections.abc import Mapping
from typing import Any, Literal, overload

from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.linear.call import Specs, recurrent
from attn_tune.api.linear.other_names import NAMES, OTHERS
from attn_tune.api.other_names import hinting
from attn_tune.ops.gated_delta_rule.problem import Problem


# The result type depends on ``return_state``. The other forms leave their arguments to the first.
@overload
def gated_delta_rule(
    q: Float[Array, "B T K H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T N V"],
    g: Float[Array, "B T N"] | None = None,
    beta: Float[Array, "B T N"] | None = None,
    *,
    scale: float | None = None,
    initial_state: Float[Array, "states N H V"] | None = None,
    cu_seqlens: Int[Array, " ends"] | None = None,
    slots: Int[Array, " sequences"] | None = None,
    return_state: Literal[False] = False,
    workload: str = "eq",
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs | None = None,
    out_specs: PartitionSpec | None = None,
) -> Float[Array, "B T N V"]: ...


@overload
def gated_delta_rule(
    *arrays: Any, return_state: Literal[True], **arguments: Any
) -> tuple[Float[Array, "B T N V"], Float[Array, "states N H V"]]: ...


@overload
def gated_delta_rule(*arrays: Any, return_state: bool, **arguments: Any) -> Any: ...


@hinting(OTHERS, NAMES | {"gk": "gates for each channel of the keys are the 'g' of kda"})
def gated_delta_rule(
    q: Float[Array, "B T K H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T N V"],
    g: Float[Array, "B T N"] | None = None,
    beta: Float[Array, "B T N"] | None = None,
    *,
    scale: float | None = None,
    initial_state: Float[Array, "states N H V"] | None = None,
    cu_seqlens: Int[Array, " ends"] | None = None,
    slots: Int[Array, " sequences"] | None = None,
    return_state: bool = False,
    workload: str = "eq",
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs | None = None,
    out_specs: PartitionSpec | None = None,
) -> Float[Array, "B T N V"] | tuple[Float[Array, "B T N V"], Float[Array, "states N H V"]]:
    """Linear attention whose state forgets by a gate and is corrected by the delta rule (arXiv 2412.06464).

    Example::

        q = k = jnp.zeros((2, 1024, 16, 128), jnp.bfloat16)  # [batch, length, query/key heads, head dim]
        v = jnp.zeros((2, 1024, 32, 128), jnp.bfloat16)  # 2 value heads share a query/key head
        g = beta = jnp.zeros((2, 1024, 32))
        out, state = attn_tune.gated_delta_rule(q, k, v, g, beta, return_state=True)

    Each sequence and value head has a state ``S`` of ``H`` rows and ``V`` columns. A token changes it and reads it::

        S = exp(g) S
        S = S + k (beta (v - S^T k))^T
        out = scale S^T q

    States are float32. The recurrence is stable for keys of length one and strengths from 0 to 2: normalise the keys
    before. Differentiable in every operand, with the returned state taking part: once, in reverse mode. Forward and
    backward are chosen apart, at trace time, from the active packs. A call of ``2 T`` tokens equals one of ``T``, whose
    state is the initial state of another one of ``T``. Few tokens, such as one, are a step of decoding.

    Args:
      q, k: queries and keys. Value head ``n`` reads those of head ``n // (N // K)``.
      v: values, in the dtype of ``q``: bfloat16, float16 or float32.
      g: natural logarithms of the gates, float32 or in the dtype of ``q``, at most 0. At -128 and below, minus infinity
        included, a finite state is forgotten whole. None: no gates, the plain delta rule.
      beta: strengths of the update, float32 or in the dtype of ``q``. None: all are one.
      scale: multiplies the output; default ``1/sqrt(H)``.
      initial_state: float32, the state before the first token of each sequence; None is zeros.
      cu_seqlens: int32 ``[sequences + 1]``: sequences lie end to end in a batch of one; the first token of each, and
        the end of the last. It must never fall nor end behind the tokens, which is checked where numpy or Python holds
        it: JAX's arrays are read on the device. Sequences may have no token. Tokens of no sequence, which may hold
        anything, give zeros.
      slots: int32 ``[sequences]``: ``initial_state`` is a pool ``[slots, N, H, V]``, and the state of each sequence is
        in this slot of it, no two in one. A slot that the pool does not have, such as -1, stands for a state of zeros
        that is not kept. Needs ``return_state``, and gives the pool with the new states: in place under ``jax.jit``
        with the pool donated. Forward only.
      return_state: return ``(out, state)``.
      workload: with ``cu_seqlens``, the profile of lengths to expect, which chooses the config: ``eq``, ``uni``,
        ``exp``, ``one``, or ``mix`` of sequences that decode one token and chunks.
      platform: the kernel for both directions, as in ``flash_attention``, or one for each: ``{"fwd": "triton_hopper",
        "bwd": "triton"}``. One that cannot do a call is an error, in the backward too.
      cfg: configs to use, as in ``flash_attention``.
      mesh: run under ``shard_map`` over batch and heads (with ``cu_seqlens`` or ``slots`` heads alone); needs
        ``in_specs``.
      in_specs: the specs of ``q``, ``k`` and ``v``; those of everything else follow from them.
      out_specs: the spec of the output.

    Returns:
      The output like ``v``. With ``return_state`` also the state after the last token of each sequence, float32
      ``[sequences, N, H, V]``, or with ``slots`` the pool.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a second derivative was asked for.
    """
    return recurrent(
        Problem,
        "none" if g is None else "head",
        (q, k, v, g, beta),
        scale=scale,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
        slots=slots,
        return_state=return_state,
        workload=workload,
        platform=platform,
        cfg=cfg,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
    )
