"""Grids that jobs and programs give: the options ``--from-misses``, ``--from-fn`` and ``--from-hlo``."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from attn_tune.commands.shared import options, output
from attn_tune.schema.errors import UsageError

if TYPE_CHECKING:
    from attn_tune.tuner.discover.calls import Calls
    from attn_tune.tuner.plan.grid import Grid

SpoolPath = Annotated[
    Path | None,
    typer.Option(
        "--spool",
        metavar="PATH",
        help="The spool of misses: a folder or one file. Default: the path after record: in ATTN_TUNE_ON_MISS, or "
        "attn-tune/misses in the user's state directory.",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Sources:
    """The options that name jobs and programs whose problems are wanted. The help of an option describes its field."""

    panel: ClassVar[str] = "Problems of programs and jobs"
    from_fn: list[str] | None = options.option(
        None,
        "--from-fn",
        "MODULE:FUNCTION",
        "The calls of the result of this function: (fn, args), or something traced or lowered. "
        "Nothing is run. Repeatable.",
    )
    from_hlo: list[Path] | None = options.option(
        None,
        "--from-hlo",
        "FILE",
        "The calls of a program in a file: StableHLO (text or bytecode) or HLO text. Repeatable.",
    )
    from_misses: bool = options.flag(
        "--from-misses", "The problems that jobs missed; see 'attn-tune lab misses' and --spool."
    )
    spool: SpoolPath = None
    missed_on: str | None = options.option(
        None,
        "--missed-on",
        "DEVICE",
        "Only misses of this device; needed when several devices missed.",
    )

    @property
    def is_given(self) -> bool:
        """Whether an option names a source."""
        return self._has_misses or bool(self.from_fn or self.from_hlo)

    @property
    def _has_misses(self) -> bool:
        return bool(self.from_misses or self.spool or self.missed_on)

    def grids(self) -> "Iterator[Grid]":
        """A grid for each source, in the order of the options. Calls that cannot be read are named on stderr.

        Raises:
          UsageError, NoDataError: a source cannot be read or has nothing.
        """
        if self._has_misses:
            yield self._missed()
        for function in self.from_fn or ():
            yield _called(function)
        for file in self.from_hlo or ():
            yield _lowered(file)

    def _missed(self) -> "Grid":
        from attn_tune.runtime.miss_spool import spool_folder
        from attn_tune.tuner.discover.miss_grid import grid_of_misses, read_spool

        place = self.spool or spool_folder()
        spool = read_spool(place)
        for line in spool.bad:
            output.note(f"skipped {line}")
        grid, refused = grid_of_misses(spool, "misses", device=self.missed_on, where=str(place))
        for text in refused:
            output.note(f"cannot be tuned here: {text}")
        return grid


def _called(function: str) -> "Grid":
    from attn_tune.tuner.discover.program_grid import calls_of_function, grid_of

    calls = calls_of_function(function)
    _note(calls, function)
    return grid_of(calls, function.partition(":")[2], function)


def _lowered(file: Path) -> "Grid":
    from attn_tune.tuner.discover.program_grid import calls_of_file, grid_of

    try:
        calls = calls_of_file(file)
    except UsageError as error:
        raise error if str(file) in str(error) else UsageError(f"{file}: {error}") from None
    _note(calls, str(file))
    return grid_of(calls, file.name.partition(".")[0], file.name)


def _note(calls: "Calls", where: str) -> None:
    for item in calls.unread:
        output.note(f"{where}: a call without a signature, {item.count} a run: {item.what}: {item.reason}")
    for remark in calls.remarks:
        output.note(f"{where}: {remark}")
