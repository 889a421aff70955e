"""Queries that are codes, for kernels that multiply wider numbers."""

from typing import Any

import jax.numpy as jnp


def dequantised(problem: Any, operands: Any, first: int | None = None) -> Any:
    """Operands with queries ``[tokens, N, H]`` in the problem's dtype and without their scale; others as they are.

    Args:
      first: how many of the first queries are needed; None is all.
    """
    if operands.q_scale is None:
        return operands
    scale = jnp.broadcast_to(operands.q_scale, operands.q.shape[:2])[:first, :, None]
    q = operands.q[:first].astype(jnp.float32) * scale
    return operands._replace(q=q.astype(problem.dtype), q_scale=None)
