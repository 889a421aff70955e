"""``attn-tune best`` and ``attn-tune report``: what the database decided."""

import dataclasses
import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.sweeps.database_sweep import open_lab
from attn_tune.schema import Decision, Device, NoDataError
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    import pandas as pd


class Section(enum.StrEnum):
    """Choices of ``report --section``."""

    SUMMARY = "summary"
    STATUSES = "statuses"
    FAILURES = "failures"
    COVERAGE = "coverage"
    IMPORTED = "imported"
    FITS = "fits"
    PREDICTED = "predicted"


def best(
    point: Annotated[
        str, typer.Argument(help="A grid point such as llama3-8b/4x4k, or a signature.")
    ],
    db: options.Database,
    grid: options.PointGrids = None,
    kernel: options.Kernels = None,
    direction: options.Directions = None,
    device: options.DeviceName = None,
    json: options.Json = False,
) -> None:
    """Show the best config of one problem, for every kernel.

    Rows of packs that were imported into the database stand beside its own.

    Example: attn-tune best llama3-8b/4x4k --direction bwd
    """
    from attn_tune.reports import frames, tables

    asked = selection.signature(point, grid)
    names = {asked.signature.text: selection.brief(asked.name)}
    with open_lab(db) as database:
        tried = database.frame("coverage", signature=asked.signature)
        imported = database.frame("imported")
        found = database.decisions(signature=asked.signature)
    narrowing = _Narrowing(
        problems=names,
        kernels=selection.kernel_ids(kernel, [*tried["kernel"], *imported["kernel"]]),
        directions=selection.directions(direction),
        device=selection.device(device) if device else None,
    )
    found, imported = narrowing.decisions(found), narrowing.rows(imported)
    if not found and imported.empty:
        raise NoDataError(
            f"{db} has no decision for {asked.signature.text!r}; "
            f"tune it with: attn-tune sweep --grid {asked.signature.text!r} --db {db}"
        )
    own, packs = frames.summary(found, names), frames.imported(imported, names)
    if json:
        output.emit_json(
            {"decisions": tables.to_records(own), "imported": tables.to_records(packs)}
        )
        return
    if found:
        output.emit_winners(own.drop(columns=["signature", "trials"]))
    if not packs.empty:
        output.emit_frame(packs.drop(columns=["signature"]), title="Imported")


def report(
    db: options.Database,
    section: Annotated[
        Section | None,
        typer.Option(
            "--section", "-s", help="Only this part. Default: all in a table, else summary."
        ),
    ] = None,
    fmt: Annotated[
        options.Format, typer.Option("--format", "-f", help="How to print it.")
    ] = options.Format.TABLE,
    grid: options.Grids = None,
    lengths: options.Lengths = None,
    point: options.Points = None,
    kernel: options.Kernels = None,
    direction: options.Directions = None,
    device: options.DeviceName = None,
    every: options.All = False,
    json: options.Json = False,
) -> None:
    """Report winners, trials by status, failures, coverage and predictions.

    Without --grid, --point and --lengths go by the presets' names of what is stored.

    Example: attn-tune report --format markdown > results.md
    """
    fmt = options.Format.JSON if json else fmt
    with open_lab(db) as database:
        trials, imported = database.frame("trials"), database.frame("imported")
        found = database.decisions()
    stored = [*trials["signature"], *imported["signature"]]
    narrowing = _Narrowing(
        problems=selection.stored_points(stored, grid, lengths, point),
        kernels=selection.kernel_ids(kernel, [*trials["kernel"], *imported["kernel"]]),
        directions=selection.directions(direction),
        device=selection.device(device) if device else None,
    )
    found, trials = narrowing.decisions(found), narrowing.rows(trials)
    imported = narrowing.rows(imported)
    if trials.empty and not found and imported.empty:
        raise NoDataError(f"{db} holds nothing that fits; 'attn-tune sweep' fills it")
    parts = _sections(found, trials, imported, grid, narrowing)
    if section is not None:
        parts = {section: parts[section]}
    elif fmt in (options.Format.CSV, options.Format.MARKDOWN):
        parts = {Section.SUMMARY: parts[Section.SUMMARY]}
    from attn_tune.reports import frames

    for line in _absent(trials):
        output.note(line)
    _print(parts, fmt, folded=() if every else frames.refused_kernels(trials), every=every)


def _sections(
    found: list[Decision],
    trials: "pd.DataFrame",
    imported: "pd.DataFrame",
    grid: list[str] | None,
    narrowing: "_Narrowing",
) -> "dict[Section, pd.DataFrame]":
    from attn_tune.reports import frames, predictions

    names = selection.point_names(grid)
    wanted = narrowing.problems or {
        text: names.get(text, text) for text in dict.fromkeys(d.signature.text for d in found)
    }
    # Of the kernels asked for, the best of each problem.
    winners = list(
        {
            (d.signature, d.direction, d.device): d
            for d in sorted(found, key=lambda d: d.rank, reverse=True)
        }.values()
    )
    return {
        Section.SUMMARY: frames.summary(winners, names),
        Section.STATUSES: frames.status_counts(trials),
        Section.FAILURES: frames.failures(trials),
        Section.COVERAGE: frames.coverage(winners, wanted, narrowing.directions),
        Section.IMPORTED: frames.imported(imported, names),
        Section.FITS: predictions.fits(trials, names),
        Section.PREDICTED: predictions.ranking(trials, names),
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Narrowing:
    """The filters that the options set; None narrows nothing. ``problems`` are names by signature text."""

    problems: Mapping[str, str] | None
    kernels: Collection[str] | None
    directions: Collection[str]
    device: Device | None

    def decisions(self, found: Iterable[Decision]) -> list[Decision]:
        """The decisions asked for."""
        return [
            d
            for d in found
            if d.direction in self.directions
            and (self.problems is None or d.signature.text in self.problems)
            and (self.kernels is None or d.kernel in self.kernels)
            and (self.device is None or self.device.variant in (d.device.variant, d.device.family))
        ]

    def rows(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """The rows asked for, of trials or of imported packs."""
        keep = frame["direction"].isin(list(self.directions))
        if self.problems is not None:
            keep &= frame["signature"].isin(list(self.problems))
        if self.kernels is not None:
            keep &= frame["kernel"].isin(list(self.kernels))
        if self.device is not None:
            named = self.device.variant
            # A slice of a GPU follows its variant's name.
            slices = [d for d in frame["device"].unique() if str(d).partition("/")[0] == named]
            keep &= (frame["family"] == named) | frame["device"].isin(slices)
        return frame.loc[keep]


def _absent(trials: "pd.DataFrame") -> Iterator[str]:
    """A line for each op, and one for each kernel of a known op, that is not installed here."""
    from attn_tune.kernels import registry

    for op, rows in trials.groupby("op"):
        if op not in registry.ops():
            yield f"{op} is not installed here: its {counted(len(rows), 'trial')} are shown as they are stored"
            continue
        for kernel in sorted(set(rows["kernel"]) - set(registry.kernels())):
            yield f"{kernel} is not installed here: its trials are shown as they are stored"


def _print(
    parts: "dict[Section, pd.DataFrame]",
    fmt: options.Format,
    *,
    folded: Collection[str],
    every: bool,
) -> None:
    """Prints ``parts``. In tables one line stands for the ``folded`` kernels, and one for rare failures."""
    from attn_tune.reports import frames, tables

    if fmt is options.Format.JSON:
        output.emit_json({str(name): tables.to_records(frame) for name, frame in parts.items()})
        return
    shown = 0
    for name, frame in parts.items():
        if fmt is not options.Format.TABLE:
            output.emit_formatted(frame, fmt)
            continue
        if frame.empty and len(parts) > 1:
            continue
        print(end="\n" if shown else "")
        shown += 1
        title, rest, refused = _TITLES.get(name, str(name).capitalize()), 0, 0
        if name in (Section.STATUSES, Section.FAILURES):
            refused = len(set(frame["kernel"]) & set(folded))
            frame = frame.loc[~frame["kernel"].isin(list(folded))]
        if name is Section.FAILURES and not every:
            frame, rest = frames.shortened(frame)
        frame = frame.drop(columns=[c for c in _HIDDEN.get(name, ()) if c in frame])
        if name is Section.SUMMARY:
            output.emit_winners(frame, title=title)
        else:
            output.emit_frame(frame, title=title)
        if rest:
            print(f"and {rest} more (--all lists them)")
        if refused:
            print(f"{counted(refused, 'kernel')} can do none of this (--all lists them)")


_TITLES = {Section.PREDICTED: "Predicted: the best 3 of each kernel"}
# Columns that people do not read, or that repeat another column.
_HIDDEN = {
    Section.SUMMARY: ("rank", "signature", "trials", "samples"),
    Section.IMPORTED: ("signature",),
    Section.PREDICTED: ("signature",),
}
