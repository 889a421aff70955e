"""Dense attention under the mask of blocks, a group of heads at a time: high precision, and the working dtype.

Each group is a problem of ``flash_attention`` with a dense mask, by that op's reference, which shares no code with a
kernel of either op.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from attn_tune.ops.block_sparse_attention.operands import BackwardInputs, Operands
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.ops.flash_attention import operands as dense, reference as dense_reference
from attn_tune.ops.flash_attention.problem import Problem as DenseProblem
from attn_tune.ops.typed_jax import map_rows

type Answers = Callable[[DenseProblem, str, Any], dict[str, Array]]


def reference(problem: Problem, direction: str, inputs: Operands | BackwardInputs) -> dict[str, Array]:
    """Outputs (``out``, ``lse``) or gradients (``dq``, ``dk``, ``dv``) in float32, in float64 where that is enabled."""
    return _by_groups(problem, direction, inputs, dense_reference.reference)


def baseline(problem: Problem, direction: str, inputs: Operands | BackwardInputs) -> dict[str, Array]:
    """The same computed plainly in the working dtype, each output in its contract's dtype."""
    return _by_groups(problem, direction, inputs, dense_reference.baseline)


def as_dense(problem: Problem, **changes: Any) -> DenseProblem:
    """The problem of ``flash_attention`` that has every field but the mask of blocks."""
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(DenseProblem)}
    return DenseProblem(**fields | changes)


def _by_groups(
    problem: Problem, direction: str, inputs: Operands | BackwardInputs, answers: Answers
) -> dict[str, Array]:
    p, group = problem, problem.group_size
    spans_batch, spans_heads = (axis != "1" for axis in p.block_dims)
    small = as_dense(
        p, batch=1, num_q_heads=group, num_kv_heads=1, mask_dims="1nts" if spans_heads and group > 1 else "11ts"
    )
    operands = inputs if isinstance(inputs, Operands) else inputs.operands

    def one(index: Int[Array, ""]) -> dict[str, Array]:
        batch, kv_head = index // p.num_kv_heads, index % p.num_kv_heads

        def heads(array: Array, axis: int, count: int) -> Array:
            # One batch entry, and the heads that belong to one key head.
            return jax.lax.dynamic_slice_in_dim(entry(array), kv_head * count, count, axis)

        def entry(array: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(array, batch, 1, 0)

        def row(array: Array | None) -> Array | None:
            return None if array is None else entry(array)

        blocks = entry(operands.block_mask) if spans_batch else operands.block_mask
        if spans_heads:
            blocks = jax.lax.dynamic_slice_in_dim(blocks, kv_head * group, group, 1)
        given = dense.Operands(
            q=heads(operands.q, 2, group),
            k=heads(operands.k, 2, 1),
            v=heads(operands.v, 2, 1),
            mask=_spread(p, blocks),
            q_segments=row(operands.q_segments),
            kv_segments=row(operands.kv_segments),
            kv_lengths=row(operands.kv_lengths),
        )
        if isinstance(inputs, Operands):
            return answers(small, direction, given)
        residuals = dense.Residuals(heads(inputs.residuals.out, 2, group), heads(inputs.residuals.lse, 1, group))
        dout, delta = heads(inputs.dout, 2, group), heads(inputs.delta, 1, group)
        return answers(small, direction, dense.BackwardInputs(given, residuals, dout, delta))

    found = map_rows(one, jnp.arange(p.batch * p.num_kv_heads, dtype=jnp.int32))
    return {name: _joined(p, array, 1 if name == "lse" else 2) for name, array in found.items()}


def _joined(p: Problem, array: Array, axis: int) -> Array:
    """``[B * K, 1, ...]`` of groups as ``[B, ...]`` with all heads on ``axis``."""
    array = array.reshape(p.batch, p.num_kv_heads, *array.shape[2:])
    array = jnp.moveaxis(array, 1, axis)
    return array.reshape(*array.shape[:axis], -1, *array.shape[axis + 2 :])


def _spread(p: Problem, blocks: Bool[Array, "_b _n R C"]) -> Bool[Array, "_b _n T S"]:
    rows = jnp.repeat(blocks, p.mask_block_q, axis=2)[:, :, : p.q_len]
    return jnp.repeat(rows, p.mask_block_k, axis=3)[..., : p.kv_len]
