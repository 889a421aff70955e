"""The public ``gla``: linear attention with a gate for each channel of the keys."""

from collections.abc import Mapping
from typing import Any, Literal, overload

from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.linear.call import Specs, recurrent
from attn_tune.api.linear.other_names import NAMES, OTHERS
from attn_tune.api.other_names import hinting
from attn_tune.ops.gla.problem import Problem


# The result type depends on ``return_state``. The other forms leave their arguments to the first.
@overload
def gla(
    q: Float[Array, "B T K H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T N V"],
    g: Float[Array, "B T N H"],
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
def gla(
    *arrays: Any, return_state: Literal[True], **arguments: Any
) -> tuple[Float[Array, "B T N V"], Float[Array, "states N H V"]]: ...


@overload
def gla(*arrays: Any, return_state: bool, **arguments: Any) -> Any: ...


@hinting(OTHERS, NAMES | {"gk": "g", "g_gamma": "a constant gate for each head is the 'g' of linear_attention"})
def gla(
    q: Float[Array, "B T K H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T N V"],
    g: Float[Array, "B T N H"],
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
    """Gated linear attention: a gate for each channel of the keys (arXiv 2312.06635).

    Example::

        q = k = v = jnp.zeros((2, 1024, 16, 128), jnp.bfloat16)  # [batch, length, heads, head dim]
        g = jnp.zeros((2, 1024, 16, 128))
        out, state = attn_tune.gla(q, k, v, g, return_state=True)

    Each sequence and value head has a state ``S`` of ``H`` rows and ``V`` columns. A token changes it and reads it::

        S = diag(exp(g)) S + k v^T
        out = scale S^T q

    States are float32. Differentiable in every operand, with the returned state taking part: once, in reverse mode. A
    call of ``2 T`` tokens equals one of ``T``, whose state is the initial state of another one of ``T``. Few tokens,
    such as one, are a step of decoding.

    Args:
      q, k: queries and keys. Value head ``n`` reads those of head ``n // (N // K)``.
      v: values, in the dtype of ``q``: bfloat16, float16 or float32.
      g: natural logarithms of the gates, one for each token, value head and row of the state, float32 or in the dtype
        of ``q``, at most 0. At -128 and below, minus infinity included, what a finite row holds is forgotten whole.
      scale, initial_state, cu_seqlens, slots, return_state, workload: as in ``gated_delta_rule``.
      platform, cfg: the kernel and the configs to use, of both directions or of each, as in ``gated_delta_rule``.
      mesh, in_specs, out_specs: as in ``gated_delta_rule``.

    Returns:
      The output like ``v``. With ``return_state`` also the state after the last token of each sequence, float32
      ``[sequences, N, H, V]``, or with ``slots`` the pool.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a second derivative was asked for.
    """
    return recurrent(
        Problem,
        "channel",
        (q, k, v, g, None),
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
