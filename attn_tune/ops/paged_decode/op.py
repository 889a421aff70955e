"""The op ``paged_decode``: one to eight new tokens of each sequence over a paged or contiguous cache."""

from attn_tune.ops.contract import Axis, Op, Operand, Output, OutputKind
from attn_tune.ops.fields.cache import JOINT, shape
from attn_tune.ops.paged_decode.problem import FIELDS, NAME, VERSION, Problem, bytes_moved, flops
from attn_tune.ops.workloads import LENGTHS


def outputs(problem: Problem, direction: str) -> tuple[Output, ...]:
    """The output [B, T, N, V] and the natural lse [B, T, N]."""
    return (Output(name="out"), Output(name="lse", kind=OutputKind.LOGSUMEXP))


def operands(problem: Problem, direction: str) -> tuple[Operand, ...]:
    """Queries and caches; a cache of pages holds those of all sequences and some that no sequence uses."""
    p = problem
    cache = (p.layout, *p.input_sizes, p.num_kv_heads)
    found = [
        Operand(name="q", shape=(p.batch, p.q_len, p.num_q_heads, p.head_dim), dtype=p.dtype),
        Operand(name="k", shape=shape(*cache, p.head_dim), dtype=p.cache_dtype),
    ]
    if p.layout not in JOINT:
        found.append(Operand(name="v", shape=shape(*cache, p.v_head_dim), dtype=p.cache_dtype))
    if p.page_size:
        found.append(Operand(name="page_table", shape=(p.batch, p.input_width), dtype="int32"))
    return (*found, Operand(name="kv_lens", shape=(p.batch,), dtype="int32"))


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
    workloads=LENGTHS,
    axes=(Axis(field="b", is_length=False), Axis(field="t"), Axis(field="s")),
    functions=(
        "attn_tune.api.serving.paged_decode:paged_decode",
        "attn_tune.api.serving.mla_decode:mla_decode",
    ),
    walk=".walk:WALK",
    summary="one to eight new tokens of each sequence over a paged or contiguous cache",
)
