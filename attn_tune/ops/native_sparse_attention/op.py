"""The op ``native_sparse_attention``: attention of every query to the blocks of keys that it names."""

from attn_tune.ops.contract import Op, Operand, Output, OutputKind
from attn_tune.ops.fields.attention import AXES
from attn_tune.ops.native_sparse_attention.problem import (
    FIELDS,
    NAME,
    VERSION,
    WORKLOADS,
    Problem,
    bytes_moved,
    flops,
)

_GRADIENTS = ("q", "k", "v")


def outputs(problem: Problem, direction: str) -> tuple[Output, ...]:
    """The output [B, T, N, V] and the natural lse [B, T, N], or the gradients of queries, keys and values."""
    if direction == "fwd":
        return (Output(name="out"), Output(name="lse", kind=OutputKind.LOGSUMEXP))
    return tuple(Output(name=f"d{name}", kind=OutputKind.GRADIENT, of=name) for name in _GRADIENTS)


def operands(problem: Problem, direction: str) -> tuple[Operand, ...]:
    """Queries, keys, values and the blocks that are named."""
    p = problem
    shapes = {
        "q": (p.rows, p.q_len, p.num_q_heads, p.head_dim),
        "k": (p.rows, p.kv_len, p.num_kv_heads, p.head_dim),
        "v": (p.rows, p.kv_len, p.num_kv_heads, p.v_head_dim),
    }
    indices = Operand(name="indices", shape=(p.rows, p.q_len, p.num_kv_heads, p.num_selected), dtype="int32")
    given = (Operand(name=x, shape=shape, dtype=p.dtype, differentiable=True) for x, shape in shapes.items())
    return (*given, indices)


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
    axes=AXES,
    functions=(
        "attn_tune.api.sparse.native_sparse_attention:native_sparse_attention",
        "attn_tune.api.sparse.compressed:compressed_attention",
        "attn_tune.api.sparse.compressed:mean_pooling",
        "attn_tune.api.sparse.select_blocks:select_blocks",
    ),
    summary="attention of every query to the blocks of keys that it names, forward and backward",
)
