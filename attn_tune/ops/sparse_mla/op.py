"""The op ``sparse_mla``: latent attention of every query to the keys that its own list of indices names."""

from attn_tune.ops.contract import Axis, Op, Operand, Output, OutputKind
from attn_tune.ops.sparse_mla.problem import FIELDS, NAME, VERSION, WORKLOADS, Problem, bytes_moved, flops


def outputs(problem: Problem, direction: str) -> tuple[Output, ...]:
    """The output [B, T, N, V] and the natural lse [B, T, N]."""
    return (Output(name="out"), Output(name="lse", kind=OutputKind.LOGSUMEXP))


def operands(problem: Problem, direction: str) -> tuple[Operand, ...]:
    """Queries, keys and indices."""
    p = problem
    return (
        Operand(name="q", shape=(p.batch, p.q_len, p.num_q_heads, p.head_dim), dtype=p.dtype),
        Operand(name="kv", shape=(p.batch, p.kv_len, p.head_dim), dtype=p.dtype),
        Operand(name="indices", shape=(p.batch, p.q_len, p.num_selected), dtype="int32"),
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
    functions=("attn_tune.api.sparse.sparse_mla:sparse_mla",),
    summary="latent attention of every query to the keys that its own list of indices names",
)
