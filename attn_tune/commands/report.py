"""Report winners, trials by status, failures, coverage and predictions.

With --html all of it becomes one page with pictures, for a browser without a network.
Without --grid, --point and --lengths match the presets' names of the stored problems.

Example: attn-tune report --format markdown > results.md
"""

import contextlib
import enum
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.cases import Cases
from attn_tune.commands.shared.database import open_lab
from attn_tune.commands.shared.narrowing import Narrowing
from attn_tune.commands.shared.output_file import check_free
from attn_tune.commands.shared.report_page import STDOUT, page_data, write_page
from attn_tune.schema import Decision, NoDataError, UsageError
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    import pandas as pd


class Section(enum.StrEnum):
    """Choices of ``report --section``.

    ``summary``: the winners. ``statuses``: trials by kernel and status. ``failures``: the reasons of failures.
    ``coverage``: the problems with and without a decision. ``imported``: rows of imported packs. ``fits``: configs that
    compile for a target. ``predicted``: configs by predicted time.
    """

    SUMMARY = "summary"
    STATUSES = "statuses"
    FAILURES = "failures"
    COVERAGE = "coverage"
    IMPORTED = "imported"
    FITS = "fits"
    PREDICTED = "predicted"


@options.grouped
def command(
    db: options.Database,
    cases: Cases,
    section: Section | None = options.option(
        None,
        "--section -s",
        "SECTION",
        "Only this part: summary, statuses, failures, coverage, imported, fits or predicted. Default: all in a table, "
        "else summary.",
    ),
    fmt: options.Format = options.option(options.Format.TABLE, "--format -f", "", "The format of the answer."),
    device: options.DeviceName = None,
    html: Path | None = options.option(
        None, "--html", "FILE", "Write everything as one self-contained HTML page; - is stdout."
    ),
    interactive: bool = options.flag(
        "--interactive", "The page's landscapes can be brushed. Needs the extra 'report'; adds 0.9 MB to the page."
    ),
    overwrite: options.Overwrite = False,
    every: options.All = False,
    json: options.Json = False,
) -> None:
    fmt = options.Format.JSON if json else fmt
    _check_page_options(html, section, fmt, interactive=interactive, overwrite=overwrite)
    alone = output.answers_alone() if html == STDOUT else contextlib.nullcontext()
    made = _library() if interactive else contextlib.nullcontext()
    with alone, made as library, open_lab(db) as database:
        trials, imported = database.frame("trials"), database.frame("imported")
        found = database.decisions()
        narrowing = _narrowing(cases, trials, imported, device)
        found, trials, imported = narrowing.decisions(found), narrowing.rows(trials), narrowing.rows(imported)
        if trials.empty and not found and imported.empty:
            raise NoDataError(f"{db} holds nothing that fits; 'attn-tune sweep' fills it")
        if html is not None:
            names = {**_names(trials, imported, cases.grid), **(narrowing.problems or {})}
            data = page_data(database, _winners(found), trials, imported, names, narrowing)
            size = write_page(html, data, library)
            if fmt is options.Format.JSON:
                output.emit_json(path=html, bytes=size, trials=len(trials))
            elif html != STDOUT:
                output.say(f"{html}: {counted(len(trials), 'trial')}, {size / 1000:.0f} kB")
            return
    parts = _sections(found, trials, imported, cases.grid, narrowing)
    if section is not None:
        parts = {section: parts[section]}
    elif fmt in (options.Format.CSV, options.Format.MARKDOWN):
        parts = {Section.SUMMARY: parts[Section.SUMMARY]}
    from attn_tune.reports import frames

    for line in _absent(trials):
        output.note(line)
    _print(parts, fmt, folded=() if every else frames.refused_kernels(trials), every=every)


def _check_page_options(
    html: Path | None, section: Section | None, fmt: options.Format, *, interactive: bool, overwrite: bool
) -> None:
    """Refuse options that contradict one another, and a page that cannot be written.

    Raises:
      UsageError: they do.
      StorageError: it cannot.
    """
    if html is None:
        if interactive or overwrite:
            raise UsageError(f"{'--interactive' if interactive else '--overwrite'} needs --html FILE")
        return
    if section is not None:
        raise UsageError("--html writes every section; leave --section out")
    if fmt not in (options.Format.TABLE, options.Format.JSON):
        raise UsageError(f"--html has a format of its own; leave --format {fmt} out")
    if fmt is options.Format.JSON and html == STDOUT:
        raise UsageError("--html - and --json both want stdout; give the page a file")
    if html != STDOUT:
        check_free(html, overwrite=overwrite)


def _library() -> contextlib.AbstractContextManager[Callable[[], str]]:
    from attn_tune.reports.page.interactive import begin_library

    return begin_library(os.environ)


def _narrowing(cases: Cases, trials: "pd.DataFrame", imported: "pd.DataFrame", device: str | None) -> Narrowing:
    return Narrowing(
        problems=cases.stored_points([*trials["signature"], *imported["signature"]]),
        kernels=cases.stored_kernels([*trials["kernel"], *imported["kernel"]]),
        directions=cases.stored_directions(trials["direction"]),
        device=selection.device(device) if device else None,
    )


def _names(trials: "pd.DataFrame", imported: "pd.DataFrame", grid: list[str] | None) -> dict[str, str]:
    return selection.point_names(grid, {*trials["signature"], *imported["signature"]})


def _winners(found: list[Decision]) -> list[Decision]:
    """Of the kernels asked for, the best of each problem."""
    best_last = sorted(found, key=lambda d: d.rank, reverse=True)
    return list({(d.signature, d.direction, d.device): d for d in best_last}.values())


def _sections(
    found: list[Decision],
    trials: "pd.DataFrame",
    imported: "pd.DataFrame",
    grid: list[str] | None,
    narrowing: "Narrowing",
) -> "dict[Section, pd.DataFrame]":
    from attn_tune.reports import frames, predictions

    names = {**_names(trials, imported, grid), **(narrowing.problems or {})}
    wanted = narrowing.problems or {
        text: names.get(text, text) for text in dict.fromkeys(d.signature.text for d in found)
    }
    winners = _winners(found)
    return {
        Section.SUMMARY: frames.summary(winners, names),
        Section.STATUSES: frames.status_counts(trials),
        Section.FAILURES: frames.failures(trials),
        Section.COVERAGE: frames.coverage(winners, wanted, narrowing.directions),
        Section.IMPORTED: frames.imported(imported, names),
        Section.FITS: predictions.fits(trials, names),
        Section.PREDICTED: predictions.ranking(trials, names),
    }


def _absent(trials: "pd.DataFrame") -> Iterator[str]:
    """A line for each op, and one for each kernel of a known op, that is not installed here."""
    from attn_tune.kernels import registry
    from attn_tune.ops.registry import ops

    for op, rows in trials.groupby("op"):
        if op not in ops():
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
    from attn_tune.reports import frames

    if fmt is options.Format.JSON:
        output.emit_json(**parts)
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
        whole = frame
        title, rest, refused, is_cut = _TITLES.get(name, str(name).capitalize()), 0, 0, False
        if name in (Section.STATUSES, Section.FAILURES):
            refused = len(set(frame["kernel"]) & set(folded))
            frame = frame.loc[~frame["kernel"].isin(list(folded))]
        if name is Section.STATUSES:
            frame = frames.occurring(frame)
        # Who asked for the reasons alone wants all of them.
        if name is Section.FAILURES and not every and len(parts) > 1:
            reasons = list(frame["reason"].head(frames.SHOWN))
            frame, rest = frames.shortened(frame)
            is_cut = list(frame["reason"]) != reasons
        frame = frame.drop(columns=[c for c in _HIDDEN.get(name, ()) if c in frame])
        if frame.empty:
            output.say(f"{title.partition(':')[0]}: none")
        elif name is Section.SUMMARY:
            output.emit_winners(frame, title=title)
        else:
            output.emit_frame(frame, title=title)
        if rest:
            output.say(f"and {rest} more (--all lists them)")
        elif is_cut:
            output.say("--all has the reasons in full")
        if name is Section.STATUSES:
            output.say(frames.counts_in_words(whole) + frames.left_out(whole, folded))
        if refused and (name is Section.STATUSES or Section.STATUSES not in parts):
            output.say(f"{counted(refused, 'kernel')} can do none of this (--all lists them)")


_TITLES = {Section.PREDICTED: "Predicted: the best 3 of each kernel"}
# Columns that people do not read, or that repeat another column.
_HIDDEN = {
    Section.SUMMARY: ("rank", "signature", "trials", "samples"),
    Section.IMPORTED: ("signature",),
    Section.PREDICTED: ("signature",),
}
