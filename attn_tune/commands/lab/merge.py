"""Take in the trials of other lab databases, and make the decisions again.

Each database comes in as a whole or not at all; doing it again adds later trials. The others are only read.

Example: attn-tune lab merge host-a.db host-b.db --db lab.db
"""

from pathlib import Path

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.database import open_lab
from attn_tune.schema.words import counted


def command(
    db: options.Database,
    paths: list[Path] = options.argument("DB", "Lab databases of other hosts."),
    json: options.Json = False,
) -> None:
    from attn_tune.db import check_source, merge_database

    if not db.exists():  # none is made for what cannot be merged
        for path in paths:
            check_source(path)
    done = []
    with open_lab(db, create=True) as database:
        for path in paths:
            taken = merge_database(database, path)
            done.append({"path": str(path), "runs": taken.runs, "trials": taken.trials})
            if not json:
                output.say(f"{path}: {counted(taken.runs, 'new run')}, {counted(taken.trials, 'new trial')}")
        decided = database.rebuild_decisions()
    if json:
        output.emit_json(merged=done, decided=decided)
    else:
        output.say(f"{db}: {counted(decided, 'problem')} decided")
