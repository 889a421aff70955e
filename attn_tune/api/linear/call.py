"""The call that all of linear attention shares: from public arguments to outputs."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.call import run
from attn_tune.api.declaration import Call
from attn_tune.api.linear.arguments import (
    check_distinct,
    checked_gates,
    checked_scale,
    checked_slots,
    checked_state,
    checked_strengths,
    checked_tokens,
    checked_workload,
)
from attn_tune.api.swapped_axes import warn_of_swapped_axes
from attn_tune.ops.fields.arguments import checked_flag
from attn_tune.ops.fields.packed_arguments import checked_ends
from attn_tune.ops.recurrent.operands import BackwardInputs, Operands
from attn_tune.ops.recurrent.problem import RecurrentProblem

type Specs = Sequence[PartitionSpec | None]
type States = Float[Array, "sequences N H V"]
type Tokens = Float[Array, "B T N V"]


def recurrent(
    make: type[RecurrentProblem],
    gate: str,
    arrays: tuple[Any, Any, Any, Any, Any],
    *,
    scale: float | None,
    initial_state: States | None,
    cu_seqlens: Int[Array, " ends"] | None,
    slots: Int[Array, " sequences"] | None,
    return_state: bool,
    workload: str,
    **how: Any,
) -> Tokens | tuple[Tokens, States]:
    """The output like ``v`` and, with ``return_state``, the states after the last tokens or the pool that has them.

    Args:
      make: the problem of the op.
      gate: the kind of gates.
      arrays: queries, keys, values, gates and strengths, as they are given; all others too.
      how: the kernel, configs, mesh and specs, as ``run`` takes them.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a second derivative was asked for.
    """
    q, k, v = checked_tokens(*arrays[:3])
    return_state = checked_flag("return_state", return_state)
    rows, length, num_key_heads, head_dim = q.shape
    num_value_heads, v_head_dim = v.shape[2:]
    factor = checked_scale(scale, head_dim)
    ends = checked_ends(cu_seqlens, rows, length)
    batch = rows if ends is None else ends.shape[0] - 1
    workload = checked_workload(workload, ends is not None)
    g, beta = checked_gates(make.NAME, arrays[3], gate, q, v), checked_strengths(arrays[4], q, v)
    states = (batch, num_value_heads, head_dim, v_head_dim)
    places = checked_slots(slots, batch, initial_state, return_state)
    initial_state = checked_state(initial_state, states, is_pool=places is not None)
    if initial_state is not None:
        check_distinct(slots, initial_state.shape[0])
    if 0 in (rows, length, batch):
        out = jnp.zeros_like(v)
        state = jnp.zeros(states, jnp.float32) if initial_state is None else initial_state
        return (out, state) if return_state else out
    warn_of_swapped_axes(q, k)
    problem = make(
        batch=batch,
        length=length,
        num_value_heads=num_value_heads,
        num_key_heads=num_key_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        dtype=q.dtype.name,
        gate=gate,
        has_beta=beta is not None,
        has_initial_state=initial_state is not None,
        has_final_state=return_state,
        has_pool=places is not None,
        ragged=ends is not None,
        workload=workload,
        scale=factor,
    )
    outputs = run(
        _call(problem.NAME, gate, problem.ragged, problem.has_pool),
        problem,
        Operands(q=q, k=k, v=v, g=g, beta=beta, initial_state=initial_state, cu_seqlens=ends, slots=places),
        **how,
    )
    return (outputs["out"], outputs["state"]) if return_state else outputs["out"]


@functools.cache
def _call(op: str, gate: str, ragged: bool, has_pool: bool) -> Call:
    """The call of whole sequences, or of sequences end to end, whose number is a letter of its own and never cut.

    Sequences with a slot each are not cut either, as all devices would have to write into one pool.
    """
    state = "pnhv" if has_pool else "snhv" if ragged else "bnhv"
    only_heads = ragged or has_pool
    whole = "shard heads instead" if only_heads else "shard batch and heads instead"
    return Call(
        op=op,
        letters={
            **dict.fromkeys(("q", "k"), "btkh"),
            **dict.fromkeys(("v", "out", "dout"), "btnv"),
            "g": {"constant": "n", "channel": "btnh"}.get(gate, "btn"),
            "beta": "btn",
            **dict.fromkeys(("initial_state", "state", "dstate"), state),
            "cu_seqlens": "e",
            "slots": "s" if ragged else "b",
        },
        main={"q": "q", "k": "k", "v": "v"},
        outputs=_outputs,
        with_shapes=_with_shapes,
        parallel=("n",) if only_heads else ("b", "n"),
        groups={"n": "k"},
        words={"b": "batch", "t": "length", "n": "value heads", "k": "query/key heads", "h": "head dim"}
        | {"v": "value head dim", "s": "sequences", "e": "cu_seqlens", "p": "slots"},
        remedies={"t": f"a state goes from token to token, so {whole}", "h": whole, "v": whole}
        | dict.fromkeys("sbp", whole),
        gradients=("q", "k", "v", "g", "beta", "initial_state"),
        backward_inputs=None if has_pool else _backward_inputs,
        alternative="slots= updates states in place; without it the op is differentiated"
        if has_pool
        else "a jax.lax.scan over the tokens is differentiated in any mode, any number of times",
    )


def _outputs(problem: RecurrentProblem, operands: Operands) -> dict[str, jax.ShapeDtypeStruct]:
    found = {"out": jax.ShapeDtypeStruct(operands.v.shape, operands.v.dtype)}
    if problem.has_final_state:
        states = operands.initial_state if problem.has_pool else None
        shape = _with_shapes(problem, operands).state_shape if states is None else states.shape
        found["state"] = jax.ShapeDtypeStruct(shape, jnp.float32)
    return found


def _with_shapes(problem: RecurrentProblem, operands: Operands) -> RecurrentProblem:
    rows, length, key_heads, _ = operands.q.shape
    ends = operands.cu_seqlens
    return dataclasses.replace(
        problem,
        batch=rows if ends is None else ends.shape[0] - 1,
        length=length,
        num_key_heads=key_heads,
        num_value_heads=operands.v.shape[2],
    )


def _backward_inputs(operands: Operands, residuals: dict, cotangents: dict[str, Array]) -> BackwardInputs:
    return BackwardInputs(operands, cotangents["out"], cotangents.get("state"))
