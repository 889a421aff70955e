"""Kernels, directions, devices and problems that the words of a command line name."""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from attn_tune.schema import Device, Signature, UsageError, unknown_name

if TYPE_CHECKING:
    from attn_tune.kernels.spec import KernelSpec
    from attn_tune.ops.contract import Op
    from attn_tune.tuner.plan.case import GridPoint


def words(values: Sequence[str] | None) -> tuple[str, ...]:
    """The words of values that may be separated by commas."""
    return tuple(word.strip() for value in values or () for word in value.split(",") if word.strip())


def kernels(names: Sequence[str] | None, ops: Iterable[str] | None = None) -> "tuple[KernelSpec, ...]":
    """The kernels that the options name (``NAME`` or ``OP/NAME``), all without any.

    Raises:
      UsageError: an unknown kernel or op; near names are suggested.
    """
    from attn_tune.kernels import registry
    from attn_tune.ops.registry import get_op

    wanted_ops = {get_op(op).name for op in words(list(ops or ()))}
    known = {i: s for i, s in registry.kernels().items() if not wanted_ops or s.op in wanted_ops}
    wanted = matching(names, known)
    return tuple(spec for i, spec in known.items() if i in wanted)


def matching(names: Sequence[str] | None, known: Iterable[str]) -> set[str]:
    """The ids among ``known`` that the names (``NAME`` or ``OP/NAME``) choose; all without any.

    Raises:
      UsageError: an unknown kernel; near names are suggested.
    """
    known, wanted, found = tuple(known), words(names), set()
    for name in wanted:
        fits = {i for i in known if name in (i, i.partition("/")[2])}
        if not fits:
            # In the form that was asked for: a short name is near to ids of ops with short names, too.
            raise unknown_name("kernel", name, known if "/" in name else [i.partition("/")[2] for i in known])
        found |= fits
    return found if wanted else set(known)


def absent(specs: "Iterable[KernelSpec]", device: Device) -> set[str]:
    """The ids of the kernels that can run nothing on ``device``."""
    from attn_tune.runtime.lookup.question import runs_on

    return {spec.id for spec in specs if not runs_on(spec, device)}


def directions(values: Sequence[str] | None, ops: "Iterable[Op]" = ()) -> tuple[str, ...]:
    """The directions of ``ops`` that ``values`` name, in the order of the ops; all without any. No ``ops`` are all.

    Raises:
      UsageError: none of the ops has the direction.
    """
    from attn_tune.ops.registry import ops as all_ops

    known = dict.fromkeys(d for op in tuple(ops) or all_ops().values() for d in op.directions)
    wanted = words(values)
    for name in wanted:
        if name not in known:
            raise unknown_name("direction", name, known)
    return tuple(d for d in known if not wanted or d in wanted)


def device(name: str | None) -> Device:
    """The named device, or this machine's.

    Raises:
      UsageError: unknown name.
    """
    from attn_tune.devices.identity import current_device, device_from_kind

    return device_from_kind(name) if name else current_device()


def names_of(found: "Iterable[GridPoint]") -> dict[str, list[str]]:
    """The names of points by signature text."""
    names: dict[str, list[str]] = {}
    for point in found:
        names.setdefault(point.signature.text, []).append(point.name)
    return names


def point_names(grids: Sequence[str] | None = None, stored: Iterable[str] | None = None) -> dict[str, str]:
    """Names of grid points by signature text: of ``grids`` and of every preset, at every length.

    With ``stored`` signatures those of other ops may be missing.
    """
    from attn_tune.tuner.plan.grid import load_grid, preset_points

    own = [point for name in grids or () for point in load_grid(name, lengths=("all",)).points]
    ops = None if stored is None else {text.partition("/")[0] for text in stored}
    found = names_of([*own, *preset_points(ops=ops)])
    return {text: brief("+".join(dict.fromkeys(names))) for text, names in found.items()}


def brief(name: str) -> str:
    """The first of several joined names, and how many more there are."""
    first, *more = name.split("+")
    return f"{first} (+{len(more)})" if more else first


def signature(text: str, grids: Sequence[str] | None = None, workload: str | None = None) -> "GridPoint":
    """The one point that ``text`` names: a signature, or a point of ``grids`` or of a preset (``llama3-8b/4x4k``).

    With ``workload`` it is the same problem with that workload.

    Raises:
      UsageError: malformed, or unknown.
    """
    from attn_tune.tuner.plan.grid import grid_point

    found = grid_point(text, grids or ())
    return next(with_workloads([found], [workload])) if workload else found


def with_workloads(points: "Iterable[GridPoint]", wanted: Sequence[str]) -> "Iterator[GridPoint]":
    """The problems of ``points`` with each of the workloads ``wanted``; those of ops that do not have one are left out.

    Raises:
      UsageError: none of the ops has a workload; the message names those that they have.
    """
    from attn_tune.ops.contract import WORKLOAD
    from attn_tune.ops.registry import get_op

    points = list(points)
    known = check_workloads(wanted, {point.op for point in points})
    # Points that differ in nothing but the workload become one.
    made: dict[tuple[str, Signature], GridPoint] = {}
    for point in points:
        op, own = get_op(point.op), known[point.op]
        for word in (word for word in wanted if word in own):
            values = {**point.signature.values, WORKLOAD: word}
            built = Signature.build(op.name, op.version, op.fields, values)
            signature = op.to_signature(op.from_signature(built))
            names = [_renamed(name, word, own) for name in point.name.split("+")]
            name = signature.text if "=" in point.name else "+".join(dict.fromkeys(names))
            one = dataclasses.replace(point, name=name, signature=signature)
            made.setdefault((name, signature), one)
    yield from made.values()


def _renamed(name: str, workload: str, known: Sequence[str]) -> str:
    """The name of a point with another workload: ``paged/3x64/eq`` becomes ``paged/3x64/uni``."""
    stem, _, last = name.rpartition("/")
    return f"{stem if last in known else name}/{workload}"


def check_workloads(wanted: Iterable[str], ops: Iterable[str]) -> dict[str, list[str]]:
    """The workloads of each of ``ops``, of which those that are not installed have none.

    Raises:
      UsageError: none of the ops has a workload that is ``wanted``; the message names those that they have.
    """
    from attn_tune.ops.registry import get_op, op_names

    installed = op_names()
    known = {name: [one.name for one in get_op(name).workloads] if name in installed else [] for name in sorted(ops)}
    for word in wanted:
        if not any(word in names for names in known.values()):
            has = [f"those of {op} are {', '.join(names)}" for op, names in known.items() if names]
            known_words = "; ".join(has) or f"{', '.join(known) or 'no op here'} has none"
            raise UsageError(f"unknown workload {word!r}; {known_words}")
    return known
