"""The page of ``report --html``: reads the database, narrows, renders and writes."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.commands.shared import output
from attn_tune.commands.shared.output_file import write_text
from attn_tune.schema import Decision

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from attn_tune.commands.shared.narrowing import Narrowing
    from attn_tune.db import Database
    from attn_tune.reports.page.data import PageData

STDOUT = Path("-")


def page_data(
    database: "Database",
    winners: list[Decision],
    trials: "pd.DataFrame",
    imported: "pd.DataFrame",
    names: Mapping[str, str],
    narrowing: "Narrowing",
) -> "PageData":
    """The frames of a page. ``winners`` has one decision a problem; all that is given is narrowed."""
    from attn_tune.reports.page import coverage_cells, frames
    from attn_tune.reports.page.data import PageData
    from attn_tune.reports.page.told_apart import Names, check_times

    check_times(trials, str(database.path))
    finals, software = (narrowing.rows(database.frame(name)) for name in ("finals", "software"))
    every = narrowing.decisions(database.decisions())
    apart = Names((trials, imported), winners)
    trials, imported, finals, software = map(apart.frame, (trials, imported, finals, software))
    races = [apart.race(race, one) for one in winners for race in database.races([one])]
    winners = list(map(apart.decision, winners))
    texts = [*trials["signature"].unique(), *imported["signature"].unique(), *(narrowing.problems or ())]
    return PageData(
        trials=trials,
        winners=frames.winners(winners, names),
        kernels=frames.winners(map(apart.decision, every), names),
        races=frames.races(races),
        cells=coverage_cells.cells(
            winners, trials, imported, wanted=list(narrowing.problems or ()), directions=narrowing.directions
        ),
        finals=finals,
        software=software,
        names=short_names(texts, names),
    )


def short_names(texts: list[str], names: Mapping[str, str]) -> dict[str, str]:
    """The names of problems: of points, else the signature, without the op where all are of one."""
    from attn_tune.reports.frames import short_signatures

    return {**short_signatures(dict.fromkeys(texts)), **{text: names[text] for text in texts if text in names}}


def write_page(path: Path, data: "PageData", library: "Callable[[], str] | None") -> int:
    """Write the page, with the library for interaction or without, and return its size in bytes.

    Raises:
      StorageError: ``path`` cannot be written.
    """
    from attn_tune.reports.page.page import render

    page = render(data, library=library)
    if path == STDOUT:
        output.emit_bytes(page.encode())
    else:
        write_text(path, page)
    return len(page.encode())
