"""The op ``merge_attention``: attention over parts of the keys, merged into attention over all of them."""

from attn_tune.ops.contract import Axis, Op, Operand, Output, OutputKind
from attn_tune.ops.merge_attention.problem import FIELDS, NAME, VERSION, Problem, bytes_moved, flops


def outputs(problem: Problem, direction: str) -> tuple[Output, ...]:
    """The output [rows, N, V] and the natural lse [rows, N]."""
    return (Output(name="out"), Output(name="lse", kind=OutputKind.LOGSUMEXP))


def operands(problem: Problem, direction: str) -> tuple[Operand, ...]:
    """The output and the lse of each part."""
    p = problem
    found: list[Operand] = []
    for part in range(p.num_parts):
        rows = (p.num_rows, p.num_q_heads)
        found += [
            Operand(name=f"out{part}", shape=(*rows, p.v_head_dim), dtype=p.dtype),
            Operand(name=f"lse{part}", shape=rows, dtype="float32"),
        ]
    return tuple(found)


OP = Op(
    name=NAME,
    version=VERSION,
    directions=("fwd",),
    fields=FIELDS,
    problem=Problem,
    outputs=outputs,
    operands=operands,
    flops=flops,
    bytes_moved=bytes_moved,
    package=__package__,
    features=".features:features",
    samples=".features:samples",
    axes=(Axis(field="r"),),
    functions=("attn_tune.api.serving.merge_attention:merge_attention",),
    summary="attention over parts of the keys, merged by their lse into attention over all of them",
)
