"""FlashAttention-4 on Hopper in the contract of the op: one custom call a direction."""

from typing import Any

import jax
import jax.numpy as jnp
from cutlass.jax import cutlass_call
from jaxtyping import Array

from attn_tune.kernels.flash_attention._fa4 import launches
from attn_tune.kernels.flash_attention._fa4.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention._fa4.sequences import taken_apart
from attn_tune.kernels.flash_attention._fa4.shapes import padded_dims, round_up
from attn_tune.kernels.flash_attention._fa4.tiles import listed
from attn_tune.kernels.flash_attention._fa4.visibility import marks
from attn_tune.kernels.lang.libraries.cute import compile_for
from attn_tune.ops.fields.padding import zero_beyond
from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands
from attn_tune.ops.flash_attention.problem import Problem

# The place of the arrays of zeros among the backward's operands, and that of what becomes of them among its results.
_SUMS_IN, _SUMS_OUT = 7, 6


def forward_call(problem: Problem, config: ForwardConfig, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in the query's dtype and, if needed, ``lse`` [B, N, T] in float32, sinks included."""
    p, o, offsets = taken_apart(problem, operands)
    q, (k, v) = o.q, _keys_and_values(o)
    *batch, q_len, heads, _ = q.shape
    lse = [_float32(*batch, heads, q_len)] * p.needs_lse
    out, lse = _call(
        launches.forward,
        (jax.ShapeDtypeStruct((*batch, q_len, heads, v.shape[-1]), q.dtype), tuple(lse)),
        (
            *(q, k, v, _given(o.sinks), offsets, marks(p, o)),
            listed(p, o, config.block_q, config.block_k),
        ),
        problem=p,
        config=config,
    )
    return _batched({"out": out} | ({"lse": lse[0]} if lse else {}), offsets)


def backward_call(
    problem: Problem, config: BackwardConfig, inputs: BackwardInputs, *, deterministic: bool
) -> dict[str, Array]:
    """``dq``, ``dk`` and ``dv``, each like its primal.

    The library makes ``delta`` of ``out`` and ``dout`` itself, less a gradient of the lse.
    """
    p, o, offsets = taken_apart(problem, inputs.operands)
    q, (k, v) = o.q, _keys_and_values(o)
    dout, out = _alone(inputs.dout, offsets), _alone(inputs.residuals.out, offsets)
    h, v_dim = padded_dims(p)
    *batch, _, heads, _ = q.shape
    kv_heads = p.num_kv_heads
    rows, keys = round_up(p.q_len, config.block_q), round_up(p.kv_len, config.block_k)
    sequences, row_tiles, key_tiles = batch, rows // config.block_q, keys // config.block_k
    if offsets:
        # Each sequence may have all tiles, and its sums begin with one.
        count = offsets[0].shape[1] - 1
        sequences, rows, keys = [count], rows + count * config.block_q, keys + count * config.block_k
    sums = []
    if p.group_size > 1:
        sums += [jnp.zeros((*batch, kv_heads, keys * dim), jnp.float32) for dim in (h, v_dim)]
    if deterministic:
        sums.append(jnp.zeros((*sequences, heads, row_tiles, 1), jnp.int32))
        if p.group_size > 1:
            sums += [jnp.zeros((*sequences, kv_heads, key_tiles, 2), jnp.int32)] * 2
    dlse = _given(_dlse(out, dout, _alone(inputs.delta, offsets)) if p.has_lse_gradient else None)
    lse = _given(_alone(inputs.residuals.lse, offsets))
    # The order of the sums is that of all tiles.
    lists = () if deterministic else listed(p, o, config.block_q, config.block_k, by_keys=True)
    results = (
        *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)),
        _float32(*batch, heads, rows),
        _float32(*batch, heads, rows),
        _float32(*batch, heads, rows * h),
        *([tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in sums)] * bool(sums)),
    )
    dq, dk, dv, *_ = _call(
        launches.backward,
        results,
        (q, k, v, dout, out, lse, dlse, tuple(sums), offsets, marks(p, o), lists),
        aliases={_SUMS_IN: _SUMS_OUT} if sums else None,
        problem=p,
        config=config,
        deterministic=deterministic,
    )
    return _batched({"dq": dq, "dk": dk, "dv": dv}, offsets)


def _call(launch: Any, results: Any, operands: Any, *, aliases: Any = None, **constants: Any) -> Any:
    compile_for(launches.ARCHITECTURE)
    call = cutlass_call(
        launch,
        output_shape_dtype=results,
        input_output_aliases=aliases,
        # What a launch depends on besides its operands; without it the DSL would trace each one twice.
        compile_key=(launch.__name__, *constants.values()),
        **constants,
    )
    # XLA must not move slices and updates of a loop into the call, as in ``kernels/lang/triton/call.py``.
    return jax.lax.optimization_barrier(call(*(jax.lax.optimization_barrier(operands) if aliases else operands)))


def _dlse(out: Array, dout: Array, delta: Array) -> Array:
    """The gradient of the lse: what the given ``delta`` is short of the product's row sums."""
    product = out.astype(jnp.float32) * dout.astype(jnp.float32)
    return product.sum(-1).mT - delta


def _alone(array: Array, offsets: tuple[Array, ...]) -> Array:
    """An array without the batch of one, where sequences are taken by their offsets."""
    return array[0] if offsets else array


def _batched(arrays: dict[str, Array], offsets: tuple[Array, ...]) -> dict[str, Array]:
    """Results with a batch: that of one where sequences were taken by their offsets."""
    return {name: x[None] for name, x in arrays.items()} if offsets else arrays


def _keys_and_values(operands: Operands) -> tuple[Array, Array]:
    # The kernels read whole tiles and multiply what is hidden by zero.
    lengths = operands.kv_lengths
    return zero_beyond(operands.k, lengths), zero_beyond(operands.v, lengths)


def _given(array: Array | None) -> tuple[Array, ...]:
    return () if array is None else (array,)


def _float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)
