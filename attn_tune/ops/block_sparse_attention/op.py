"""The op ``block_sparse_attention``: attention of the pairs of blocks that a mask lists, forward and backward."""

from attn_tune.ops.block_sparse_attention.problem import (
    FIELDS,
    NAME,
    VERSION,
    WORKLOADS,
    Problem,
    bytes_moved,
    flops,
)
from attn_tune.ops.contract import Op, Operand, Output, OutputKind
from attn_tune.ops.fields.attention import AXES, qkv_gradients, qkv_operands


def outputs(problem: Problem, direction: str) -> tuple[Output, ...]:
    """The output and the lse, or the gradients of queries, keys and values."""
    if direction == "fwd":
        return (Output(name="out"), Output(name="lse", kind=OutputKind.LOGSUMEXP, optional=not problem.needs_lse))
    return qkv_gradients(problem)


def operands(problem: Problem, direction: str) -> tuple[Operand, ...]:
    """Queries, keys, values and the mask of blocks; segments and lengths are normalised by the public call."""
    return (*qkv_operands(problem), Operand(name="block_mask", shape=problem.block_mask_shape, dtype="bool"))


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
    coarser="attn_tune.ops.block_sparse_attention.features:coarser",
    workloads=WORKLOADS,
    functions=("attn_tune.api.block_sparse_attention:block_sparse_attention",),
    axes=AXES,
    summary="attention of the pairs of blocks that a mask given at run time lists, forward and backward",
)
