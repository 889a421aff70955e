"""The op ``flash_attention``: exact attention in O(N) memory, forward and backward."""

from attn_tune.ops.contract import Op, Operand, Output, OutputKind
from attn_tune.ops.fields.attention import AXES, qkv_gradients, qkv_operands
from attn_tune.ops.flash_attention.problem import (
    FIELDS,
    NAME,
    VERSION,
    Problem,
    bytes_moved,
    flops,
)


def outputs(problem: Problem, direction: str) -> tuple[Output, ...]:
    """The output and the lse, or the gradients of queries, keys, values and the bias."""
    if direction == "fwd":
        return (Output(name="out"), Output(name="lse", kind=OutputKind.LOGSUMEXP, optional=not problem.needs_lse))
    return qkv_gradients(problem)


def operands(problem: Problem, direction: str) -> tuple[Operand, ...]:
    """The differentiable operands; masks, segments, positions and sinks are normalised by the public call."""
    return qkv_operands(problem)


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
    coarser=".features:coarser",
    recognise=".recognise.find:find_problems",
    walk=".walk:WALK",
    untuned="attn_tune.kernels.flash_attention.untuned:place",
    functions=(
        "attn_tune.api.flash_attention:flash_attention",
        "attn_tune.api.flash_attention:create_shard_map_wrapper",
    ),
    axes=AXES,
    summary="exact attention in O(N) memory, forward and backward",
)
