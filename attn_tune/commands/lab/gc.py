"""Delete rows that no decision or evidence rests on, and make the file smaller.

Never done by itself. Every answer concerned is computed before and after; nothing is deleted if one differs.

Example: attn-tune lab gc --dry-run --superseded
"""

import dataclasses

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.database import open_lab
from attn_tune.schema.words import counted


def command(
    db: options.Database,
    dry_run: bool = options.flag("--dry-run", "Only say what would be deleted, and why."),
    superseded: bool = options.flag(
        "--superseded",
        "Also trials in environments older than the one that decides. No decision looks at them, but "
        "searches learn from them and reports show them.",
    ),
    json: options.Json = False,
) -> None:
    from attn_tune.db import collect_garbage

    with open_lab(db, existing=True) as database:
        summary = collect_garbage(database, dry_run=dry_run, superseded=superseded)
    if json:
        output.emit_json(**dataclasses.asdict(summary), dry_run=dry_run)
        return
    verb = "would be deleted" if dry_run else "deleted"
    for item in summary.items:
        output.say(f"{counted(item.rows, 'row')} of {item.table} {verb}: {item.why}")
    if not summary.items:
        output.say(f"{db}: nothing to collect")
    if not dry_run:
        output.say(f"{db}: {counted(summary.bytes_before, 'byte')} became {summary.bytes_after}")
