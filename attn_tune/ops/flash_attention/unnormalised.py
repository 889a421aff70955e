"""The output before its division by the softmax denominator: ``out * exp(lse - row_max)``."""

# JAX declares no types of some functions that stand here.
# pyright: reportUnknownMemberType=false

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.masks.visibility import in_bounds
from attn_tune.ops.typed_jax import fori_loop

_CHUNK = 256


def row_maximum(
    problem: Problem, operands: Operands, largest_sinks: Float[Array, " N"] | None
) -> Float[Array, "B N T"]:
    """The largest visible logit of each row, its largest single sink included; minus infinity where there is none.

    O(T) memory: one pass over key chunks finds the largest logit of each row and its key, and no derivative. Then the
    logit of that key alone is computed once more, and takes the gradient. Of equal logits the first key takes it; of a
    logit and a sink that are equal each takes half.
    """
    constant = jax.tree.map(jax.lax.stop_gradient, operands)
    largest, column = _largest_logit(problem, constant)
    seen = ~jnp.isneginf(largest)
    logit = _logit_of(problem, operands, column, seen)
    # The value is that of the pass: what is added is zero.
    maximum = largest + jnp.where(seen, logit - jax.lax.stop_gradient(logit), 0.0)
    if largest_sinks is not None:
        maximum = jnp.maximum(maximum, largest_sinks[None, :, None])
    return maximum


def unnormalise(
    out: Float[Array, "B T N V"], lse: Float[Array, "B N T"], maximum: Float[Array, "B N T"]
) -> Float[Array, "B T N V"]:
    """``out * exp(lse - maximum)``; zero where the row sees nothing."""
    # Two guards, so that the untaken branch has no NaN gradient either.
    empty = jnp.isneginf(maximum)
    factor = jnp.exp(jnp.where(empty, 0.0, lse) - jnp.where(empty, 0.0, maximum))
    factor = jnp.where(empty, 0.0, factor).transpose(0, 2, 1)[..., None]
    return (out.astype(jnp.float32) * factor).astype(out.dtype)


def _largest_logit(problem: Problem, operands: Operands) -> tuple[Float[Array, "B N T"], Int[Array, "B N T"]]:
    """The largest visible logit of each row, and its key; of a row that sees nothing minus infinity, and any key."""
    kv_len = operands.k.shape[1]
    width = min(_CHUNK, kv_len)

    def chunk(index: Array | int) -> tuple[Array, Array]:
        # The last chunk starts early enough to be whole: keys that are read again cannot change a maximum.
        start = jnp.minimum(jnp.asarray(index, jnp.int32) * width, kv_len - width)
        logits = _logits(problem, operands, start, width)
        return logits.max(axis=-1), start + jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def step(index: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        (old, old_column), (new, new_column) = found, chunk(index)
        return jnp.maximum(old, new), jnp.where(new > old, new_column, old_column)

    return fori_loop(1, -(-kv_len // width), step, chunk(0))


def _logits(problem: Problem, operands: Operands, start: Array, width: int) -> Float[Array, "B N T C"]:
    """The logits of ``width`` keys from ``start`` on, minus infinity where a row may not look."""

    def cut(array: Array, axis: int) -> Array:
        if array.shape[axis] == 1:
            return array
        return jax.lax.dynamic_slice_in_dim(array, start, width, axis)

    q, k = operands.q, cut(operands.k, 1)
    batch, q_len, heads, head_dim = q.shape
    kv_len, kv_heads = operands.k.shape[1], k.shape[2]
    grouped = q.reshape(batch, q_len, kv_heads, heads // kv_heads, head_dim)
    logits = jnp.einsum(
        "btkgh,bskh->bkgts",
        grouped,
        k,
        # A kernel's float32 products are nearly exact on a GPU, where XLA's default is one pass of tf32.
        precision=jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else problem.precision,
        preferred_element_type=jnp.float32,
    ).reshape(batch, heads, q_len, -1)
    logits = (logits * problem.scale).astype(problem.logits_dtype).astype(jnp.float32)
    if problem.soft_cap is not None:
        logits = problem.soft_cap * jnp.tanh(logits / problem.soft_cap)
    if operands.bias is not None:
        logits = logits + cut(operands.bias, 3).astype(jnp.float32)
    visible = jnp.ones((1, 1, 1, 1), bool)
    if operands.mask is not None:
        visible = cut(operands.mask, 3)
    if operands.q_segments is not None and operands.kv_segments is not None:
        same = operands.q_segments[:, :, None] == cut(operands.kv_segments, 1)[:, None, :]
        visible = visible & same[:, None]
    if operands.q_positions is not None and operands.kv_positions is not None:
        q_positions = operands.q_positions[:, None, :, None]
        kv_positions = cut(operands.kv_positions, 1)[:, None, None, :]
    else:
        q_positions = (jnp.arange(q_len) + kv_len - q_len)[None, None, :, None]
        kv_positions = (start + jnp.arange(width))[None, None, None, :]
    bounds = in_bounds(q_positions, kv_positions, causal=problem.causal, window=problem.window)
    return jnp.where(visible & bounds, logits, -jnp.inf)


def _logit_of(problem: Problem, operands: Operands, column: Int[Array, "B N T"], seen: Array) -> Float[Array, "B N T"]:
    """The logit of one key a row, differentiable; not rounded, which has no part in a derivative."""
    heads, kv_heads = operands.q.shape[2], operands.k.shape[2]
    head = jnp.arange(heads) // (heads // kv_heads)

    def picked(keys: Float[Array, "S K H"], column: Int[Array, "N T"]) -> Float[Array, "N T H"]:
        return keys[column, head[:, None]]

    # Mapped over the batch, which may be sharded. Query heads are not grouped: where they are sharded and shared, that
    # would cut a mesh axis in two.
    keys = jax.vmap(picked)(operands.k, column)
    # A row that sees nothing may have found padding, which may not be a number.
    seen = seen[..., None]
    queries = operands.q.swapaxes(1, 2)
    queries, keys = (jnp.where(seen, x, 0).astype(jnp.float32) for x in (queries, keys))
    logit = problem.scale * jnp.sum(queries * keys, axis=-1)
    if problem.soft_cap is not None:
        logit = problem.soft_cap * jnp.tanh(logit / problem.soft_cap)
    if operands.bias is not None:
        logit = logit + _bias_of(operands.bias, column)
    return logit


def _bias_of(bias: Float[Array, "_b _n _t _s"], column: Int[Array, "B N T"]) -> Float[Array, "B N T"]:
    """The bias of one key a row."""

    def pick(table: Array, column: Array) -> Array:
        row = 0 if table.shape[0] == 1 else jnp.arange(table.shape[0])
        return jnp.broadcast_to(table[row, 0 if table.shape[1] == 1 else column], column.shape)

    shared = tuple(axis for axis in (0, 1) if bias.shape[axis] == 1)
    for axis in (1, 0):
        pick = jax.vmap(pick, (None if axis in shared else 0, 0))
    return pick(jnp.squeeze(bias.astype(jnp.float32), shared), column)
