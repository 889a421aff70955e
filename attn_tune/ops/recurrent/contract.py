"""The part of an ``Op`` that is the same for all of linear attention: outputs, operands, and what is counted."""

import math
from functools import partial

from attn_tune.ops.contract import Axis, Op, Operand, Output, OutputKind
from attn_tune.ops.recurrent.problem import WORKLOADS, RecurrentProblem


def outputs(problem: RecurrentProblem, direction: str) -> tuple[Output, ...]:
    """The output and the final states, or the gradient of every operand that is differentiable: over a pool of none."""
    p = problem
    if direction == "fwd":
        pool = "initial_state" if p.has_pool else ""
        # The calls of a decoding job add up their roundings of the state, which is judged in float32 there.
        working = "" if p.is_decoding else p.dtype
        state = Output(
            name="state", kind=OutputKind.STATE, working_dtype=working, updates=pool, cancels=not p.is_decoding
        )
        return (Output(name="out", cancels=True), *([state] if p.has_final_state else []))
    # The logarithms of a head's gates are added up from token to token, and so are the gradients, the other way round.
    summed = {"g"} if p.gate == "head" else set[str]()
    return tuple(
        Output(
            name=f"d{one.name}",
            kind=OutputKind.GRADIENT,
            of=one.name,
            cumulative=one.name in summed,
            working_dtype=p.dtype,
            cancels=True,
        )
        for one in operands(p, direction)
        if one.differentiable
    )


def operands(problem: RecurrentProblem, direction: str) -> tuple[Operand, ...]:
    """Queries, keys, values, gates, strengths and initial states; where sequences begin; slots.

    All of real numbers are differentiable, unless states are in a pool, which is updated in place.
    """
    p = problem
    keys = (*p.rows, p.num_key_heads, p.head_dim)
    numbers = (*p.rows, p.num_value_heads)
    real = partial(Operand, differentiable=not p.has_pool)
    found = [
        real(name="q", shape=keys, dtype=p.dtype),
        real(name="k", shape=keys, dtype=p.dtype),
        real(name="v", shape=(*numbers, p.v_head_dim), dtype=p.dtype),
    ]
    if p.has_gate:
        found.append(real(name="g", shape=p.gate_shape, dtype="float32"))
    if p.has_beta:
        found.append(real(name="beta", shape=numbers, dtype="float32"))
    if p.has_initial_state:
        found.append(real(name="initial_state", shape=p.state_shape, dtype="float32", in_place=p.has_pool))
    if p.ragged:
        found.append(Operand(name="cu_seqlens", shape=(p.batch + 1,), dtype="int32"))
    if p.has_pool:
        found.append(Operand(name="slots", shape=(p.batch,), dtype="int32"))
    return tuple(found)


def flops(problem: RecurrentProblem, direction: str) -> int:
    """Floating-point operations of the recurrence's products, two per multiply-add; forms in chunks need more.

    A token and value head has the products ``k u^T`` and ``S^T q`` with the state, and of the delta rule ``S^T k`` too.
    Each of these has two gradients.
    """
    p = problem
    products = 3 if p.has_delta else 2
    forward = 2 * products * sum(p.lengths) * p.num_value_heads * p.head_dim * p.v_head_dim
    return forward if direction == "fwd" else 2 * forward


def bytes_moved(problem: RecurrentProblem, direction: str) -> int:
    """The fewest bytes: each input read once, each output written once."""
    p = problem
    size = 4 if p.dtype == "float32" else 2
    tokens = sum(p.lengths)
    queries_and_keys = 2 * size * tokens * p.num_key_heads * p.head_dim
    values = size * tokens * p.num_value_heads * p.v_head_dim
    of_token = {"head": 1, "channel": p.head_dim}.get(p.gate, 0) + p.has_beta
    numbers = 4 * p.num_value_heads * (tokens * of_token + (p.gate == "constant"))
    state = 4 * p.batch * math.prod(p.state_shape[1:])
    if direction == "fwd":
        return queries_and_keys + 2 * values + numbers + state * (p.has_initial_state + p.has_final_state)
    return 2 * (queries_and_keys + numbers) + 3 * values + state * (2 * p.has_initial_state + p.has_final_state)


def recurrent_op(problem: type[RecurrentProblem], package: str | None, summary: str) -> Op:
    """The op of ``problem``, whose folder ``package`` has ``samples.py`` and whose public function has its name."""
    room = __package__
    return Op(
        name=problem.NAME,
        version=problem.VERSION,
        directions=("fwd", "bwd"),
        fields=problem.FIELDS,
        problem=problem,
        outputs=outputs,
        operands=operands,
        flops=flops,
        bytes_moved=bytes_moved,
        package=package,
        inputs=f"{room}.inputs:make_inputs",
        reference=f"{room}.reference:reference",
        baseline=f"{room}.reference:baseline",
        features=f"{room}.features:features",
        coarser=f"{room}.features:coarser",
        samples=".samples:samples",
        workloads=WORKLOADS,
        axes=(Axis(field="b", is_length=False), Axis(field="t")),
        functions=(f"attn_tune.api.linear.{problem.NAME}:{problem.NAME}",),
        summary=summary,
    )
