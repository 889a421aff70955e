"""The op ``ragged_paged``: mixed prefill and decoding, and prefill in chunks, over a paged or contiguous cache."""

from attn_tune.ops.contract import Axis, Op, Operand, Output, OutputKind
from attn_tune.ops.fields.cache import JOINT, shape
from attn_tune.ops.ragged_paged.problem import FIELDS, NAME, VERSION, WORKLOADS, Problem, bytes_moved, flops


def outputs(problem: Problem, direction: str) -> tuple[Output, ...]:
    """The output [tokens, N, V] and the natural lse [tokens, N]."""
    return (Output(name="out"), Output(name="lse", kind=OutputKind.LOGSUMEXP))


def operands(problem: Problem, direction: str) -> tuple[Operand, ...]:
    """Queries and caches; a cache of pages holds those of all sequences and some that no sequence uses."""
    p = problem
    cache = (p.layout, *p.input_sizes, p.num_kv_heads)
    found = [
        Operand(name="q", shape=(p.tokens, p.num_q_heads, p.head_dim), dtype=p.q_dtype),
        Operand(name="k", shape=shape(*cache, p.cache_width), dtype=p.cache_dtype),
    ]
    if p.layout not in JOINT:
        found.append(Operand(name="v", shape=shape(*cache, p.v_head_dim), dtype=p.cache_dtype))
    if p.page_size:
        found.append(Operand(name="page_table", shape=(p.batch, p.input_width), dtype="int32"))
    ends = Operand(name="cu_q_lens", shape=(p.batch + 1,), dtype="int32")
    return (*found, Operand(name="kv_lens", shape=(p.batch,), dtype="int32"), ends)


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
    axes=(Axis(field="b", is_length=False), Axis(field="t"), Axis(field="s")),
    functions=(
        "attn_tune.api.serving.ragged_paged:ragged_paged",
        "attn_tune.api.serving.mla_ragged:mla_ragged",
        "attn_tune.api.serving.latents:pack_latents",
    ),
    walk=".walk:WALK",
    summary="new tokens of each sequence, as many as it has, over a paged or contiguous cache",
)
