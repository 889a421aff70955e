"""Grids: the shapes of real models, written down as TOML with their public source.

A grid is a product of layers, lengths and workloads. A layer states the fields of its op's signature, in the
signature's own names; what it leaves out is at its default. Lengths are the op's axes (``Op.axes``). See
``docs/grids.md`` for the format and the presets.
"""

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_tune.ops.contract import WORKLOAD, Op
from attn_tune.ops.registry import get_op, op_names
from attn_tune.packs.plain_files import read_limited
from attn_tune.schema import IntegrityError, Signature, StorageError, UsageError, unknown_name
from attn_tune.schema.errors import near_names
from attn_tune.tuner.plan.case import GridPoint, merge_points
from attn_tune.tuner.plan.lengths import ALL as ALL, Lengths, full_values, has_lengths

FOLDER = Path(__file__).parents[2] / "grids"
# The presets have 2 to 15 KB; a file of this size takes seconds to parse.
_MAX_BYTES = 4 * 1024 * 1024
# The points that an error names; a model's preset has no more.
_SHOWN = 24

_KEYS = ("summary", "source", "op", "run", "smoke", "include", "lengths", "workloads", "layer")
_LAYER_KEYS = ("name", "op", "source", "directions", "calls", "workloads")


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The points of one grid.

    Attributes:
      name: the preset's name, the file's, or the text of one signature.
      summary: one line for listings.
      source: the public address of the shapes.
      points: distinct by signature.
    """

    name: str
    summary: str
    source: str
    points: tuple[GridPoint, ...]


def grid_names() -> tuple[str, ...]:
    """The names of the presets, ``all`` last."""
    return (*sorted(path.stem for path in FOLDER.glob("*.toml")), ALL)


def load_grid(name: str, *, lengths: Sequence[str] = ()) -> Grid:
    """A preset, a TOML file of the same format, or the text of one signature.

    ``lengths`` picks among all lengths of the grid, by group (``prefill``), length (``4k``) or text (``4x4k``), and
    ``all`` takes every one; without it the groups named by the grid's ``run`` are taken. It picks among layers with
    lengths of their own too, and a signature must have one of them.

    Raises:
      UsageError: no such grid, nothing of these lengths, or a malformed file; the message names file, table and key.
    """
    if "=" in name:
        return _single(name, lengths)
    if name == ALL:
        return _all(lengths)
    if name in grid_names():
        path = FOLDER / f"{name}.toml"
    elif name.endswith(".toml") or "/" in name:
        path = Path(name)
        if (preset := _preset_of(name)) and not name.endswith(".toml") and not path.exists():
            raise UsageError(f"{name!r} is no grid; for one point give --grid {preset} --point {name!r}")
    else:
        raise _unknown_grid(name)
    return _read(path, lengths)


def grid_point(text: str, grids: Sequence[str] = ()) -> GridPoint:
    """The one point that ``text`` names: a preset's, such as ``llama3-8b/4x4k``, or that of a signature.

    Example::

        point = attn_tune.grid_point("llama3-8b/4x4k")
        attn_tune.explain(point.op, point.signature)

    Args:
      grids: grid files or presets whose points are looked at first.

    Raises:
      UsageError: malformed, or no such point.
    """
    if "=" in text:
        return load_grid(text).points[0]
    own = [point for name in grids for point in load_grid(name, lengths=(ALL,)).points]
    if point := _called(text, own):
        return point
    preset = _preset_of(text)
    candidates = load_grid(preset, lengths=(ALL,)).points if preset else ()
    if point := _called(text, candidates):
        return point
    raise _unknown(text, own, candidates)


def _unknown_grid(name: str) -> UsageError:
    """The error for a grid that does not exist: those of the op that was named, or near ones."""
    if name in op_names():
        grids = ", ".join(sorted({_preset_of(point.name) for point in preset_points((ALL,), ops={name})}))
        return UsageError(
            f"{name!r} is an op, no grid; {f'grids of it: {grids}' if grids else 'no preset has a point of it'}"
        )
    return UsageError(f"unknown grid {name!r}; {near_names(name, grid_names()) or "'attn-tune grids' lists them"}")


def _preset_of(text: str) -> str:
    """The preset of which ``text`` names a point, by its first words; empty without one."""
    grid = text.split("/")[0].split("+")[0]
    return max((name for name in grid_names() if grid == name or grid.startswith(f"{name}.")), key=len, default="")


def _called(text: str, found: Iterable[GridPoint]) -> GridPoint | None:
    return next((p for p in found if text in (p.name, *p.name.split("+"))), None)


def _unknown(text: str, own: Sequence[GridPoint], candidates: Sequence[GridPoint]) -> UsageError:
    """The error for a point that does not exist: near ones of all grids, else those of the grid that was named."""
    if text in op_names():
        some = [point.name.split("+")[0] for point in preset_points(ops={text})[:3]]
        end = f"; name a point of it, such as {', '.join(some)}" if some else ""
        return UsageError(f"{text!r} is an op, no grid point{end}")
    points = [*own, *candidates]
    names = dict.fromkeys(name for p in [*points, *preset_points((ALL,))] for name in p.name.split("+"))
    near = near_names(text, [name for name in names if text in name] or names)
    shown = [point.name for point in points[:_SHOWN]] + ["..."] * (len(points) > _SHOWN)
    if points:
        return UsageError(f"unknown grid point {text!r}; {near or f'known: {", ".join(shown)}'}")
    own_file = "--grid FILE knows the points of a file of your own"
    end = f"{near} {own_file}" if near else f"{own_file}, 'attn-tune grids GRID' lists those of a preset"
    return UsageError(f"unknown grid point {text!r}; {end}")


def preset_points(lengths: Sequence[str] = (), *, ops: Collection[str] | None = None) -> tuple[GridPoint, ...]:
    """The points of every preset with these lengths, all of them without any; equal shapes are not joined.
    Presets that name none of ``ops`` are left out, and what these need is not loaded.

    Raises:
      UsageError: no preset has a point of such lengths, or a word is none.
    """
    points: list[GridPoint] = []
    refusal: UsageError | None = None
    for path in sorted(FOLDER.glob("*.toml")):
        try:
            if ops is None or any(f'"{op}"' in path.read_text("utf-8") for op in ops):
                points += _read(path, lengths or (ALL,)).points
        except UsageError as error:  # It has no such lengths; another preset may.
            refusal = error
    if refusal and not points:
        raise refusal
    return tuple(points)


def _single(text: str, lengths: Sequence[str]) -> Grid:
    name = text.partition("/")[0].strip()
    if (first := name.partition(" ")[0]) != name and first in op_names():
        raise UsageError(
            f"{text!r} lacks a version after the op; a signature begins with {first}/v{get_op(first).version}"
        )
    op = get_op(name)
    signature = op.problem_signature(text)
    if lengths and not has_lengths(op.axes, signature.values, lengths):
        raise UsageError(f"{signature.text!r}: no lengths match {', '.join(lengths)}; a signature has its own")
    point = GridPoint(name=signature.text, op=op.name, signature=signature, source="")
    return Grid(name=signature.text, summary="one signature", source="", points=(point,))


def _all(lengths: Sequence[str]) -> Grid:
    points: list[GridPoint] = []
    for path in sorted(FOLDER.glob("*.toml")):
        data = _parse(path)
        if "include" in data or data.get("smoke"):
            continue
        if not lengths or _selects(path, data, lengths):
            points += _read(path, lengths).points
    if not points:
        raise UsageError(f"no preset has a point with lengths {', '.join(lengths)}")
    return Grid(name=ALL, summary="every model preset", source="", points=merge_points(points))


def _parse(path: Path) -> dict[str, Any]:
    try:
        # Some editors begin a file with a byte order mark, which TOML does not know.
        data = tomllib.loads(read_limited(path, f"grid {path}", _MAX_BYTES).decode("utf-8-sig"))
    except (StorageError, IntegrityError) as error:
        raise UsageError(str(error)) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"grid {path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"grid {path}: not valid TOML: {error}") from None
    except RecursionError:
        raise UsageError(f"grid {path}: not valid TOML: its lists or tables are nested too deeply") from None
    _known(f"grid {path}", data, _KEYS)
    return data


def _read(path: Path, lengths: Sequence[str]) -> Grid:
    data = _parse(path)
    where = f"grid {path}"
    summary = _text(where, data, "summary")
    source = _text(where, data, "source", default="")
    included = "include" in data
    points = _included(where, data, lengths) if included else _layers(path, data, lengths)
    return Grid(name=path.stem, summary=summary, source=source, points=merge_points(points))


def _included(where: str, data: Mapping[str, Any], lengths: Sequence[str]) -> list[GridPoint]:
    for key in ("lengths", "workloads", "layer", "op"):
        if key in data:
            raise UsageError(f"{where}: key {key!r} cannot stand beside 'include'")
    chosen = tuple(lengths) or _texts(where, data, "run")
    points: list[GridPoint] = []
    for name in _texts(where, data, "include"):
        if name not in grid_names():
            raise UsageError(f"{where}: key 'include': {unknown_name('grid', name, grid_names())}")
        points += load_grid(name, lengths=chosen).points
    return points


def _layers(path: Path, data: Mapping[str, Any], lengths: Sequence[str]) -> list[GridPoint]:
    where = f"grid {path}"
    layers = data.get("layer")
    if not isinstance(layers, list) or not layers:
        raise UsageError(f"{where}: needs at least one [[layer]] table")
    groups = _groups(where, data)
    wanted = lengths or _groups_run(where, data, groups)
    points = []
    for number, layer in enumerate(layers, 1):
        table = f"{where}: [[layer]] {number}"
        if not isinstance(layer, dict):
            raise UsageError(f"{table} must be a table, got {layer!r}")
        fields = {key: value for key, value in layer.items() if key not in _LAYER_KEYS}
        suffix = _text(table, layer, "name", default="")
        label = f"{path.stem}.{suffix}" if suffix else path.stem
        source = _text(table, layer, "source", default=_text(where, data, "source", default=""))
        op = _op(table, _text(table, layer, "op", default=_text(where, data, "op", default="")))
        suffixes = _texts(table, layer if "workloads" in layer else data, "workloads")
        if suffixes and all(field.name != WORKLOAD for field in op.fields):
            raise UsageError(f"{table}: {op.name} has no workloads: take the key 'workloads' out")
        variants = [(f"/{word}", {WORKLOAD: word}) for word in suffixes] or [("", {})]
        if _has_own_lengths(table, op, fields):
            sizes = [("", {})] if not lengths or has_lengths(op.axes, fields, lengths) else []
        else:
            chosen = _selected(table, groups, wanted, op)
            sizes = [(f"/{one.text}", values) for one, values in chosen.items()]
        points += [
            _point(table, label + size + word, op, {**fields, **given, **profile}, source, layer)
            for size, given in sizes
            for word, profile in variants
        ]
    if not points and lengths:
        known = ", ".join(length.text for group in groups.values() for length in group)
        there = f"groups: {', '.join(groups)}; lengths: {known}" if groups else "its layers have sizes of their own"
        raise UsageError(f"{where}: no lengths match {', '.join(lengths)}; {there}")
    if not points:
        raise UsageError(f"{where}: no point; give [lengths], or the op's sizes in each [[layer]]")
    named: dict[str, str] = {}
    for point in points:
        if named.setdefault(point.name, point.signature.text) != point.signature.text:
            raise UsageError(f"{where}: two problems are named {point.name}; give each [[layer]] a name of its own")
    return points


def _op(table: str, name: str) -> Op:
    if not name:
        raise UsageError(f"{table}: key 'op' is missing, here and at the top of the file")
    try:
        return get_op(name)
    except UsageError as error:
        raise UsageError(f"{table}: {error}") from None


def _has_own_lengths(table: str, op: Op, fields: Mapping[str, Any]) -> bool:
    """Whether a layer gives its lengths itself: all of the op's axes, or none.

    Raises:
      UsageError: it gives some of them.
    """
    given = [axis.field for axis in op.axes if axis.field in fields]
    lacking = [axis.field for axis in op.axes if axis.field not in full_values(op.axes, fields)]
    if given and lacking:
        raise UsageError(
            f"{table}: it gives {', '.join(given)} but not {', '.join(lacking)}; give them all, or none and [lengths]"
        )
    return not lacking


def _values(table: str, op: Op, lengths: Lengths) -> dict[str, int]:
    try:
        return lengths.values(op.axes)
    except UsageError as error:
        raise UsageError(f"{table}: {error}") from None


def _point(table: str, name: str, op: Op, values: dict[str, Any], source: str, layer: Mapping[str, Any]) -> GridPoint:
    directions = _texts(table, layer, "directions")
    for direction in directions:
        if direction not in op.directions:
            unknown = unknown_name(f"direction of {op.name}", direction, op.directions)
            raise UsageError(f"{table}: key 'directions': {unknown}")
    calls = layer.get("calls", 0)
    if not isinstance(calls, int) or isinstance(calls, bool) or calls < 0:
        raise UsageError(f"{table}: key 'calls' must be a natural number, got {calls!r}")
    try:
        known = [field.name for field in op.fields]
        _known(table, values, (*_LAYER_KEYS, *known))
        values = values | full_values(op.axes, values)
        signature = Signature.build(op.name, op.version, op.fields, values)
        signature = op.to_signature(op.from_signature(signature))
    except UsageError as error:
        message = str(error)
        raise UsageError(message if message.startswith(table) else f"{table}: {message}") from None
    return GridPoint(
        name=name,
        op=op.name,
        signature=signature,
        source=source,
        directions=directions,
        calls=calls,
    )


def _groups(where: str, data: Mapping[str, Any]) -> dict[str, list[Lengths]]:
    table = data.get("lengths", {})
    if not isinstance(table, dict):
        raise UsageError(f"{where}: [lengths] must be a table of lists such as train = ['4x4k']")
    groups = {}
    for group in table:
        texts = _texts(f"{where}: [lengths]", table, group)
        try:
            groups[group] = [Lengths.parse(text) for text in texts]
        except UsageError as error:
            raise UsageError(f"{where}: [lengths] {group}: {error}") from None
    return groups


def _selected(
    table: str, groups: Mapping[str, list[Lengths]], wanted: Sequence[str], op: Op
) -> dict[Lengths, dict[str, int]]:
    """The lengths that the words ``wanted`` choose for a layer of ``op``, with the values of its axes."""
    every = {length: _values(table, op, length) for group in groups.values() for length in group}
    chosen: dict[Lengths, dict[str, int]] = {}
    for word in wanted:
        if word in groups:
            chosen |= {length: every[length] for length in groups[word]}
        else:
            chosen |= {length: values for length, values in every.items() if has_lengths(op.axes, values, [word])}
    return chosen


def _selects(path: Path, data: Mapping[str, Any], lengths: Sequence[str]) -> bool:
    """Whether one of a preset's lengths is among ``lengths``, for any of its layers."""
    where = f"grid {path}"
    groups = _groups(where, data)
    names = {layer.get("op", data.get("op", "")) for layer in data["layer"]}
    return any(_selected(where, groups, lengths, _op(where, name)) for name in names)


def _groups_run(where: str, data: Mapping[str, Any], groups: Mapping[str, list[Lengths]]) -> tuple[str, ...]:
    """The groups of lengths that are taken by default."""
    run = _texts(where, data, "run") if "run" in data else tuple(groups)
    if unknown := [group for group in run if group not in groups]:
        raise UsageError(f"{where}: key 'run': no group {unknown[0]!r} in [lengths]")
    return run


def _known(where: str, data: Iterable[str], keys: Iterable[str]) -> None:
    keys = tuple(keys)
    for key in data:
        if key not in keys:
            raise UsageError(f"{where}: {unknown_name('key', key, keys)}")


def _text(where: str, data: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = data.get(key, default)
    if value is None:
        raise UsageError(f"{where}: key {key!r} is missing; it must be a text")
    if not isinstance(value, str):
        raise UsageError(f"{where}: key {key!r} must be a text, got {value!r}")
    return value


def _texts(where: str, data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{where}: key {key!r} must be a list of texts, got {value!r}")
    return tuple(value)
