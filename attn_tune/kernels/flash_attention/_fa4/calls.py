"""FlashAttention-4 on Hopper in the contract of the op: one custom call a direction."""

from typing import Any

import jax
import jax.numpy as jnp
from cutlass.jax import cutlass_call
from jaxtyping import Array

from attn_tune.kernels.flash_attention._fa4 import launches
from attn_tune.kernels.flash_attention._fa4.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention._fa4.limits import padded_dims, round_up
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
    q, (k, v) = operands.q, _keys_and_values(operands)
    batch, q_len, heads, _ = q.shape
    lse = [_float32(batch, heads, q_len)] * problem.needs_lse
    out, lse = _call(
        launches.forward,
        (jax.ShapeDtypeStruct((batch, q_len, heads, v.shape[3]), q.dtype), tuple(lse)),
        (
            *(q, k, v, _given(operands.sinks), marks(problem, operands)),
            listed(problem, operands, config.block_q, config.block_k),
        ),
        problem=problem,
        config=config,
    )
    return {"out": out} | ({"lse": lse[0]} if lse else {})


def backward_call(
    problem: Problem, config: BackwardConfig, inputs: BackwardInputs, *, deterministic: bool
) -> dict[str, Array]:
    """``dq``, ``dk`` and ``dv``, each like its primal.

    The library makes ``delta`` of ``out`` and ``dout`` itself, less a gradient of the lse.
    """
    operands, p = inputs.operands, problem
    q, (k, v) = operands.q, _keys_and_values(operands)
    out, dout = inputs.residuals.out, inputs.dout
    h, v_dim = padded_dims(p)
    batch, heads, kv_heads = p.batch, p.num_q_heads, p.num_kv_heads
    rows, keys = round_up(p.q_len, config.block_q), round_up(p.kv_len, config.block_k)
    sums = []
    if p.group_size > 1:
        sums += [jnp.zeros((batch, kv_heads, keys * dim), jnp.float32) for dim in (h, v_dim)]
    if deterministic:
        sums.append(jnp.zeros((batch, heads, rows // config.block_q, 1), jnp.int32))
        if p.group_size > 1:
            sums += [jnp.zeros((batch, kv_heads, keys // config.block_k, 2), jnp.int32)] * 2
    dlse = _given(_dlse(inputs) if p.has_lse_gradient else None)
    # The order of the sums is that of all tiles.
    lists = () if deterministic else listed(p, operands, config.block_q, config.block_k, by_keys=True)
    results = (
        *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (q, k, v)),
        _float32(batch, heads, rows),
        _float32(batch, heads, rows),
        _float32(batch, heads, rows * h),
        *([tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in sums)] * bool(sums)),
    )
    dq, dk, dv, *_ = _call(
        launches.backward,
        results,
        (q, k, v, dout, out, (inputs.residuals.lse,), dlse, tuple(sums), marks(p, operands), lists),
        aliases={_SUMS_IN: _SUMS_OUT} if sums else None,
        problem=p,
        config=config,
        deterministic=deterministic,
    )
    return {"dq": dq, "dk": dk, "dv": dv}


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


def _dlse(inputs: BackwardInputs) -> Array:
    """The gradient of the lse: what the given ``delta`` is short of the product's row sums."""
    product = inputs.residuals.out.astype(jnp.float32) * inputs.dout.astype(jnp.float32)
    return product.sum(-1).transpose(0, 2, 1) - inputs.delta


def _keys_and_values(operands: Operands) -> tuple[Array, Array]:
    # The kernels read whole tiles and multiply what is hidden by zero.
    lengths = operands.kv_lengths
    return zero_beyond(operands.k, lengths), zero_beyond(operands.v, lengths)


def _given(array: Array | None) -> tuple[Array, ...]:
    return () if array is None else (array,)


def _float32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)
