"""Show the problems that jobs missed, or delete the record.

Jobs record questions that no pack answers when ATTN_TUNE_ON_MISS=record is set.
'attn-tune grids --from-misses --out FILE' writes the problems as a grid.

Example: attn-tune lab misses
"""

import shlex
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.sources import SpoolPath
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.tuner.discover.miss_grid import Spool

_COLUMNS = ["signature", "direction", "device", "asked", "processes", "last", "nearest"]


def command(
    spool: SpoolPath = None,
    clear: bool = options.flag("--clear", "Delete the spool, after asking."),
    yes: bool = options.flag("--yes -y", "With --clear: do not ask."),
    json: options.Json = False,
) -> None:
    from attn_tune.runtime.miss_spool import spool_folder
    from attn_tune.tuner.discover.miss_grid import read_spool

    path = spool or spool_folder()
    found = read_spool(path)
    for line in found.bad:
        output.note(f"skipped {line}")
    where = ", ".join(map(str, found.files)) or str(path)
    if clear:
        _clear(found, where, yes=yes, json=json)
    elif found.rows or json:
        _show(found, f" --spool {shlex.quote(str(spool))}" if spool else "", json=json)
    else:
        output.say(f"No miss is recorded in {where}.")


def _show(found: "Spool", place: str, *, json: bool) -> None:
    import pandas as pd

    totals = Counter[str]()
    for row in found.rows:
        totals[row.signature] += row.count
    # The most asked problem first, with all its directions and devices.
    ordered = sorted(found.rows, key=lambda r: (-totals[r.signature], r.signature, -r.count))
    rows = [
        {
            "signature": row.signature,
            "direction": row.direction,
            "device": row.device,
            "asked": row.count,
            "processes": row.processes,
            "last": datetime.fromtimestamp(row.last, UTC).strftime("%Y-%m-%d %H:%M"),
            "nearest": row.nearest,
        }
        for row in ordered
    ]
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    output.emit_formatted(frame, options.table_or_json(json), title="Missed lookups", key="misses")
    if not json:
        print("\nNext:\n  attn-tune sweep --from-misses" + place)


def _clear(found: "Spool", where: str, *, yes: bool, json: bool) -> None:
    from attn_tune.schema import StorageError, UsageError

    if not found.files and not json:
        output.say(f"Nothing is there: {where}")
        return
    if json and not yes:
        raise UsageError("--json does not ask: give --yes too")
    if found.files and not yes:
        question = f"Delete {counted(len(found.rows), 'recorded miss', 'recorded misses')} ({where})?"
        typer.confirm(question, abort=True, err=True)
    for path in found.files:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"spool {path}: cannot be deleted: {error.strerror}") from None
    if json:
        output.emit_json(deleted=[str(path) for path in found.files], misses=len(found.rows))
    else:
        print(f"Deleted {where}")
