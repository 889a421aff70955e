"""``attn-tune merge`` and ``attn-tune gc``: the lab database of several hosts, and of several years."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from attn_tune.commands.shared import options, output
from attn_tune.commands.sweeps.database_sweep import open_lab
from attn_tune.schema.words import counted


def merge(
    paths: Annotated[list[Path], typer.Argument(help="Lab databases of other hosts.")],
    db: options.Database,
    json: options.Json = False,
) -> None:
    """Take the trials of other lab databases in, and decide anew.

    Each database comes in as a whole or not at all; doing it again adds what came since. The others are only read.

    Example: attn-tune merge host-a.db host-b.db --db lab.db
    """
    from attn_tune.db import merge_database
    from attn_tune.db.merge import check_source
    from attn_tune.tuner.ahead import usable_cores

    if not db.exists():  # none is made for what cannot be merged
        for path in paths:
            check_source(path)
    done = []
    with open_lab(db, create=True) as database:
        for path in paths:
            taken = merge_database(database, path)
            done.append({"path": str(path), "runs": taken.runs, "trials": taken.trials})
            if not json:
                print(
                    f"{path}: {counted(taken.runs, 'new run')}, {counted(taken.trials, 'new trial')}"
                )
        decided = database.rebuild_decisions(processes=usable_cores())
    if json:
        output.emit_json({"merged": done, "decided": decided})
    else:
        print(f"{db}: {counted(decided, 'problem')} decided")


def gc(
    db: options.Database,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go, and why.")
    ] = False,
    superseded: Annotated[
        bool,
        typer.Option(
            "--superseded",
            help="Also trials in environments older than the one that decides. No decision looks at them, but "
            "searches learn from them and reports show them.",
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Delete what no decision or evidence rests on, and make the file smaller.

    Never done by itself. Every answer concerned is worked out before and after; nothing goes if one differs.

    Example: attn-tune gc --dry-run --superseded
    """
    from attn_tune.db import collect_garbage

    with open_lab(db, existing=True) as database:
        summary = collect_garbage(database, dry_run=dry_run, superseded=superseded)
    if json:
        output.emit_json(dataclasses.asdict(summary) | {"dry_run": dry_run})
        return
    verb = "would go" if dry_run else "gone"
    for item in summary.items:
        print(f"{counted(item.rows, 'row')} of {item.table} {verb}: {item.why}")
    if not summary.items:
        print(f"{db}: nothing to collect")
    if not dry_run:
        print(f"{db}: {summary.bytes_before} bytes became {summary.bytes_after}")
