"""The public ``flash_attention``."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, overload

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, UInt32

from attn_tune.api.call import run
from attn_tune.api.flash_attention_call import CALL, without_denominator
from attn_tune.api.other_names import OF_JAX, hinting
from attn_tune.api.swapped_axes import warn_of_swapped_axes
from attn_tune.ops.fields.arguments import as_mask, check_qkv, checked_flag, lengths_of
from attn_tune.ops.fields.padding import zero_beyond
from attn_tune.ops.fields.sinks import largest_sinks_of
from attn_tune.ops.flash_attention.normalise import normalise
from attn_tune.ops.flash_attention.options import options_of
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import UsageError

type Specs = Sequence[PartitionSpec | None]


# The result type depends on ``return_lse``. The other forms leave their arguments to the first.
@overload
def flash_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K V"],
    bias: Float[Array, "_b _h _t _s"] | None = None,
    cum_seqlens_q: Int[Array, " R"] | None = None,
    cum_seqlens_k: Int[Array, " R"] | None = None,
    softmax_aux: Float[Array, "..."] | None = None,
    *,
    mask_info: MaskInfo | None = None,
    attention_mask: Bool[Array, "..."] | Int[Array, "..."] | None = None,
    q_segment_ids: Int[Array, "B T"] | None = None,
    kv_segment_ids: Int[Array, "B S"] | None = None,
    softmax_scale: float | None = None,
    dropout_prob: float = 0.0,
    causal: bool = False,
    dropout_seed: int | Int[Array, ""] | UInt32[Array, ""] | None = None,
    sliding_window: int | tuple[int | None, int | None] | None = None,
    logits_soft_cap: float | None = None,
    normalize_output: bool = True,
    precision: Any = jax.lax.Precision.DEFAULT,
    logits_dtype: Any = jnp.float32,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs | None = None,
    out_specs: PartitionSpec | None = None,
    return_lse: Literal[False] = False,
    deterministic: None = None,
) -> Float[Array, "B T N V"]: ...


@overload
def flash_attention(
    *arrays: Any, return_lse: Literal[True], **arguments: Any
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N T"]]: ...


@overload
def flash_attention(*arrays: Any, return_lse: bool, **arguments: Any) -> Any: ...


@hinting("attn_tune.dot_product_attention, which aligns at the top left", OF_JAX)
def flash_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K V"],
    bias: Float[Array, "_b _h _t _s"] | None = None,
    cum_seqlens_q: Int[Array, " R"] | None = None,
    cum_seqlens_k: Int[Array, " R"] | None = None,
    softmax_aux: Float[Array, "..."] | None = None,
    *,
    mask_info: MaskInfo | None = None,
    attention_mask: Bool[Array, "..."] | Int[Array, "..."] | None = None,
    q_segment_ids: Int[Array, "B T"] | None = None,
    kv_segment_ids: Int[Array, "B S"] | None = None,
    softmax_scale: float | None = None,
    dropout_prob: float = 0.0,
    causal: bool = False,
    dropout_seed: int | Int[Array, ""] | UInt32[Array, ""] | None = None,
    sliding_window: int | tuple[int | None, int | None] | None = None,
    logits_soft_cap: float | None = None,
    normalize_output: bool = True,
    precision: Any = jax.lax.Precision.DEFAULT,
    logits_dtype: Any = jnp.float32,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Specs | None = None,
    out_specs: PartitionSpec | None = None,
    return_lse: bool = False,
    deterministic: None = None,
) -> Float[Array, "B T N V"] | tuple[Float[Array, "B T N V"], Float[Array, "B N T"]]:
    """Exact attention in O(N) memory, by the kernel and config that were found best for this problem and device.

    Example::

        query = jnp.zeros((2, 1024, 32, 128), jnp.bfloat16)  # [batch, length, query heads, head dim]
        key = value = jnp.zeros((2, 1024, 8, 128), jnp.bfloat16)  # 4 query heads share a key/value head
        out = attn_tune.flash_attention(query, key, value, causal=True)  # as the query

    ``softmax(cap(scale * q k^T) + bias, where visible) v``, differentiable in query, key, value, bias and
    softmax_aux, with the returned ``lse`` taking part: once, in reverse mode. The choice is made at trace time from the
    active packs and never tunes; forward and backward are chosen apart.

    Alignment is at the bottom right: row ``i`` stands at position ``i + S - T``. A row that sees nothing gives zeros
    and zero gradients; no rows give no rows. Every mask that is given must allow a pair. With the alignment and the
    arguments of ``jax.nn.dot_product_attention``: ``attn_tune.dot_product_attention``.

    Args:
      bias: ``[1 | B, 1 | K | N, 1 | T, 1 | S]``, added after the soft cap; its gradient has its own shape. A row all of
        whose logits are below -1e6 has no gradient, and where its bias is the least finite number its output is zero or
        the mean of the values, by the kernel: what hides rows is a mask, or minus infinity.
      cum_seqlens_q: offsets of sequences laid end to end in a batch of one, each aligned at its own bottom right.
        Tokens past the last offset are padding.
      cum_seqlens_k: the same for the keys; None is ``cum_seqlens_q``.
      softmax_aux: attention sinks, logits that join the softmax and are dropped from the output: ``[N | K | 1,
        num_sinks]``, or a vector: ``N`` entries are one a query head, any other length is shared by all heads. Minus
        infinity is no sink; its gradient is zero. All must be below plus infinity, which makes outputs NaN.
      mask_info: a mask with its structure; segments and positions stay O(N). The padding of
        ``MaskInfo.from_lengths`` may hold NaN and infinities; all other operands must be finite, where masks hide them
        too.
      attention_mask: ``[1 | B, 1 | K | N, 1 | T, 1 | S]``, ``[B, T, S]`` or key padding ``[B, S]``; nonzero may attend.
      q_segment_ids: ``[B, T]`` integers; only equal ids attend.
      kv_segment_ids: ``[B, S]`` integers; None is ``q_segment_ids``.
      softmax_scale: default ``1/sqrt(H)``.
      dropout_prob: probability of dropping a softmax weight.
      dropout_seed: an integer (traced is fine) or a ``jax.random.key``; None is 0. The same seed drops the same weights
        in every kernel and on every sharding. Of an integer the lower 32 bits count: hash a step and a layer into them.
      sliding_window: ``w`` or ``(left, right)``: position ``p`` sees ``[p - left, p + right]``.
      logits_soft_cap: logits become ``cap * tanh(logits / cap)``.
      normalize_output: False returns the sum before its division by the softmax denominator, relative to the row's
        largest logit (``out * exp(lse - row_max)``, the largest single sink included). Its gradient is its own: it
        flows through that largest logit too, to the first key that has it.
      precision: of the products: a ``jax.lax.Precision``, its name, or None.
      logits_dtype: the logits are rounded to it; float32, bfloat16 or float16.
      platform: the kernel for both directions: its name or its backend; None or ``"auto"`` chooses. Or one for each:
        ``{"fwd": "triton_hopper", "bwd": "triton"}``.
      cfg: configs to use as they are: ``{"fwd": config, "bwd": config}`` (either alone is fine), or one config
        dataclass, which goes to the direction it belongs to.
      mesh: run under ``shard_map`` over batch and heads; needs ``in_specs``.
      in_specs: starts with the specs of query, key and value; those of everything else follow from them.
      out_specs: the query's spec.
      return_lse: also return the natural logarithm of the softmax denominator, ``[B, N, T]`` float32.
      deterministic: not an option; any value is refused. flax's linen gives it to an attention function that
        names it, and leaves the mask and the dropout out where they are not named.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a second derivative was asked for.
    """
    if deterministic is not None:
        raise UsageError(
            "flash_attention is no attention_fn of flax: it would run without the module's mask and dropout; "
            "use 'from attn_tune.integrations.flax import attention_fn'"
        )
    check_qkv(query, key, value, may_be_empty=True)
    return_lse = checked_flag("return_lse", return_lse)
    normalize_output = checked_flag("normalize_output", normalize_output)
    if 0 in query.shape[:2]:
        out, lse = without_pairs(query, value)
        return (out, lse) if return_lse else out
    warn_of_swapped_axes(query, key)
    mask = as_mask(
        mask_info=mask_info,
        attention_mask=attention_mask,
        q_segment_ids=q_segment_ids,
        kv_segment_ids=kv_segment_ids,
        causal=causal,
        sliding_window=sliding_window,
    )
    if cum_seqlens_q is not None or cum_seqlens_k is not None:
        mask = _packed(query, key, cum_seqlens_q, cum_seqlens_k) & mask
    options = options_of(
        head_dim=query.shape[-1],
        softmax_scale=softmax_scale,
        logits_soft_cap=logits_soft_cap,
        dropout_prob=dropout_prob,
        logits_dtype=logits_dtype,
        precision=precision,
    )
    problem, operands = normalise(
        query,
        key,
        value,
        options=options,
        mask=mask,
        bias=bias,
        softmax_aux=softmax_aux,
        dropout_seed=dropout_seed,
    )
    needs_lse = return_lse or not normalize_output
    problem = dataclasses.replace(problem, has_lse_gradient=needs_lse, needs_lse=needs_lse)
    extra = {}
    if softmax_aux is not None and not normalize_output:
        sinks = largest_sinks_of(softmax_aux, problem.num_q_heads, problem.num_kv_heads)
        extra["largest_sinks"] = sinks
    outputs = run(
        CALL,
        problem,
        operands,
        platform=platform,
        cfg=cfg,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        extra=extra,
        finish=None if normalize_output else without_denominator,
    )
    # They are zero already; this is for their cotangents, which may not be numbers.
    out = zero_beyond(outputs["out"], lengths_of(mask, problem.batch)[0])
    return (out, outputs["lse"]) if return_lse else out


def without_pairs(
    query: Float[Array, "B T N H"], value: Float[Array, "B S K V"]
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N T"]]:
    """``(out, lse)`` of rows that see nothing, or of no rows: zeros and minus infinity. No kernel is asked."""
    row = jnp.zeros_like(query[..., :1])
    lse = row[..., 0].swapaxes(1, 2).astype(jnp.float32) - jnp.inf
    return jnp.broadcast_to(row, (*row.shape[:3], value.shape[3])), lse


def create_shard_map_wrapper(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K V"],
    *,
    mesh: Mesh,
    in_specs: Specs,
    out_specs: PartitionSpec | None = None,
    **arguments: Any,
) -> tuple[Callable[..., Any], tuple[Array, Array, Array]]:
    """``(function, (query, key, value))``: a sharded ``flash_attention`` to be called, timed or differentiated later.

    ``arguments`` are those of ``flash_attention``; they are fixed in ``function``.
    """

    def function(query, key, value):
        return flash_attention(
            query,
            key,
            value,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            **arguments,
        )

    return function, (query, key, value)


def _packed(query: Array, key: Array, cum_seqlens_q: Any, cum_seqlens_k: Any) -> MaskInfo:
    if cum_seqlens_q is None:
        raise UsageError("cum_seqlens_q is missing: give both sides, or the query side alone")
    if query.shape[0] != 1:
        raise UsageError(f"cum_seqlens_q lays sequences end to end in a batch of 1, got a batch of {query.shape[0]}")
    return MaskInfo.from_cum_seqlens(cum_seqlens_q, cum_seqlens_k, q_len=query.shape[1], kv_len=key.shape[1])
