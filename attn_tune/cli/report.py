"""``attn-tune best`` and ``attn-tune report``: what the database decided."""

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from attn_tune.cli import choose, options, sink
from attn_tune.cli.lab import open_lab
from attn_tune.schema import Decision, NoDataError

if TYPE_CHECKING:
    import pandas as pd

    from attn_tune.db import Database
    from attn_tune.schema import Signature


class Section(enum.StrEnum):
    """Choices of ``report --section``."""

    SUMMARY = "summary"
    STATUSES = "statuses"
    FAILURES = "failures"
    COVERAGE = "coverage"
    FITS = "fits"
    PREDICTED = "predicted"


def best(
    point: Annotated[
        str, typer.Argument(help="A grid point such as llama3-8b/4x4k, or a signature.")
    ],
    db: options.Database,
    kernel: options.Kernels = None,
    direction: options.Directions = None,
    device: options.DeviceName = None,
    json: options.Json = False,
) -> None:
    """Show the best config of one problem, for every kernel.

    Example: attn-tune best llama3-8b/4x4k --direction bwd
    """
    from attn_tune.reports import frames

    asked = choose.signature(point)
    with open_lab(db) as database:
        found = _decisions(database, kernel, direction, device, signature=asked.signature)
    if not found:
        raise NoDataError(
            f"{db} has no decision for {asked.signature.text!r}; "
            f"tune it with: attn-tune sweep --grid {asked.signature.text!r} --db {db}"
        )
    frame = frames.summary(found, {asked.signature.text: choose.brief(asked.name)})
    sink.emit_formatted(
        frame if json else frame.drop(columns=["signature", "trials"]),
        options.table_or_json(json),
        key="decisions",
    )


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
    json: options.Json = False,
) -> None:
    """Report winners, trials by status, failures, coverage and predictions.

    Example: attn-tune report --format markdown > results.md
    """
    fmt = options.Format.JSON if json else fmt
    wanted = {p.signature.text for p in choose.points(grid, lengths, point)} if grid else None
    with open_lab(db) as database:
        found = _decisions(database, kernel, direction, device)
        trials = database.frame("trials")
    found = [d for d in found if wanted is None or d.signature.text in wanted]
    chosen = choose.kernels(kernel) if kernel else None
    trials = _narrowed(trials, wanted, chosen, choose.directions(direction))
    if trials.empty and not found:
        raise NoDataError(f"{db} holds nothing that fits; 'attn-tune sweep' fills it")
    parts = _sections(found, trials, grid, lengths, point, choose.directions(direction))
    if section is not None:
        parts = {section: parts[section]}
    elif fmt in (options.Format.CSV, options.Format.MARKDOWN):
        parts = {Section.SUMMARY: parts[Section.SUMMARY]}
    _print(parts, fmt)


def _sections(
    found: list[Decision], trials: "pd.DataFrame", grid, lengths, point, directions
) -> "dict[Section, pd.DataFrame]":
    from attn_tune.reports import frames, predictions

    names = choose.point_names(grid)
    if grid:
        wanted = {
            p.signature.text: choose.brief(p.name) for p in choose.points(grid, lengths, point)
        }
    else:
        wanted = {d.signature.text: names.get(d.signature.text, d.signature.text) for d in found}
    winners = [d for d in found if d.rank == 0]
    return {
        Section.SUMMARY: frames.summary(winners, names),
        Section.STATUSES: frames.status_counts(trials),
        Section.FAILURES: frames.failures(trials),
        Section.COVERAGE: frames.coverage(winners, wanted, directions),
        Section.FITS: predictions.fits(trials, names),
        Section.PREDICTED: predictions.ranking(trials, names),
    }


def _print(parts: "dict[Section, pd.DataFrame]", fmt: options.Format) -> None:
    from attn_tune.reports import tables

    if fmt is options.Format.JSON:
        sink.emit_json({str(name): tables.to_records(frame) for name, frame in parts.items()})
        return
    for name, frame in parts.items():
        if fmt is options.Format.TABLE:
            if frame.empty and len(parts) > 1:
                continue
            hidden = ["rank", "signature", "trials", "samples"] if name is Section.SUMMARY else []
            hidden += ["signature"] if name is Section.PREDICTED and not frame.empty else []
            sink.emit_frame(frame.drop(columns=hidden), title=str(name).capitalize())
        else:
            sink.emit_formatted(frame, fmt)


def _decisions(
    database: "Database",
    kernel: list[str] | None,
    direction: list[options.Direction] | None,
    device: str | None,
    signature: "Signature | None" = None,
) -> list[Decision]:
    kernels = {spec.id for spec in choose.kernels(kernel)} if kernel else None
    directions = choose.directions(direction)
    variant = choose.device(device).variant if device else None
    return [
        decision
        for decision in database.decisions(signature=signature)
        if decision.direction in directions
        and (kernels is None or decision.kernel in kernels)
        and (variant is None or variant in (decision.device.variant, decision.device.family))
    ]


def _narrowed(trials: "pd.DataFrame", wanted, kernels, directions) -> "pd.DataFrame":
    keep = trials["direction"].isin(directions)
    if kernels is not None:
        keep &= trials["kernel"].isin([spec.id for spec in kernels])
    if wanted is not None:
        keep &= trials["signature"].isin(list(wanted))
    return trials.loc[keep]
