"""The op's operands as tokamax takes them, and its residuals as the op defines them."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from tokamax._src.ops.attention.base import Mask

from attn_tune.kernels.lang.libraries.features import visible_bounds
from attn_tune.kernels.lang.libraries.residuals import (
    finite_lse,
    own_delta,
    with_sinks,
)
from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands
from attn_tune.ops.flash_attention.problem import Problem

# What some of its kernels write in place of a hidden logit is the least finite number; a row whose largest logit is
# near it saw nothing.
_HIDDEN_BELOW = -1e30


def mask_of(problem: Problem, operands: Operands) -> Mask:
    """The plain causal mask by its name, any other edge as a range of keys for each row."""
    left, right = visible_bounds(problem)
    if (left, right) == (None, None):
        return Mask(operands.mask)
    if left is None and right == 0 and problem.q_len == problem.kv_len:
        return Mask(operands.mask, is_causal=True)
    position = jnp.arange(problem.q_len, dtype=jnp.int32)[None] + problem.offset
    end = None if right is None else jnp.clip(position + right + 1, 0, problem.kv_len)
    start = None if left is None else jnp.clip(position - left, 0, problem.kv_len)
    return Mask(operands.mask, k_start=start, k_end=end)


def settings(problem: Problem, operands: Operands) -> dict[str, Any]:
    """The keyword arguments that forward and backward have in common."""
    return {
        "logits_scale": problem.scale,
        "logits_soft_cap": problem.soft_cap,
        "bias": operands.bias,
        "mask": mask_of(problem, operands),
    }


def precision_of(problem: Problem) -> jax.lax.Precision:
    """16-bit operands are exact in one pass, whatever is asked."""
    return jax.lax.Precision(problem.precision if problem.dtype == "float32" else "default")


def forward_outputs(
    problem: Problem,
    operands: Operands,
    out: Float[Array, "B T N V"],
    residuals: tuple[Float[Array, "B N T"], Float[Array, "B N T"]],
) -> dict[str, Array]:
    """``out`` and ``lse`` from the output, the largest logits and the denominators."""
    largest, total = residuals
    empty = (largest < _HIDDEN_BELOW) | (total == 0)
    lse = jnp.where(empty, -jnp.inf, largest + jnp.log(jnp.where(empty, 1.0, total)))
    if _may_see_nothing(problem):
        # One more pass over the output, where nothing after it takes it in.
        out = jnp.where(empty.swapaxes(1, 2)[..., None], 0, out)
    return with_sinks(out.astype(problem.dtype), lse, operands.sinks)


def _may_see_nothing(problem: Problem) -> bool:
    """Whether some row may see no key: a causal one has its own position, unless that lies before the first key."""
    _, right = visible_bounds(problem)
    before = right is not None and problem.offset + right < 0
    return before or problem.mask_dims is not None


def backward_arguments(problem: Problem, inputs: BackwardInputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a backward class: with the lse as largest logit, every total is one."""
    operands = inputs.operands
    lse = finite_lse(inputs.residuals.lse)
    out, dout = own_delta(problem.has_lse_gradient, inputs.residuals.out, inputs.dout, inputs.delta)
    pair = (precision_of(problem),) * 2
    given = settings(problem, operands) | {
        "precision": (pair, pair),
        "logits_dtype": jnp.dtype(jnp.float32),
        "normalize_output": True,
    }
    absent = ("dropout_mask", "paging_info", "q_indices", "k_indices")
    given |= dict.fromkeys(absent) | {"dropout_rate": 0.0}
    arrays = ((lse, jnp.ones_like(lse)), out, dout, operands.q, operands.k, operands.v)
    return arrays, given


def gradients(grads: Any, operands: Operands) -> dict[str, Array]:
    """The op's names; each gradient like its primal."""
    found = {"dq": grads["q"], "dk": grads["k"], "dv": grads["v"]}
    primals = {"dq": operands.q, "dk": operands.k, "dv": operands.v}
    if operands.bias is not None:
        found["dbias"], primals["dbias"] = grads["bias"], operands.bias
    return {name: found[name].astype(primals[name].dtype) for name in found}
