"""Grids that production gives: the options ``--from-misses``, ``--from-fn`` and ``--from-hlo``."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attn_tune.commands.shared import output

if TYPE_CHECKING:
    from attn_tune.tuner.grid import Grid
    from attn_tune.tuner.sources.calls import Calls

FromMisses = Annotated[
    bool,
    typer.Option(
        "--from-misses", help="The problems that jobs missed; see 'attn-tune misses' and --spool."
    ),
]
SpoolPath = Annotated[
    Path | None,
    typer.Option(
        "--spool",
        metavar="PATH",
        help="The spool of misses: a folder or one file. Default: ATTN_TUNE_SPOOL, or attn-tune/misses in the "
        "user's state directory.",
    ),
]
MissedOn = Annotated[
    str | None,
    typer.Option(
        "--missed-on",
        metavar="DEVICE",
        help="Only what this device missed; needed when several did.",
    ),
]
FromFn = Annotated[
    list[str] | None,
    typer.Option(
        "--from-fn",
        metavar="MODULE:FUNCTION",
        help="The attention calls of what this function returns: (fn, args), or something traced or lowered. "
        "Nothing is run. Repeatable.",
    ),
]
FromHlo = Annotated[
    list[Path] | None,
    typer.Option(
        "--from-hlo",
        metavar="FILE",
        help="The attention calls of a program in a file: StableHLO (text or bytecode) or HLO text. Repeatable.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What the options name."""

    misses: bool = False
    spool: Path | None = None
    missed_on: str | None = None
    functions: Sequence[str] | None = None
    files: Sequence[Path] | None = None

    @property
    def is_given(self) -> bool:
        """Whether an option names a source."""
        return bool(self.misses or self.spool or self.missed_on or self.functions or self.files)

    def grids(self) -> "Iterator[Grid]":
        """A grid for each source, in the order of the options; what could not be read is said on stderr.

        Raises:
          UsageError, NoDataError: a source cannot be read or has nothing.
        """
        if self.misses or self.spool or self.missed_on:
            yield self._missed()
        for function in self.functions or ():
            yield _called(function)
        for file in self.files or ():
            yield _lowered(file)

    def _missed(self) -> "Grid":
        from attn_tune.runtime.spool import spool_folder
        from attn_tune.tuner.sources.misses import grid_of_misses, read_spool

        spool = read_spool(self.spool or spool_folder())
        for line in spool.bad:
            output.note(f"skipped {line}")
        grid, refused = grid_of_misses(spool, "misses", device=self.missed_on)
        for text in refused:
            output.note(f"cannot be tuned here: {text}")
        return grid


def _called(function: str) -> "Grid":
    from attn_tune.tuner.sources.model import calls_of_function, grid_of

    calls = calls_of_function(function)
    _tell(calls, function)
    return grid_of(calls, function.partition(":")[2], function)


def _lowered(file: Path) -> "Grid":
    from attn_tune.tuner.sources.model import calls_of_file, grid_of

    calls = calls_of_file(file)
    _tell(calls, str(file))
    return grid_of(calls, file.name.partition(".")[0], file.name)


def _tell(calls: "Calls", where: str) -> None:
    for item in calls.unread:
        output.note(
            f"{where}: attention without a signature, {item.count} a run: {item.what}: {item.reason}"
        )
    for remark in calls.remarks:
        output.note(f"{where}: {remark}")
