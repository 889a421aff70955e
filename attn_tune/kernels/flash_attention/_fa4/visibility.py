"""Causality, windows, segments and positions in the words of FlashAttention-4's kernels."""

from collections.abc import Callable
from typing import Any, NamedTuple

import cutlass
import jax.numpy as jnp
from cutlass import cute
from fa4_jax.cute.utils import scalar_to_ssa
from jaxtyping import Array

from attn_tune.kernels.flash_attention._fa4.shapes import round_up
from attn_tune.kernels.lang.libraries.features import visible_bounds
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem

# Tiles of queries and of keys have at most so many: ids and positions are padded to a multiple of it, for the kernels
# ask for those of a whole tile.
_LONGEST_TILE = 256


class Edges(NamedTuple):
    """The mask that the kernels make themselves: causal alone, or a window with either bound."""

    causal: bool
    window: bool
    left: int | None
    right: int | None


def edges(problem: Problem) -> Edges:
    """The bounds that hide something, unless positions take their place."""
    left, right = (None, None) if problem.has_positions else visible_bounds(problem)
    if left is None and right == 0:
        return Edges(True, False, None, None)
    return Edges(False, (left, right) != (None, None), left, right)


def marks(problem: Problem, operands: Operands) -> tuple[Array, ...]:
    """Ids of queries and keys, then positions of queries and keys, as far as the problem has them; int32."""
    found: list[Any] = []
    if problem.has_segments:
        found += [operands.q_segments, operands.kv_segments]
    if problem.has_positions:
        found += [operands.q_positions, operands.kv_positions]
    return tuple(_padded(array) for array in found)


def mask_of(problem: Problem) -> Callable[..., Any] | None:
    """The function that a kernel asks whether a query sees a key; None where its own mask says all."""
    if not (problem.has_segments or problem.has_positions):
        return None
    segments, positions = problem.has_segments, problem.has_positions
    left, right = problem.bounds
    furthest_back = None if left is None else -left

    @cute.jit
    def sees(batch: Any, head: Any, query: Any, key: Any, lengths: Any, marks: Any) -> Any:
        b, q, k = batch[0], query[0], key[0]
        seen = cutlass.Boolean(True)
        if cutlass.const_expr(segments):
            seen = marks[0][b, q] == marks[1][b, k]
        if cutlass.const_expr(positions):
            ahead = marks[-1][b, k] - marks[-2][b, q]
            if cutlass.const_expr(right is not None):
                seen = seen & (ahead <= right)
            if cutlass.const_expr(furthest_back is not None):
                seen = seen & (ahead >= furthest_back)
        return scalar_to_ssa(seen, cutlass.Boolean)

    return sees


def _padded(array: Array) -> Array:
    length = array.shape[1]
    return jnp.pad(array.astype(jnp.int32), ((0, 0), (0, round_up(length, _LONGEST_TILE) - length)))
