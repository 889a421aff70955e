"""From the words of the command line to points, kernels, directions and devices."""

import fnmatch
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.schema import Device, UsageError, unknown_name
from attn_tune.schema.trial import DIRECTIONS

if TYPE_CHECKING:
    from attn_tune.cli.sources import Sources
    from attn_tune.kernels.spec import KernelSpec
    from attn_tune.tuner.case import GridPoint
    from attn_tune.tuner.strategies import Effort


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

    made = list(sources.grids()) if sources else []
    if not grids and not made:
        raise UsageError(
            "no grid given; choose one with --grid ('attn-tune grids' lists them), or make one with --from-fn, "
            "--from-hlo or --from-misses"
        )
    wanted = {get_op(name).name for name in words(ops)}
    loaded = [load_grid(name, lengths=words(lengths)) for name in grids or ()]
    found = [point for grid in (*loaded, *made) for point in grid.points]
    kept = merge_points(
        point
        for point in found
        if (not wanted or point.op in wanted) and _passes(point.name, filters)
    )
    if not kept:
        some = ", ".join(point.name for point in found[:5])
        raise UsageError(f"no point of the grid passes the filters; it has {some}, ...")
    return kept


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
    known = [s for s in registry.kernels().values() if not wanted_ops or s.op in wanted_ops]
    wanted = words(names)
    for name in wanted:
        if not any(name in (spec.id, spec.name) for spec in known):
            raise unknown_name("kernel", name, [*(s.id for s in known), *(s.name for s in known)])
    return tuple(s for s in known if not wanted or s.id in wanted or s.name in wanted)


def say_left_out(
    specs: "Iterable[KernelSpec]", directions: Iterable[str], allow_nondeterministic: bool
) -> None:
    """Names what a sweep does not take because nobody asked for it."""
    from attn_tune.cli import sink

    names = sorted({s.id for s in specs for d in directions if s.needs_leave(d)})
    if names and not allow_nondeterministic:
        sink.note(f"left out, not deterministic: {', '.join(names)} (--allow-nondeterministic)")


def directions(values: Sequence[str] | None) -> tuple[str, ...]:
    """The directions in their usual order, both by default."""
    return tuple(d for d in DIRECTIONS if not values or d in {str(v) for v in values})


def effort(
    effort: str | None,
    strategy: str | None,
    max_trials: int | None,
    *,
    only_compiles: bool = False,
) -> "Effort":
    """The effort that the options name; says so when the default has to do without scikit-learn.

    Raises:
      UsageError: the options contradict one another, or the strategy needs scikit-learn and it is not installed.
    """
    from attn_tune.cli import sink
    from attn_tune.tuner.strategies import make_effort
    from attn_tune.tuner.strategies.model import has_scikit_learn

    if effort is None and strategy is None and not has_scikit_learn():
        sink.note(
            "strategy portfolio: surrogate needs scikit-learn (pip install 'attn-tune[search]')"
        )
    return make_effort(effort, strategy, max_trials, only_compiles=only_compiles)


def device(name: str | None) -> Device:
    """The named device, or this machine's.

    Raises:
      UsageError: unknown name.
    """
    from attn_tune.runtime.devices import current_device, device_from_kind

    return device_from_kind(name) if name else current_device()


def point_names(grids: Sequence[str] | None = None) -> dict[str, str]:
    """Names of grid points by signature text: of every preset at every length, and of ``grids``."""
    from attn_tune.tuner.grid import ALL, grid_names, load_grid, merge_points

    names = [name for name in grid_names() if name != ALL]
    own = [name for name in grids or () if name not in grid_names()]
    found = [p for name in (*own, *names) for p in load_grid(name, lengths=("all",)).points]
    return {point.signature.text: brief(point.name) for point in merge_points(found)}


def brief(name: str) -> str:
    """The first of several joined names, and how many more there are."""
    first, *more = name.split("+")
    return f"{first} (+{len(more)})" if more else first


def signature(text: str) -> "GridPoint":
    """The one point that ``text`` names: a signature, or a grid point such as ``llama3-8b/4x4k``.

    Raises:
      UsageError: malformed, or unknown.
      NoDataError: the grid has no such point.
    """
    from attn_tune.tuner.grid import grid_point

    return grid_point(text)


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
