"""The attention calls of a program: those with a signature, by direction and how often they run, and the others."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.marker import find_mark
from attn_tune.kernels.registry import get_op, op_names
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Signature
from attn_tune.tuner.sources.attention import Softmax, find_attention
from attn_tune.tuner.sources.cudnn import is_cudnn, read_cudnn
from attn_tune.tuner.sources.graph import Graph, Value

# Kernels of others that are attention by their name.
_ATTENTION = re.compile(r"attention|attn|flash|fmha|mha|splash", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One problem in one direction: ``count`` times in one run. ``found_as`` says by what it was known."""

    signature: Signature
    direction: str
    count: int
    found_as: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """What is attention but has no signature, and why."""

    what: str
    reason: str
    count: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """All that was found in one program. ``remarks`` are sentences about what could not be told."""

    calls: tuple[Call, ...]
    unread: tuple[Unread, ...]
    remarks: tuple[str, ...]


def find_calls(graph: Graph) -> Calls:
    """The attention calls of a program, equal ones together, in its order."""
    calls: list[Call] = []
    unread: list[Unread] = []
    remarks = dict(graph.remarks)
    for value in graph.values:
        if value.kind == "marker":
            _add(_marked(value), calls, unread)
        elif value.kind == "custom_call":
            if is_cudnn(value):
                _add(_cudnn(value), calls, unread)
            elif _ATTENTION.search(_words(value)):
                reason = "a kernel of its own: its operands do not say what it computes"
                name = str(value.attributes["name"])
                unread.append(Unread(what=name, reason=reason, count=value.runs))
    for softmax in find_attention(graph):
        found = _softmax(softmax)
        if isinstance(found, Unread):
            unread.append(found)
        else:
            calls += found
            if softmax.sizes.remark:
                remarks[f"{found[0].signature}: {softmax.sizes.remark}"] = None
    return Calls(calls=_merged(calls), unread=_merged_unread(unread), remarks=tuple(remarks))


def _add(found: Call | Unread, calls: list[Call], unread: list[Unread]) -> None:
    if isinstance(found, Call):
        calls.append(found)
    else:
        unread.append(found)


def _words(value: Value) -> str:
    return f"{value.attributes['name']} {value.attributes.get('config', '')}"


def _marked(value: Value) -> Call | Unread:
    mark = find_mark(str(value.attributes["name"]))
    assert mark is not None
    name = mark.signature.partition("/")[0]
    try:
        if name not in op_names():
            raise UsageError(f"this installation has no op {name!r}")
        signature = get_op(name).parse_signature(mark.signature)
    except UsageError as error:
        return Unread(what=mark.signature, reason=str(error), count=value.runs)
    return Call(
        signature=signature,
        direction=mark.direction,
        count=value.runs,
        found_as=f"attn_tune.{name}",
    )


def _cudnn(value: Value) -> Call | Unread:
    name = str(value.attributes["name"])
    try:
        problem, direction = read_cudnn(value)
    except UsageError as error:
        return Unread(what=name, reason=str(error), count=value.runs)
    return Call(
        signature=problem.signature, direction=direction, count=value.runs, found_as="cuDNN"
    )


def _softmax(found: Softmax) -> list[Call] | Unread:
    sizes, traits = found.sizes, found.traits
    what = (
        f"softmax(q k^T) v with b={sizes.batch} t={sizes.q_len} s={sizes.kv_len} n={sizes.num_q_heads} "
        f"k={sizes.num_kv_heads} h={sizes.head_dim} v={sizes.v_head_dim} dtype={sizes.dtype}"
    )
    count = max(found.forwards, found.backwards)
    if found.reason:
        return Unread(what=what, reason=found.reason, count=count)
    mask = traits.mask
    try:
        problem = Problem(
            batch=sizes.batch,
            q_len=sizes.q_len,
            kv_len=sizes.kv_len,
            num_q_heads=sizes.num_q_heads,
            num_kv_heads=sizes.num_kv_heads,
            head_dim=sizes.head_dim,
            v_head_dim=sizes.v_head_dim,
            dtype=sizes.dtype,
            causal=mask.causal,
            window=(mask.left, mask.right),
            mask_dims=_dims(mask.dims),
            bias_dims=_dims(traits.bias_dims),
            has_segments=mask.has_segments,
            has_sinks=traits.has_sinks,
            # Whether there is one is in the signature, not which.
            soft_cap=1.0 if traits.soft_cap else None,
            dropout_rate=0.5 if traits.dropout else 0.0,
        )
    except UsageError as error:
        return Unread(what=what, reason=str(error), count=count)
    counts = {"fwd": found.forwards, "bwd": found.backwards}
    return [
        Call(signature=problem.signature, direction=d, count=n, found_as="products and a softmax")
        for d, n in counts.items()
        if n
    ]


def _dims(letters: frozenset[str]) -> str | None:
    return "".join(x if x in letters else "1" for x in "bnts") if letters else None


def _merged(calls: Iterable[Call]) -> tuple[Call, ...]:
    found: dict[tuple[Signature, str], Call] = {}
    for call in calls:
        key = (call.signature, call.direction)
        count = call.count + (found[key].count if key in found else 0)
        names = (*(found[key].found_as.split(", ") if key in found else ()), call.found_as)
        found[key] = Call(
            signature=call.signature,
            direction=call.direction,
            count=count,
            found_as=", ".join(dict.fromkeys(names)),
        )
    return tuple(found.values())


def _merged_unread(unread: Iterable[Unread]) -> tuple[Unread, ...]:
    found: dict[tuple[str, str], int] = {}
    for item in unread:
        key = (item.what, item.reason)
        found[key] = found.get(key, 0) + item.count
    return tuple(Unread(what=w, reason=r, count=n) for (w, r), n in found.items())
