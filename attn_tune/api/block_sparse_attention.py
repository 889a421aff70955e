"""The public ``block_sparse_attention``."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from attn_tune.api.attention_arrays import LETTERS, SHARED
from attn_tune.api.call import run
from attn_tune.api.declaration import Call
from attn_tune.api.flash_attention_call import row_delta
from attn_tune.ops.block_sparse_attention.operands import BackwardInputs, Operands
from attn_tune.ops.block_sparse_attention.problem import DEFAULT_BLOCK, NAME, WORKLOADS, Problem
from attn_tune.ops.fields.arguments import as_mask, check_array, check_qkv, checked_flag, lengths_of
from attn_tune.ops.fields.cache_arguments import check_workload
from attn_tune.ops.fields.heads import expand_heads
from attn_tune.ops.fields.integers import as_integer
from attn_tune.ops.fields.padding import zero_beyond
from attn_tune.ops.flash_attention.normalise import normalise
from attn_tune.ops.flash_attention.operands import Residuals
from attn_tune.ops.flash_attention.options import options_of
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import UsageError, shown


def _outputs(problem: Problem, operands: Operands) -> dict[str, jax.ShapeDtypeStruct]:
    batch, q_len, heads, _ = operands.q.shape
    out = jax.ShapeDtypeStruct((batch, q_len, heads, operands.v.shape[3]), operands.q.dtype)
    if not problem.needs_lse:
        return {"out": out}
    return {"out": out, "lse": jax.ShapeDtypeStruct((batch, heads, q_len), jnp.float32)}


def _with_shapes(problem: Problem, operands: Operands) -> Problem:
    batch, q_len, num_q_heads, head_dim = operands.q.shape
    _, kv_len, num_kv_heads, v_head_dim = operands.v.shape
    spans = zip("bn", operands.block_mask.shape, strict=False)
    return dataclasses.replace(
        problem,
        batch=batch,
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        block_dims="".join("1" if size == 1 else axis for axis, size in spans),
    )


def _backward_inputs(operands: Operands, residuals: dict[str, Array], cotangents: dict[str, Array]) -> BackwardInputs:
    saved = Residuals(residuals["out"], residuals["lse"])
    delta = row_delta(saved, cotangents["out"], cotangents.get("lse"))
    return BackwardInputs(operands, saved, cotangents["out"], delta)


def _with_residuals(problem: Problem) -> Problem:
    return dataclasses.replace(problem, needs_lse=True)


CALL = Call(
    op=NAME,
    letters={
        **LETTERS,
        "block_mask": "bnrc",
        "q_segments": "bt",
        "kv_segments": "bs",
        "kv_lengths": "b",
        "lse": "bnt",
        "delta": "bnt",
    },
    outputs=_outputs,
    with_shapes=_with_shapes,
    gradients=("q", "k", "v"),
    residuals=("out", "lse"),
    with_residuals=_with_residuals,
    backward_inputs=_backward_inputs,
    **SHARED | {"broadcast": ("block_mask",), "unfoldable": ()},
)


def block_sparse_attention(
    query: Float[Array, "B T N H"],
    key: Float[Array, "B S K H"],
    value: Float[Array, "B S K V"],
    block_mask: Bool[Array, "..."] | Int[Array, "..."],
    *,
    block_size: int | tuple[int, int] = DEFAULT_BLOCK,
    mask_info: MaskInfo | None = None,
    q_segment_ids: Int[Array, "B T"] | None = None,
    kv_segment_ids: Int[Array, "B S"] | None = None,
    causal: bool = False,
    sliding_window: int | tuple[int | None, int | None] | None = None,
    softmax_scale: float | None = None,
    logits_soft_cap: float | None = None,
    precision: Any = jax.lax.Precision.DEFAULT,
    workload: str = WORKLOADS[0].name,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    out_specs: PartitionSpec | None = None,
    return_lse: bool = False,
) -> Any:
    """Exact attention over the pairs of blocks that ``block_mask`` lists; what it does not list is not computed.

    Example::

        query = jnp.zeros((1, 4096, 32, 128), jnp.bfloat16)  # [batch, length, query heads, head dim]
        key = value = jnp.zeros((1, 4096, 8, 128), jnp.bfloat16)
        listed = jnp.eye(32, dtype=bool) | (jnp.arange(32) == 0)  # blocks of 128: each its own, and the first
        out = attn_tune.block_sparse_attention(query, key, value, listed, causal=True)

    The mask is an array like any other: traced, made by the model, different in each call. A query of block ``r`` sees
    key ``s`` if ``block_mask[b, n, r, s // bk]`` and all that ``flash_attention`` would ask, with its alignment at the
    bottom right: causality, window, segments, lengths. Rows that see nothing give zeros and zero gradients.
    Differentiable in query, key and value, with the returned lse taking part: once, in reverse mode.

    Args:
      block_mask: ``[1 | B, 1 | K | N, R, C]`` or ``[R, C]`` with ``R = ceil(T / bq)`` and ``C = ceil(S / bk)``;
        nonzero is listed. Its first and last rows and columns may be those of blocks that are not full.
      block_size: ``(bq, bk)`` or one number for both, powers of two from 16 on.
      mask_info: a mask with its structure: segments, lengths, causality, window; none that is dense, no positions.
      q_segment_ids: ``[B, T]`` integers; only equal ids attend.
      kv_segment_ids: ``[B, S]`` integers; None is ``q_segment_ids``.
      causal: a row sees its own position and those before it.
      sliding_window: ``w`` or ``(left, right)``: position ``p`` sees ``[p - left, p + right]``.
      softmax_scale: default ``1/sqrt(H)``.
      logits_soft_cap: logits become ``cap * tanh(logits / cap)``.
      precision: of the products: a ``jax.lax.Precision``, its name, or None.
      workload: the profile of masks whose tuned rows are looked up: random, documents, local or full.
      platform: the kernels to use, as in ``flash_attention``.
      cfg: the configs to use, as in ``flash_attention``.
      mesh: run under ``shard_map`` over batch and heads; needs ``in_specs``.
      in_specs: starts with the specs of query, key and value; those of everything else follow from them.
      out_specs: the query's spec.
      return_lse: also return the natural logarithm of the softmax denominator, ``[B, N, T]`` float32.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a second derivative was asked for.
    """
    check_qkv(query, key, value)
    return_lse = checked_flag("return_lse", return_lse)
    mask = as_mask(
        mask_info=mask_info,
        attention_mask=None,
        q_segment_ids=q_segment_ids,
        kv_segment_ids=kv_segment_ids,
        causal=causal,
        sliding_window=sliding_window,
    )
    for name in ("attention_mask", "q_positions", "kv_positions"):
        if getattr(mask, name) is not None:
            raise UsageError(f"mask_info has {name}, which {NAME} does not take; flash_attention does")
    dense, operands = normalise(
        query,
        key,
        value,
        options=options_of(
            head_dim=query.shape[-1],
            softmax_scale=softmax_scale,
            logits_soft_cap=logits_soft_cap,
            dropout_prob=0.0,
            logits_dtype=None,
            precision=precision,
        ),
        mask=mask,
    )
    block_q, block_k = _block_sizes(block_size)
    check_workload(workload, WORKLOADS)
    dense = dataclasses.replace(dense, has_offsets=False, has_lse_gradient=return_lse, needs_lse=return_lse)
    fields: dict[str, Any] = {field.name: getattr(dense, field.name) for field in dataclasses.fields(dense)}
    problem = Problem(
        **fields,
        mask_block_q=block_q,
        mask_block_k=block_k,
        workload=workload,
    )
    given = Operands(
        q=operands.q,
        k=operands.k,
        v=operands.v,
        block_mask=_blocks(problem, block_mask),
        q_segments=operands.q_segments,
        kv_segments=operands.kv_segments,
        kv_lengths=operands.kv_lengths,
    )
    outputs = run(
        CALL,
        problem,
        given,
        platform=platform,
        cfg=cfg,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
    )
    # They are zero already; this is for their cotangents, which may not be numbers.
    out = zero_beyond(outputs["out"], lengths_of(mask, problem.batch)[0])
    return (out, outputs["lse"]) if return_lse else out


def _block_sizes(block_size: Any) -> tuple[int, int]:
    sizes = tuple(block_size) if isinstance(block_size, tuple | list) else (block_size, block_size)
    whole = tuple(size for size in map(as_integer, sizes) if size is not None)
    if len(sizes) != 2 or len(whole) != 2:
        raise UsageError(f"block_size must be an integer or a pair (bq, bk), got {shown(block_size)}")
    return whole


def _blocks(problem: Problem, block_mask: Any) -> Bool[Array, "_b _n R C"]:
    array = check_array("block_mask", block_mask)
    if array.dtype != bool and not jnp.issubdtype(array.dtype, jnp.integer):
        raise UsageError(f"block_mask must be boolean or integer, got {array.dtype}")
    if array.ndim == 2:
        array = array[None, None]
    wanted = problem.block_mask_shape[2:]
    if array.ndim != 4 or array.shape[2:] != wanted or array.shape[0] not in (1, problem.batch):
        raise UsageError(
            f"block_mask must be {list(wanted)} or [1 | {problem.batch}, 1 | {problem.num_kv_heads} | "
            f"{problem.num_q_heads}, {wanted[0]}, {wanted[1]}] for blocks of {problem.mask_block_q} queries and "
            f"{problem.mask_block_k} keys, got {list(array.shape)}"
        )
    array = expand_heads(array.astype(bool), problem.num_q_heads, problem.num_kv_heads, name="block_mask")
    return array  # type: ignore[return-value]
