"""The op ``indexer``: scores by which sparse attention selects the keys of each query."""

from attn_tune.ops.contract import Axis, Op, Operand, Output
from attn_tune.ops.indexer.problem import FIELDS, NAME, VERSION, WORKLOADS, Problem, bytes_moved, flops


def outputs(problem: Problem, direction: str) -> tuple[Output, ...]:
    """The scores [B, T, S] in float32, minus infinity outside of a query's range."""
    return (Output(name="scores"),)


def operands(problem: Problem, direction: str) -> tuple[Operand, ...]:
    """Queries, keys, weights and ranges."""
    p = problem
    rows = (p.batch, p.q_len)
    return (
        Operand(name="q", shape=(*rows, p.num_q_heads, p.head_dim), dtype=p.dtype),
        Operand(name="k", shape=(p.batch, p.kv_len, p.head_dim), dtype=p.dtype),
        Operand(name="weights", shape=(*rows, p.num_q_heads), dtype="float32"),
        Operand(name="starts", shape=rows, dtype="int32"),
        Operand(name="ends", shape=rows, dtype="int32"),
    )


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
    workloads=WORKLOADS,
    axes=(Axis(field="b", is_length=False), Axis(field="t"), Axis(field="s", same_as="t")),
    functions=("attn_tune.api.sparse.indexer:indexer", "attn_tune.api.sparse.indexer_topk:indexer_topk"),
    summary="scores by which sparse attention selects the keys of each query",
)
