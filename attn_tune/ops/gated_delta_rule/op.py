"""The op ``gated_delta_rule``: linear attention with a gated state and the delta rule, forward and backward."""

from attn_tune.ops.contract import Axis, Op, Operand, Output, OutputKind
from attn_tune.ops.gated_delta_rule.problem import FIELDS, NAME, VERSION, WORKLOADS, Problem, bytes_moved, flops


def outputs(problem: Problem, direction: str) -> tuple[Output, ...]:
    """The output and the final states, or the gradient of every operand that is differentiable."""
    p = problem
    if direction == "fwd":
        state = Output(name="state", kind=OutputKind.STATE, working_dtype=p.dtype)
        return (Output(name="out"), *([state] if p.has_final_state else []))
    return tuple(
        Output(name=f"d{one.name}", kind=OutputKind.GRADIENT, of=one.name, working_dtype=p.dtype)
        for one in operands(p, direction)
        if one.differentiable
    )


def operands(problem: Problem, direction: str) -> tuple[Operand, ...]:
    """Queries, keys, values, gates, strengths and initial states, all differentiable; and where sequences begin."""
    p = problem
    keys = (*p.rows, p.num_key_heads, p.head_dim)
    numbers = (*p.rows, p.num_value_heads)
    found = [
        Operand(name="q", shape=keys, dtype=p.dtype, differentiable=True),
        Operand(name="k", shape=keys, dtype=p.dtype, differentiable=True),
        Operand(name="v", shape=(*numbers, p.v_head_dim), dtype=p.dtype, differentiable=True),
    ]
    if p.has_gate:
        found.append(Operand(name="g", shape=numbers, dtype="float32", differentiable=True))
    if p.has_beta:
        found.append(Operand(name="beta", shape=numbers, dtype="float32", differentiable=True))
    if p.has_initial_state:
        state = (p.batch, p.num_value_heads, p.head_dim, p.v_head_dim)
        found.append(Operand(name="initial_state", shape=state, dtype="float32", differentiable=True))
    if p.ragged:
        found.append(Operand(name="cu_seqlens", shape=(p.batch + 1,), dtype="int32"))
    return tuple(found)


OP = Op(
    name=NAME,
    version=VERSION,
    directions=("fwd", "bwd"),
    fields=FIELDS,
    problem=Problem,
    outputs=outputs,
    operands=operands,
    flops=flops,
    bytes_moved=bytes_moved,
    package=__package__,
    features=".features:features",
    samples=".features:samples",
    workloads=WORKLOADS,
    axes=(Axis(field="b", is_length=False), Axis(field="t")),
    functions=("attn_tune.api.gated_delta_rule:gated_delta_rule",),
    summary="linear attention with a gated state and the delta rule, forward and backward",
)
