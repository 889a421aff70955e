"""The declaration of ``flash_attention`` for the call path, and the gradients that no kernel of it makes."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attn_tune.api.attention_arrays import LETTERS, SHARED, with_shapes as with_dense_shapes
from attn_tune.api.call import Outputs
from attn_tune.api.declaration import Call
from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands, Residuals
from attn_tune.ops.flash_attention.problem import NAME, Problem
from attn_tune.ops.flash_attention.unnormalised import row_maximum, unnormalise

# Beside a lower number float32 does not hold the logarithm of a sum, nor do kernels in base 2 one near the lowest.
_LOWEST_LSE = -1e6


def _outputs(problem: Problem, operands: Operands) -> dict[str, jax.ShapeDtypeStruct]:
    batch, q_len, heads, _ = operands.q.shape
    out = jax.ShapeDtypeStruct((batch, q_len, heads, operands.v.shape[3]), operands.q.dtype)
    if not problem.needs_lse:
        return {"out": out}
    return {"out": out, "lse": jax.ShapeDtypeStruct((batch, heads, q_len), jnp.float32)}


def _with_shapes(problem: Problem, operands: Operands) -> Problem:
    if problem.has_offsets and operands.q_offsets is None:
        # A batch that ``vmap`` folded goes without them.
        problem = dataclasses.replace(problem, has_offsets=False)
    return with_dense_shapes(problem, operands)


def _place(operands: Operands, first: dict[str, Array]) -> Operands:
    """Move the words of dropout to a shard's place, so that it drops the weights that the whole call would drop."""
    if operands.dropout is None:
        return operands
    place = [jnp.uint32(0), *(jnp.asarray(first[letter]).astype(jnp.uint32) for letter in "bn")]
    return operands._replace(dropout=operands.dropout + jnp.stack(place))


def _backward_inputs(operands: Operands, residuals: dict[str, Array], cotangents: dict[str, Array]) -> BackwardInputs:
    lse = residuals["lse"]
    if operands.bias is not None:
        # Of a row that a bias such as -1e9 hides: its weights would be too large by as many keys as it has, or NaN. So
        # they are zero.
        lse = jnp.where(jnp.isneginf(lse), lse, jnp.maximum(lse, _LOWEST_LSE))
    saved = Residuals(residuals["out"], lse)
    delta = row_delta(saved, cotangents["out"], cotangents.get("lse"))
    return BackwardInputs(operands, saved, cotangents["out"], delta)


def row_delta(
    residuals: Residuals, dout: Float[Array, "B T N V"], dlse: Float[Array, "B N T"] | None
) -> Float[Array, "B N T"]:
    """``rowsum(dout * out) - dlse`` in float32; zero for fully masked rows, for any ``dlse`` there.

    ``dlse`` is None where the lse was not returned.
    """
    product = jnp.einsum(
        "btnv,btnv->bnt",
        dout.astype(jnp.float32),
        residuals.out.astype(jnp.float32),
        precision=jax.lax.Precision.HIGHEST,
    )
    if dlse is not None:
        product = product - dlse.astype(jnp.float32)
    return jnp.where(jnp.isneginf(residuals.lse), 0.0, product)


def _more_gradients(inputs: BackwardInputs) -> dict[str, Array]:
    sinks = inputs.operands.sinks
    if sinks is None:
        return {}
    return {"sinks": sink_gradient(sinks, inputs.residuals.lse, inputs.delta)}


def sink_gradient(
    sinks: Float[Array, " N"], lse: Float[Array, "B N T"], delta: Float[Array, "B N T"]
) -> Float[Array, " N"]:
    """The gradient of the sink logits: a sink is a key whose value is zero, so its ``dp`` is zero too."""
    # Of a row that sees nothing zero, and never the difference of two infinities.
    weight = jnp.exp(sinks[None, :, None] - jnp.where(jnp.isneginf(lse), jnp.inf, lse))
    return -jnp.sum(weight * delta, axis=(0, 2)).astype(sinks.dtype)


def without_denominator(problem: Problem, operands: Operands, extra: Mapping[str, Array], outputs: Outputs) -> Outputs:
    """The outputs of a call whose ``out`` is not divided by the softmax denominator.

    ``extra["largest_sinks"]``, one logit a query head, is present where there are sinks.
    """
    maximum = row_maximum(problem, operands, extra.get("largest_sinks"))
    return {**outputs, "out": unnormalise(outputs["out"], outputs["lse"], maximum)}


def _with_residuals(problem: Problem) -> Problem:
    return dataclasses.replace(problem, needs_lse=True)


CALL = Call(
    op=NAME,
    letters={
        **LETTERS,
        "q_segments": "bt",
        "kv_segments": "bs",
        "q_positions": "bt",
        "kv_positions": "bs",
        "largest_sinks": "n",
        "dropout": "w",
        "kv_lengths": "b",
        "q_offsets": "r",
        "kv_offsets": "r",
        "lse": "bnt",
        "delta": "bnt",
    },
    outputs=_outputs,
    with_shapes=_with_shapes,
    unfolded=("q_offsets", "kv_offsets"),
    place=_place,
    gradients=("q", "k", "v", "bias"),
    residuals=("out", "lse"),
    with_residuals=_with_residuals,
    backward_inputs=_backward_inputs,
    more_gradients=_more_gradients,
    alternative=(
        "attn_tune.attention is differentiated any number of times that starts in reverse mode, "
        "jax.nn.dot_product_attention in any mode"
    ),
    **SHARED,
)
