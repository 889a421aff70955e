"""``attn-tune misses``: what jobs asked for and no pack answered."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.sources import MissedOn, SpoolPath

if TYPE_CHECKING:
    from attn_tune.tuner.sources.misses import Spool

misses = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    invoke_without_command=True,
)


@misses.callback()
def show_misses(
    context: typer.Context,
    spool: SpoolPath = None,
    json: options.Json = False,
) -> None:
    """Show what jobs missed, import it as a grid, or clear it.

    Jobs record what no pack answers when ATTN_TUNE_ON_MISS=record is set.

    Example: attn-tune misses
    """
    if context.invoked_subcommand is not None:
        context.obj = spool
        return
    import pandas as pd

    found = _read(spool)
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
        for row in sorted(found.rows, key=lambda r: r.signature)
    ]
    # The most asked problem first, with all its directions and devices.
    totals: dict[str, int] = {}
    for row in found.rows:
        totals[row.signature] = totals.get(row.signature, 0) + row.count
    rows.sort(key=lambda r: (-totals[str(r["signature"])], r["signature"], -int(r["asked"])))
    if not rows and not json:
        where = ", ".join(map(str, found.files)) or str(_path(spool))
        print(f"No miss is recorded in {where}.")
        return
    columns = ["signature", "direction", "device", "asked", "processes", "last", "nearest"]
    frame = pd.DataFrame(rows, columns=columns)
    output.emit_formatted(frame, options.table_or_json(json), title="Missed lookups", key="misses")
    if not json:
        print("Next:\n  attn-tune sweep --from-misses")


@misses.command("import")
def import_misses(
    context: typer.Context,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="The grid file to write (.toml).")
    ],
    spool: SpoolPath = None,
    missed_on: MissedOn = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
) -> None:
    """Write the missed problems as a grid file.

    Example: attn-tune misses import --out missed.toml
    """
    from attn_tune.tuner.grid_file import write_grid
    from attn_tune.tuner.sources.misses import grid_of_misses

    grid, refused = grid_of_misses(_read(spool or context.obj), out.stem, device=missed_on)
    for text in refused:
        output.note(f"cannot be tuned here: {text}")
    write_grid(grid, out, force=force)
    print(f"{len(grid.points)} points in {out}\nNext:\n  attn-tune sweep --grid {out}")


@misses.command("clear")
def clear_misses(
    context: typer.Context,
    spool: SpoolPath = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete the spool, after asking.

    Example: attn-tune misses clear
    """
    from attn_tune.schema import StorageError

    found = _read(spool or context.obj)
    if not found.files:
        print(f"Nothing is there: {_path(spool or context.obj)}")
        return
    names = ", ".join(map(str, found.files))
    if not yes:
        typer.confirm(f"Delete {len(found.rows)} recorded misses ({names})?", abort=True)
    for path in found.files:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"spool {path}: cannot be deleted: {error.strerror}") from None
    print(f"Deleted {names}")


def _path(spool: Path | None) -> Path:
    from attn_tune.runtime.spool import spool_folder

    return spool or spool_folder()


def _read(spool: Path | None) -> "Spool":
    """The spool; its bad lines go to stderr."""
    from attn_tune.tuner.sources.misses import read_spool

    found = read_spool(_path(spool))
    for line in found.bad:
        output.note(f"skipped {line}")
    return found
