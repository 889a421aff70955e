"""The tanh soft cap, and its slope, in the words of FlashAttention-4's kernels.

The library's own functions divide by the cap, exactly: ten instructions and a branch a pair, which take longer than all
products. These multiply, or let the scale of the products do it.
"""

from collections.abc import Callable
from typing import Any

from cutlass import cute

from attn_tune.ops.flash_attention.problem import Problem


def scale_of(problem: Problem) -> float:
    """The scale that a kernel gives q.k, dq and dk; where it can be, over the soft cap."""
    cap = problem.soft_cap
    return problem.scale if cap is None or not _is_folded(problem) else problem.scale / cap


def cap_of(problem: Problem) -> Callable[..., Any] | None:
    """The function that a kernel applies to scaled logits before its mask, None without a soft cap."""
    cap = problem.soft_cap
    if cap is None:
        return None
    inverse = 1.0 if _is_folded(problem) else 1.0 / cap

    @cute.jit
    def capped(logits: Any, *_: Any, **_places: Any) -> Any:
        return cap * cute.math.tanh(logits * inverse, fastmath=True)

    return capped


def slope_of(problem: Problem) -> Callable[..., Any] | None:
    """The function that makes gradients of scaled logits of those of capped ones, None without a soft cap."""
    cap = problem.soft_cap
    if cap is None:
        return None
    inverse, most = (1.0, cap) if _is_folded(problem) else (1.0 / cap, 1.0)

    @cute.jit
    def sloped(grads: Any, logits: Any, *_: Any, **_places: Any) -> Any:
        squashed = cute.math.tanh(logits * inverse, fastmath=True)
        return grads * (most - most * squashed * squashed)

    return sloped


def _is_folded(problem: Problem) -> bool:
    # Gradients of logits are larger by the cap then, which float16 might not hold.
    return problem.dtype == "bfloat16"
