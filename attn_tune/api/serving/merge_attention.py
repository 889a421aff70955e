"""The public ``merge_attention``: attention over parts of the keys, merged into attention over all of them."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from attn_tune.api.call import run
from attn_tune.api.declaration import Call
from attn_tune.ops.fields.arguments import DTYPES, check_array, check_not_empty, dtype_name
from attn_tune.ops.fields.cache import SAME
from attn_tune.ops.merge_attention.operands import Operands
from attn_tune.ops.merge_attention.problem import MOST_PARTS, NAME, Problem
from attn_tune.schema.errors import UsageError


def _outputs(problem: Problem, operands: Operands) -> dict[str, jax.ShapeDtypeStruct]:
    shape = operands.out0.shape
    return {
        "out": jax.ShapeDtypeStruct(shape, jnp.dtype(problem.merged_dtype)),
        "lse": jax.ShapeDtypeStruct(shape[:2], jnp.float32),
    }


def _with_shapes(problem: Problem, operands: Operands) -> Problem:
    rows, heads, _ = operands.out0.shape
    return dataclasses.replace(problem, num_rows=rows, num_q_heads=heads)


_CALL = Call(
    op=NAME,
    letters={name: "rnv" if name.startswith("out") else "rn" for name in (*Operands._fields, "out", "lse")},
    main={"out0": "outs"},
    outputs=_outputs,
    with_shapes=_with_shapes,
    parallel=("r", "n"),
    words={"r": "queries", "n": "query heads", "v": "head dim"},
    remedies={"v": "it has to be whole on each device; shard queries or heads instead"},
    plain_derivative=True,
)


def merge_attention(
    outs: Sequence[Float[Array, "..."]],
    lses: Sequence[Float[Array, "..."]],
    *,
    out_dtype: Any = None,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    out_specs: PartitionSpec | None = None,
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Attention over two to four parts of the keys, merged into attention over all of them: ``(out, lse)``.

    Each part is what attention of the same queries returns over keys of its own: a shared prefix and what follows it,
    or the keys of another device. Merging is associative: what was merged is a part again, of more than four. A part
    whose lse is minus infinity saw nothing and counts for nothing, even where its output is not a number; where all
    parts are such, the output is zero and the lse minus infinity. Any other lse must be finite: plus infinity or NaN
    makes the output and the lse of its row NaN. Sinks belong to one part alone.

    Differentiable in outputs and lse; the derivative is that of the plain computation.

    Args:
      outs: the outputs of the parts, two to four of one shape and dtype: ``[B, N, V]``, ``[tokens, N, V]`` or
        ``[B, T, N, V]``. They are separate arrays, for a stack would be a copy.
      lses: the natural logarithm of each part's softmax denominator, float32 with the axes of its output but the last.
        That of ``flash_attention`` is ``[B, N, T]``: give ``lse.swapaxes(1, 2)``.
      out_dtype: the dtype of the output, bfloat16, float16 or float32; None is that of the parts. Sums are float32.
      platform: the kernel to use, as in ``flash_attention``.
      cfg: the config to use, as in ``flash_attention``.
      mesh: run under ``shard_map``, as in ``flash_attention``, over queries and heads.
      in_specs: the spec of ``outs`` as three axes, queries, heads and width, on ``mesh``.
      out_specs: the spec of the output, likewise.

    Returns:
      The output like those of the parts, and its lse in float32 like theirs.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one.
    """
    parts, logs = _checked(outs, lses)
    first = parts[0]
    shape = (-1, *first.shape[-2:])
    dtype = first.dtype.name
    problem = Problem(
        num_rows=first.size // (first.shape[-2] * first.shape[-1]),
        num_q_heads=first.shape[-2],
        v_head_dim=first.shape[-1],
        num_parts=len(parts),
        dtype=dtype,
        out_dtype=SAME if out_dtype is None else dtype_name("out_dtype", out_dtype),
    )
    pairs = [(out.reshape(shape), lse.reshape(shape[:2])) for out, lse in zip(parts, logs, strict=True)]
    outputs = run(
        _CALL,
        problem,
        Operands(*(array for pair in pairs for array in pair)),
        platform=platform,
        cfg=cfg,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
    )
    return outputs["out"].reshape(first.shape), outputs["lse"].reshape(first.shape[:-1])


def _checked(outs: Any, lses: Any) -> tuple[list[Array], list[Array]]:
    """Outputs and lse of the parts, which fit one another."""
    for name, given in (("outs", outs), ("lses", lses)):
        if not isinstance(given, tuple | list):
            raise UsageError(f"{name} must be a list or tuple with an array for each part, got {type(given).__name__}")
    if not 2 <= len(outs) <= MOST_PARTS:
        raise UsageError(f"outs must have 2 to {MOST_PARTS} parts, got {len(outs)}; what was merged is a part again")
    if len(lses) != len(outs):
        raise UsageError(f"lses has {len(lses)} parts and outs {len(outs)}")
    parts = [check_array(f"outs[{i}]", out) for i, out in enumerate(outs)]
    logs = [check_array(f"lses[{i}]", lse) for i, lse in enumerate(lses)]
    first = parts[0]
    for i, (out, lse) in enumerate(zip(parts, logs, strict=True)):
        if check_not_empty(f"outs[{i}]", out).ndim not in (3, 4):
            raise UsageError(f"outs[{i}] must be [tokens, N, V] or [B, T, N, V], got shape {out.shape}")
        if out.dtype.name not in DTYPES:
            raise UsageError(f"outs[{i}] must have dtype {', '.join(DTYPES)}, got {out.dtype}")
        if (out.shape, out.dtype) != (first.shape, first.dtype):
            raise UsageError(
                f"outs must have one shape and dtype, got {first.dtype}{list(first.shape)} and "
                f"outs[{i}] {out.dtype}{list(out.shape)}"
            )
        if lse.shape != out.shape[:-1] or lse.dtype != jnp.float32:
            raise UsageError(
                f"lses[{i}] must be float32{list(out.shape[:-1])}, the axes of outs[{i}] but the last, got "
                f"{lse.dtype}{list(lse.shape)}"
            )
    return parts, logs
