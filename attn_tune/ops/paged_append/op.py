"""The op ``paged_append``: new keys and values written into a paged or contiguous cache, in place."""

from attn_tune.ops.contract import Axis, Op, Operand, Output, OutputKind
from attn_tune.ops.fields.cache import CODES, shape
from attn_tune.ops.paged_append.problem import FIELDS, NAME, VERSION, Problem, bytes_moved, flops


def outputs(problem: Problem, direction: str) -> tuple[Output, ...]:
    """The caches of keys and of values and the scales of tokens, which are judged apart from the codes."""
    kind = OutputKind.QUANTISED if problem.cache_dtype in CODES else OutputKind.VALUE
    names = ("k",) if problem.layout == "interleaved" else ("k", "v")
    found = [Output(name=name, kind=kind, updates=name) for name in names]
    if problem.kv_scale == "token":
        found += [Output(name=name, kind=OutputKind.SCALAR, updates=name) for name in ("k_scale", "v_scale")]
    return tuple(found)


def operands(problem: Problem, direction: str) -> tuple[Operand, ...]:
    """New keys and values, and the caches, which are updated in place."""
    p = problem
    cache = (p.layout, *p.input_sizes, p.num_kv_heads)
    rows = (p.tokens,) if p.ragged else (p.batch, p.tokens // p.batch)
    found = [
        Operand(name="new_k", shape=(*rows, p.num_kv_heads, p.head_dim), dtype=p.dtype),
        Operand(name="new_v", shape=(*rows, p.num_kv_heads, p.v_head_dim), dtype=p.dtype),
        Operand(name="k", shape=shape(*cache, p.head_dim), dtype=p.cache_dtype, in_place=True),
    ]
    if p.layout != "interleaved":
        found.append(Operand(name="v", shape=shape(*cache, p.v_head_dim), dtype=p.cache_dtype, in_place=True))
    if p.page_size:
        found.append(Operand(name="page_table", shape=(p.batch, p.input_width), dtype="int32"))
    found.append(Operand(name="kv_lens", shape=(p.batch,), dtype="int32"))
    if p.ragged:
        found.append(Operand(name="cu_q_lens", shape=(p.batch + 1,), dtype="int32"))
    if p.kv_scale == "token":
        layout = "nhd" if p.layout == "interleaved" else p.layout
        tokens = shape(layout, *p.input_sizes, p.num_kv_heads, 1)[:-1]
        found += [Operand(name=name, shape=tokens, dtype="float32", in_place=True) for name in ("k_scale", "v_scale")]
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
    axes=(Axis(field="b", is_length=False), Axis(field="t")),
    functions=("attn_tune.api.serving.paged_append:paged_append",),
    summary="new keys and values written into a paged or contiguous cache, in place",
)
