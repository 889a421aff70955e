"""The op ``attention``: dense attention that also returns its weights, for small problems and for looking inside."""

from attn_tune.ops.attention.problem import (
    FIELDS,
    NAME,
    VERSION,
    Problem,
    bytes_moved,
    flops,
)
from attn_tune.ops.contract import Op, Operand, Output, OutputKind
from attn_tune.ops.fields.attention import AXES, qkv_gradients, qkv_operands


def outputs(problem: Problem, direction: str) -> tuple[Output, ...]:
    """The output and its weights, or the gradients of queries, keys, values, the bias and the sinks."""
    if direction == "fwd":
        return (Output(name="out"), Output(name="weights"))
    of_sinks = Output(name="dsinks", kind=OutputKind.GRADIENT, of="sinks")
    return (*qkv_gradients(problem), *((of_sinks,) if problem.has_sinks else ()))


def operands(problem: Problem, direction: str) -> tuple[Operand, ...]:
    """The differentiable operands."""
    sinks = Operand(name="sinks", shape=(problem.num_q_heads,), dtype="float32", differentiable=True)
    return (*qkv_operands(problem), *((sinks,) if problem.has_sinks else ()))


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
    coarser="attn_tune.ops.fields.granularity:coarser",
    functions=("attn_tune.api.attention:attention",),
    axes=AXES,
    summary="dense attention that also returns its weights",
)
