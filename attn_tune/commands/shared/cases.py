"""Groups of options that choose problems, kernels and directions, and say how much of them is tried."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.packs import pack_path
from attn_tune.ops.contract import WORKLOAD
from attn_tune.schema import NoDataError, UsageError, unknown_name
from attn_tune.schema.errors import near_names
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.commands.shared.sources import Sources
    from attn_tune.kernels.spec import KernelSpec
    from attn_tune.tuner.plan.case import GridPoint
    from attn_tune.tuner.plan.grid import Grid
    from attn_tune.tuner.plan.hints import Proposal
    from attn_tune.tuner.plan.strategies.effort import Effort

# The reasons for which hints are skipped, as far as they are shown.
_MOST_REASONS = 8


@dataclass(frozen=True, kw_only=True)
class Cases:
    """Options that choose problems, kernels and directions. The help of an option describes its field."""

    panel: ClassVar[str] = "Problems and kernels"
    grid: options.Grids = None
    lengths: options.Lengths = None
    point: options.Points = None
    workload: options.Workloads = None
    op: options.Ops = None
    kernel: options.Kernels = None
    direction: options.Directions = None

    def points(self, sources: "Sources | None" = None) -> "tuple[GridPoint, ...]":
        """The grid points, one a signature: of the grids, then of ``sources``.

        Raises:
          UsageError: an unknown grid, op or workload, a malformed file, or a filter that leaves nothing.
        """
        from attn_tune.ops.registry import get_op
        from attn_tune.tuner.plan.case import merge_points
        from attn_tune.tuner.plan.grid import load_grid
        from attn_tune.tuner.plan.lengths import has_lengths

        made = list(sources.grids()) if sources else []
        if not self.grid and not made:
            if self.point:
                raise UsageError(f"no grid given, of which --point {self.point[0]} takes points; name it with --grid")
            raise UsageError(
                "no grid given; choose one with --grid ('attn-tune grids' lists them), or make one with --from-fn, "
                "--from-hlo or --from-misses"
            )
        ops, sizes = (
            {get_op(name).name for name in selection.words(self.op)},
            selection.words(self.lengths),
        )
        found = [p for name in self.grid or () for p in load_grid(name, lengths=sizes).points]
        found += [
            point
            for grid in made
            for point in grid.points
            if not sizes or has_lengths(get_op(point.op).axes, point.signature.values, sizes)
        ]
        for word in sizes if len(sizes) > 1 else ():
            _check_chooses(word, self.grid or (), made)
        others = {point.op for point in found}
        if others and ops and not others & ops:
            listed = ", ".join(sorted(others))
            raise UsageError(f"no point of the grid is of op {', '.join(sorted(ops))}; it has {listed}")
        found = [point for point in found if not ops or point.op in ops]
        if found and (workloads := selection.words(self.workload)):
            found = list(selection.with_workloads(found, workloads))
        kept = merge_points(point for point in found if self._has_name(point.name))
        if not kept:
            names = [name for point in found for name in point.name.split("+")]
            near = next(filter(None, (near_names(word, names) for word in self.point or ())), "")
            has = f"; {near or f'it has {_some(names)}'}" if found else ""
            raise UsageError(f"no point of the grid passes the filters{has}")
        return kept

    def stored_points(self, stored: Iterable[str]) -> dict[str, str] | None:
        """The names of stored problems by signature text; None where no option narrows them.

        Without grids they are those of ``stored``. A database knows signatures only, so the names are those of the
        presets, and a problem of no preset is called by its signature.

        Raises:
          UsageError: an unknown grid or workload, or a word that is no length.
          NoDataError: no stored problem passes.
        """
        if self.grid:
            return {p.signature.text: selection.brief(p.name) for p in self.points()}
        if not self.lengths and not self.point and not self.workload:
            return None
        from attn_tune.tuner.plan.grid import preset_points

        sizes, refusal = selection.words(self.lengths), None
        every = selection.names_of(preset_points())
        try:
            chosen = selection.names_of(preset_points(sizes))
        except UsageError as error:
            # No preset has such lengths; a problem that is stored beside them may.
            chosen, refusal = {}, error
        stored, kept = list(dict.fromkeys(stored)), {}
        workloads = selection.words(self.workload)
        ops = {text.partition("/")[0] for text in stored if workloads}
        known = selection.check_workloads(workloads, ops)
        for text in stored:
            if workloads and _workload(text, known) not in workloads:
                continue
            names = chosen.get(text, [])
            if text not in every and (not sizes or _has_lengths(text, sizes)):
                names = [text]
            if passing := [name for name in names if self._has_name(name)]:
                kept[text] = selection.brief("+".join(passing))
        if refusal and not kept:
            raise refusal
        if not kept:
            known = _some(selection.brief("+".join(every.get(text, [text]))) for text in stored)
            raise NoDataError(
                f"no stored problem passes the filters; there are {known}; "
                "names of points in a file of your own are known with --grid FILE"
            )
        return kept

    def kernels(self) -> "tuple[KernelSpec, ...]":
        """The installed kernels. Raises as ``selection.kernels``."""
        return selection.kernels(self.kernel, self.op)

    def stored_kernels(self, stored: Iterable[str]) -> set[str] | None:
        """The ids among kernels that are installed or ``stored``; None where no option narrows them.

        Raises:
          UsageError: an unknown op or kernel; near names are suggested.
        """
        if not self.op and not self.kernel:
            return None
        from attn_tune.kernels import registry

        known = {*stored, *registry.kernels()}
        ops = {i.partition("/")[0] for i in known}
        for name in selection.words(self.op):
            if name not in ops:
                raise unknown_name("op", name, ops)
        wanted = selection.words(self.op) or ops
        return {i for i in selection.matching(self.kernel, known) if i.partition("/")[0] in wanted}

    def directions(self) -> tuple[str, ...]:
        """The directions, of any op. Raises as ``selection.directions``."""
        return selection.directions(self.direction)

    def stored_directions(self, stored: Iterable[str]) -> tuple[str, ...] | None:
        """The directions, of an installed op or ``stored``; None where no option narrows them.

        Raises:
          UsageError: no op has the direction.
        """
        wanted = selection.words(self.direction)
        known = [*selection.directions(None), *stored] if wanted else []
        for name in wanted:
            if name not in known:
                raise unknown_name("direction", name, known)
        return wanted or None

    def _has_name(self, name: str) -> bool:
        filters = self.point
        return not filters or any(f in name or fnmatch.fnmatchcase(name, f) for f in filters)


@dataclass(frozen=True, kw_only=True)
class Search:
    """Options that say how much is tried. The help of an option describes its field."""

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
    hints: list[Path] | None = options.option(
        None,
        "--hints",
        "PATH",
        "Try the configs of this pack, or of this table of tokamax, first; each is proven and timed like all others. "
        "Repeatable.",
        parser=pack_path,
    )

    def made(self, *, only_compiles: bool = False) -> "Effort":
        """The effort.

        Raises:
          UsageError: the options contradict one another, or the strategy needs scikit-learn and it is not installed.
        """
        from attn_tune.tuner.plan.strategies.effort import make_effort

        return make_effort(self.effort, self.strategy, self.max_trials, only_compiles=only_compiles)

    def proposals(self) -> "tuple[Proposal, ...]":
        """The configs that ``--hints`` names. Those that cannot be used here are counted and named on stderr.

        Raises:
          StorageError, IntegrityError: a source cannot be read, or is neither a pack nor a table.
          NoDataError: a source has nothing that can be used here.
        """
        if not self.hints:
            return ()
        from attn_tune.integrations.hints import read_hints

        found: list[Proposal] = []
        for path in self.hints:
            read = read_hints(path)
            used = len(read.proposals)
            output.note(f"hints of {path}: {counted(used, 'config')}, {sum(read.skipped.values())} skipped")
            for reason, count in read.skipped.most_common(_MOST_REASONS):
                output.note(f"  skipped {count}: {reason}")
            if (more := len(read.skipped) - _MOST_REASONS) > 0:
                output.note(f"  and others for {counted(more, 'more reason')}")
            if not used:
                raise NoDataError(f"{path} has no config that can be tried here; leave out --hints {path}")
            found += read.proposals
        return tuple(found)


def _check_chooses(word: str, grids: Sequence[str], made: "Sequence[Grid]") -> None:
    """Refuse one of several lengths that chooses no point of any grid: it would be left out unseen.

    Raises:
      UsageError: it is one; of the grids that are named, the message has the lengths of the last.
    """
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.plan.grid import load_grid
    from attn_tune.tuner.plan.lengths import has_lengths

    points = (point for grid in made for point in grid.points)
    if any(has_lengths(get_op(point.op).axes, point.signature.values, [word]) for point in points):
        return
    refusal: UsageError | None = None
    for name in grids:
        try:
            if load_grid(name, lengths=[word]).points:
                return
        except UsageError as error:
            refusal = error
    raise refusal or UsageError(f"no point has the length {word}")


def _has_lengths(text: str, wanted: Sequence[str]) -> bool:
    """Whether the problem of a signature's text has such lengths; that of an op that is not installed has none."""
    from attn_tune.ops.registry import get_op, op_names
    from attn_tune.tuner.plan.lengths import has_lengths

    pairs = (item.partition("=") for item in text.split()[1:])
    values = {name: int(value) for name, _, value in pairs if value.isdecimal()}
    op = text.partition("/")[0]
    return has_lengths(get_op(op).axes if op in op_names() else (), values, wanted)


def _workload(text: str, known: Mapping[str, Sequence[str]]) -> str:
    """The workload of a signature's text: the first of its op where the text has none, empty for an op without."""
    op, *items = text.split()
    given = dict(item.split("=", 1) for item in items)
    return given.get(WORKLOAD) or next(iter(known[op.partition("/")[0]]), "")


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join([*found[:5], *(["..."] if len(found) > 5 else [])]) or "none"
