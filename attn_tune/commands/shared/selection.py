"""Points, kernels, directions and devices that the words of a command line name."""

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from attn_tune.commands.shared import options
from attn_tune.schema import Device, NoDataError, UsageError, unknown_name

if TYPE_CHECKING:
    from attn_tune.commands.shared.sources import Sources
    from attn_tune.commands.sweeps.database_sweep import SweepRequest
    from attn_tune.kernels.spec import KernelSpec, Op
    from attn_tune.tuner.case import GridPoint
    from attn_tune.tuner.strategies import Effort


@dataclass(frozen=True, kw_only=True)
class Cases:
    """The options that choose problems, kernels and directions.

    Attributes:
      grid: grids by name, file or signature.
      lengths: lengths of the grids.
      point: filters of the names of points.
      op: names of ops.
      kernel: names of kernels.
      direction: names of directions.
    """

    panel: ClassVar[str] = "Problems and kernels"
    grid: options.Grids = None
    lengths: options.Lengths = None
    point: options.Points = None
    op: options.Ops = None
    kernel: options.Kernels = None
    direction: options.Directions = None

    def points(self, sources: "Sources | None" = None) -> "tuple[GridPoint, ...]":
        """The grid points: of the grids, then of ``sources``. Raises as ``points``."""
        return points(self.grid, self.lengths, self.point, self.op, sources)

    def stored(self, signatures: Iterable[str]) -> dict[str, str] | None:
        """The stored problems, names by text; None where no option narrows them. Raises as ``stored_points``."""
        return stored_points(signatures, self.grid, self.lengths, self.point)

    def kernels(self) -> "tuple[KernelSpec, ...]":
        """The installed kernels. Raises as ``kernels``."""
        return kernels(self.kernel, self.op)

    def stored_kernels(self, stored: Iterable[str]) -> set[str] | None:
        """The ids among kernels that are installed or ``stored``; None where no option narrows them.

        Raises:
          UsageError: an unknown op or kernel.
        """
        stored = set(stored)
        ids = kernel_ids(self.kernel, stored)
        if not self.op:
            return ids
        from attn_tune.kernels import registry

        known = {i.partition("/")[0] for i in stored}
        wanted = {w if w in known else registry.get_op(w).name for w in words(self.op)}
        every = {*stored, *registry.kernels()} if ids is None else ids
        return {i for i in every if i.partition("/")[0] in wanted}

    def stored_directions(self, stored: Iterable[str]) -> tuple[str, ...] | None:
        """The directions, of an installed op or ``stored``; None where no option narrows them.

        Raises:
          UsageError: nothing has the direction.
        """
        if not self.direction:
            return None
        known = [*dict.fromkeys((*directions(None), *stored))]
        for name in (wanted := words(self.direction)):
            if name not in known:
                raise unknown_name("direction", name, known)
        return wanted

    def directions(self) -> tuple[str, ...]:
        """The directions, of any op. Raises as ``directions``."""
        return directions(self.direction)


@dataclass(frozen=True, kw_only=True)
class Search:
    """The options that say how much is tried, and which kernels may be.

    Attributes:
      effort: the share of each space.
      strategy: the order in which configs are tried.
      max_trials: the most configs of each kernel and part.
      allow_nondeterministic: whether kernels are tried whose results may differ from run to run.
    """

    panel: ClassVar[str] = "Search"
    effort: options.Effort | None = options.option(
        None,
        "--effort",
        "EFFORT",
        "The share of each space: quick (5 %, portfolio), normal (15 %, 10 % with --target; surrogate where "
        "scikit-learn is installed, else portfolio) or full (exhaustive). Spaces of up to 48 configs are tried "
        "whole. Default: normal.",
    )
    strategy: options.Strategy | None = options.option(
        None,
        "--strategy",
        "STRATEGY",
        "The configs that are tried, and their order: exhaustive, portfolio, random or surrogate (needs the "
        "extra 'search'). Default: that of the effort.",
    )
    max_trials: int | None = options.option(
        None,
        "--max-trials",
        "N",
        "At most so many configs of each kernel and part, the untuned one among them.",
        min=1,
    )
    allow_nondeterministic: bool = options.flag(
        "--allow-nondeterministic",
        "Also kernels whose results may differ in their last bits from run to run ('attn-tune kernels' "
        "names them), and configs that are seen to. A kernel that --kernel names is allowed.",
    )

    def made(self, *, only_compiles: bool = False) -> "Effort":
        """The effort.

        Raises:
          UsageError: the options contradict one another, or the strategy needs scikit-learn and it is not installed.
        """
        from attn_tune.tuner.strategies import make_effort

        return make_effort(self.effort, self.strategy, self.max_trials, only_compiles=only_compiles)


def words(values: Sequence[str] | None) -> tuple[str, ...]:
    """Splits what was given with commas or repeatedly."""
    return tuple(
        word.strip() for value in values or () for word in value.split(",") if word.strip()
    )


def points(
    grids: Sequence[str] | None,
    lengths: Sequence[str] | None = None,
    filters: Sequence[str] | None = None,
    ops: Sequence[str] | None = None,
    sources: "Sources | None" = None,
) -> "tuple[GridPoint, ...]":
    """The grid points that the options name, one a signature: of grids, then of ``sources``.

    Raises:
      UsageError: an unknown grid or op, a malformed file, or a filter that leaves nothing.
    """
    from attn_tune.kernels.registry import get_op
    from attn_tune.tuner.grid import load_grid, merge_points
    from attn_tune.tuner.lengths import has_lengths

    made = list(sources.grids()) if sources else []
    if not grids and not made:
        raise UsageError(
            "no grid given; choose one with --grid ('attn-tune grids' lists them), or make one with --from-fn, "
            "--from-hlo or --from-misses"
        )
    wanted, sizes = {get_op(name).name for name in words(ops)}, words(lengths)
    found = [point for name in grids or () for point in load_grid(name, lengths=sizes).points]
    found += [
        point
        for grid in made
        for point in grid.points
        if not sizes or has_lengths(point.signature.values, sizes)
    ]
    kept = merge_points(
        point
        for point in found
        if (not wanted or point.op in wanted) and _passes(point.name, filters)
    )
    if not kept:
        has = f"; it has {_some(point.name for point in found)}" if found else ""
        raise UsageError(f"no point of the grid passes the filters{has}")
    return kept


def stored_points(
    stored: Iterable[str],
    grids: Sequence[str] | None,
    lengths: Sequence[str] | None,
    filters: Sequence[str] | None,
) -> dict[str, str] | None:
    """The problems, names by signature text, that a command about stored ones is narrowed to; None without an option.

    Without ``grids`` they are those of ``stored``. A database knows signatures only, so the names are those that the
    presets have for them, and a problem of no preset is called by its signature.

    Raises:
      UsageError: an unknown grid, or a word that is no length.
      NoDataError: nothing stored passes.
    """
    if grids:
        return {p.signature.text: brief(p.name) for p in points(grids, lengths, filters)}
    if not lengths and not filters:
        return None
    from attn_tune.tuner.grid import preset_points
    from attn_tune.tuner.lengths import has_lengths

    every, refusal = _names(preset_points()), None
    try:
        chosen = _names(preset_points(words(lengths)))
    except UsageError as error:  # No preset has such lengths; what is stored beside them may.
        chosen, refusal = {}, error
    kept = {}
    for text in dict.fromkeys(stored):
        names = chosen.get(text, [])
        if text not in every and (not lengths or has_lengths(_fields(text), words(lengths))):
            names = [text]
        if passing := [name for name in names if _passes(name, filters)]:
            kept[text] = brief("+".join(passing))
    if refusal and not kept:
        raise refusal
    if not kept:
        known = _some(brief("+".join(every.get(text, [text]))) for text in dict.fromkeys(stored))
        raise NoDataError(
            f"no stored problem passes the filters; there are {known}; "
            "names of points in a file of your own are known with --grid FILE"
        )
    return kept


def _names(found: "Iterable[GridPoint]") -> dict[str, list[str]]:
    """The names of points by signature text."""
    names: dict[str, list[str]] = {}
    for point in found:
        names.setdefault(point.signature.text, []).append(point.name)
    return names


def _fields(text: str) -> dict[str, int]:
    """The whole-number fields of a signature, whose op need not be installed."""
    pairs = (item.partition("=") for item in text.split()[1:])
    return {name: int(value) for name, _, value in pairs if value.isdecimal()}


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join([*found[:5], *(["..."] if len(found) > 5 else [])]) or "none"


def _passes(name: str, filters: Sequence[str] | None) -> bool:
    return not filters or any(f in name or fnmatch.fnmatchcase(name, f) for f in filters)


def kernels(
    names: Sequence[str] | None, ops: Iterable[str] | None = None
) -> "tuple[KernelSpec, ...]":
    """The kernels that the options name (``NAME`` or ``OP/NAME``), all without any.

    Raises:
      UsageError: an unknown kernel or op; near names are suggested.
    """
    from attn_tune.kernels import registry

    wanted_ops = {registry.get_op(op).name for op in words(list(ops or ()))}
    known = {i: s for i, s in registry.kernels().items() if not wanted_ops or s.op in wanted_ops}
    wanted = _matching(names, known)
    return tuple(spec for i, spec in known.items() if wanted is None or i in wanted)


def kernel_ids(names: Sequence[str] | None, stored: Iterable[str]) -> set[str] | None:
    """The ids that ``names`` choose among kernels that are installed or ``stored``; None, which is all, without any.

    Raises:
      UsageError: an unknown kernel; near names are suggested.
    """
    from attn_tune.kernels import registry

    return _matching(names, {*stored, *registry.kernels()})


def _matching(names: Sequence[str] | None, known: Iterable[str]) -> set[str] | None:
    known, wanted, found = tuple(known), words(names), set()
    for name in wanted:
        fits = {i for i in known if name in (i, i.partition("/")[2])}
        if not fits:
            raise unknown_name("kernel", name, [*known, *(i.partition("/")[2] for i in known)])
        found |= fits
    return found if wanted else None


def absent(specs: "Iterable[KernelSpec]", device: Device) -> set[str]:
    """The ids of the kernels that can run nothing on ``device``."""
    from attn_tune.kernels.ask import runs_on

    return {spec.id for spec in specs if not runs_on(spec, device)}


def say_left_out(request: "SweepRequest", device: Device) -> None:
    """Name the kernels that could run a case of ``request`` on ``device`` and are left out as not deterministic."""
    from attn_tune.commands.shared import output

    away = absent(request.kernels, device)
    cases = {
        (point.op, direction)
        for point in request.points
        for direction in request.directions
        if not point.directions or direction in point.directions
    }
    names = sorted(
        spec.id
        for spec in request.kernels
        if spec.id not in away
        and any(op == spec.op and spec.needs_leave(direction) for op, direction in cases)
    )
    if names and not request.allow_nondeterministic:
        output.note(f"left out, not deterministic: {', '.join(names)} (--allow-nondeterministic)")


def directions(values: Sequence[str] | None, ops: "Iterable[Op]" = ()) -> tuple[str, ...]:
    """The directions of ``ops`` that ``values`` name, in the order of the ops; all without any. No ``ops`` are all.

    Raises:
      UsageError: none of the ops has the direction.
    """
    from attn_tune.kernels import registry

    known = dict.fromkeys(d for op in tuple(ops) or registry.ops().values() for d in op.directions)
    wanted = words(values)
    for name in wanted:
        if name not in known:
            raise unknown_name("direction", name, known)
    return tuple(d for d in known if not wanted or d in wanted)


def questions(
    points: "Iterable[GridPoint]", values: Sequence[str] | None
) -> "list[tuple[GridPoint, str]]":
    """Each point with each direction of its own op that ``values`` name; all without any.

    Raises:
      UsageError: none of the ops has the direction.
    """
    from attn_tune.kernels.registry import get_op

    points = list(points)
    wanted = directions(values, [get_op(point.op) for point in points])
    return [(p, d) for p in points for d in wanted if d in get_op(p.op).directions]


def device(name: str | None) -> Device:
    """The named device, or this machine's.

    Raises:
      UsageError: unknown name.
    """
    from attn_tune.runtime.devices import current_device, device_from_kind

    return device_from_kind(name) if name else current_device()


def point_names(grids: Sequence[str] | None = None) -> dict[str, str]:
    """Names of grid points by signature text: of ``grids`` and of every preset, at every length."""
    from attn_tune.tuner.grid import load_grid, preset_points

    own = [point for name in grids or () for point in load_grid(name, lengths=("all",)).points]
    found = _names([*own, *preset_points()])
    return {text: brief("+".join(dict.fromkeys(names))) for text, names in found.items()}


def brief(name: str) -> str:
    """The first of several joined names, and how many more there are."""
    first, *more = name.split("+")
    return f"{first} (+{len(more)})" if more else first


def signature(text: str, grids: Sequence[str] | None = None) -> "GridPoint":
    """The one point that ``text`` names: a signature, or a point of ``grids`` or of a preset (``llama3-8b/4x4k``).

    Raises:
      UsageError: malformed, or unknown.
    """
    from attn_tune.tuner.grid import grid_point

    return grid_point(text, grids or ())


def own_file(file: Path | None, default: str, what: str) -> Path:
    """``file``, or the user's own at ``default``, which is empty without a home directory.

    Raises:
      UsageError: there is neither.
    """
    if file is not None:
        return file
    if not default:
        raise UsageError(
            f"there is no home directory (HOME, XDG_CONFIG_HOME); name the {what}: --file PATH"
        )
    return Path(default)
