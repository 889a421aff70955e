"""Find the calls of all ops in a program: those with a signature, by direction and count, and the others.

This package's own calls are found by their marks. Foreign ones are recognised by the ops (``Op.recognise``).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from attn_tune.ops.contract import load
from attn_tune.ops.marker import find_mark
from attn_tune.ops.program_graph import Graph, Unread, Value
from attn_tune.ops.registry import get_op, ops
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Signature


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One problem in one direction.

    Attributes:
      signature: of the problem.
      direction: one of its op's directions.
      count: how often one run of the program makes it.
      found_as: how it was recognised, in a few words.
    """

    signature: Signature
    direction: str
    count: int
    found_as: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Calls:
    """All that was found in one program.

    Attributes:
      calls: those with a signature, equal ones together, in the order of the program.
      unread: those that were recognised but have none.
      remarks: sentences about what is uncertain.
    """

    calls: tuple[Call, ...]
    unread: tuple[Unread, ...]
    remarks: tuple[str, ...]


def find_calls(graph: Graph) -> Calls:
    """Find the calls of all ops in a program."""
    calls: list[Call] = []
    unread: list[Unread] = []
    remarks = dict(graph.remarks)
    for value in graph.values:
        if value.kind == "marker":
            marked = _marked(value)
            (calls if isinstance(marked, Call) else unread).append(marked)  # type: ignore[arg-type]
    for op in ops().values():
        for item in load(op.recognise)(graph) if op.recognise else ():
            if isinstance(item, Unread):
                unread.append(item)
                continue
            signature = op.to_signature(item.problem)
            calls.append(
                Call(
                    signature=signature,
                    direction=item.direction,
                    count=item.count,
                    found_as=item.found_as,
                )
            )
            if item.remark:
                remarks[f"{signature}: {item.remark}"] = None
    return Calls(calls=_merged(calls), unread=_merged_unread(unread), remarks=tuple(remarks))


def _marked(value: Value) -> Call | Unread:
    mark = find_mark(str(value.attributes["name"]))
    assert mark is not None
    name = mark.signature.partition("/")[0]
    try:
        if name not in ops():
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


def _merged(calls: Iterable[Call]) -> tuple[Call, ...]:
    found: dict[tuple[Signature, str], Call] = {}
    for call in calls:
        key = (call.signature, call.direction)
        if old := found.get(key):
            names = dict.fromkeys((*old.found_as.split(", "), call.found_as))
            call = replace(call, count=old.count + call.count, found_as=", ".join(names))
        found[key] = call
    return tuple(found.values())


def _merged_unread(unread: Iterable[Unread]) -> tuple[Unread, ...]:
    found: dict[tuple[str, str], int] = {}
    for item in unread:
        key = (item.what, item.reason)
        found[key] = found.get(key, 0) + item.count
    return tuple(Unread(what=w, reason=r, count=n) for (w, r), n in found.items())
