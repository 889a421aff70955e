"""One shard of a call: its part of the dropout mask, and the sums of gradients over shards."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attn_tune.kernels.flash_attention.operands import BackwardInputs, Operands
from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.parallel import Axes, Extent, summed_axes

# The letters of every array's dimensions, by the name of its field; ``w`` are the words of dropout.
DIMS = {
    "q": "btnh",
    "k": "bskh",
    "v": "bskv",
    "bias": "bnts",
    "mask": "bnts",
    "q_segments": "bt",
    "kv_segments": "bs",
    "q_positions": "bt",
    "kv_positions": "bs",
    "sinks": "n",
    "largest_sinks": "n",
    "dropout": "w",
    "kv_lengths": "b",
    "out": "btnv",
    "lse": "bnt",
    "dout": "btnv",
    "delta": "bnt",
    "dq": "btnh",
    "dk": "bskh",
    "dv": "bskv",
    "dbias": "bnts",
}
# They say how a call is cut.
MAIN = ("q", "k", "v")


def extent_of(problem: Problem) -> Extent:
    """The sizes of the problem's parallel dimensions."""
    return Extent(problem.batch, problem.num_q_heads, problem.num_kv_heads)


def output_types(
    problem: Problem, inputs: Operands | BackwardInputs
) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes and dtypes of the outputs of a launch with these inputs, by name."""
    if isinstance(inputs, BackwardInputs):
        o = inputs.operands
        like = {"dq": o.q, "dk": o.k, "dv": o.v, "dbias": o.bias}
        return {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype)
            for name, x in like.items()
            if x is not None
        }
    batch, q_len, heads, _ = inputs.q.shape
    out = jax.ShapeDtypeStruct((batch, q_len, heads, inputs.v.shape[3]), inputs.q.dtype)
    if not problem.needs_lse:
        return {"out": out}
    return {"out": out, "lse": jax.ShapeDtypeStruct((batch, heads, q_len), jnp.float32)}


def own_part(operands: Operands, axes: Axes) -> Operands:
    """Operands of one shard: its key/value head of those that shards share, and its place in the dropout mask."""
    if (head := _own_head(operands, axes)) is not None:
        k, v = (jax.lax.dynamic_slice_in_dim(x, head, 1, 2) for x in (operands.k, operands.v))
        operands = operands._replace(k=k, v=v)
    if operands.dropout is None:
        return operands
    batch, _, heads, _ = operands.q.shape
    first = [jnp.uint32(0)]
    for names, size in ((axes.batch, batch), (axes.heads, heads)):
        index = jax.lax.axis_index(names) if names else 0
        first.append(jnp.asarray(index * size).astype(jnp.uint32))
    return operands._replace(dropout=operands.dropout + jnp.stack(first))


def _own_head(operands: Operands, axes: Axes) -> Array | None:
    """The index of the key/value head that a shard reads, or None if it has no other."""
    heads = operands.k.shape[2]
    if not axes.shared or heads == 1:
        return None
    return jax.lax.axis_index(axes.shared) * heads // jax.lax.axis_size(axes.shared)


def run_shard(
    run: Callable[[Any], dict[str, Array]],
    inputs: Operands | BackwardInputs,
    axes: Axes,
    out_specs: dict[str, Any],
) -> dict[str, Array]:
    """One direction of one shard; a gradient of what the shards share is their sum, added in float32."""
    if not isinstance(inputs, BackwardInputs):
        outputs = run(own_part(inputs, axes))
        return {name: outputs[name] for name in out_specs}
    whole = inputs.operands
    grads = dict(run(inputs._replace(operands=own_part(whole, axes))))
    if (head := _own_head(whole, axes)) is not None:
        for name, x in (("dk", whole.k), ("dv", whole.v)):
            nothing = jnp.zeros(x.shape, x.dtype)
            grads[name] = jax.lax.dynamic_update_slice_in_dim(nothing, grads[name], head, 2)

    def total(name: str) -> Array:
        x, names = grads[name], summed_axes(out_specs[name], axes)
        return jax.lax.psum(x.astype(jnp.float32), names).astype(x.dtype) if names else x

    return {name: total(name) for name in out_specs}
