"""Verify a pack, then take it in, all or nothing.

Without options every job of this user finds it from then on.

Example: attn-tune pack import h200-llama.atpack
"""

import dataclasses
import enum
import os
from pathlib import Path

from attn_tune.commands.pack.outcomes import POLICIES, show_outcomes
from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.database import open_lab
from attn_tune.schema import UsageError
from attn_tune.schema.words import counted


class Place(enum.StrEnum):
    """Choices of ``--to``: ``db`` is the lab database, ``user`` the folder that the user's jobs read."""

    DB = "db"
    USER = "user"


def command(
    path: options.PackPath,
    to: Place | None = options.option(
        None,
        "--to",
        "",
        "user: the folder in which every job of this user finds packs. db: the lab database, so that "
        "'report' and 'best' show its rows. Default: db with --db, else user.",
    ),
    db: Path | None = options.option(
        None, "--db", "PATH", "The lab database. Default with --to db: as for the other commands."
    ),
    on_conflict: str | None = options.option(
        None, "--on-conflict", "POLICY", f"With --to db. {POLICIES} Default: error."
    ),
    replace: bool = options.flag(
        "--replace",
        "With --to user. Put the pack in the place of the imported one of the same file name.",
    ),
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    if (to or (Place.DB if db else Place.USER)) is Place.USER:
        if db or on_conflict or dry_run:
            raise UsageError("--db, --on-conflict and --dry-run are for the lab database; give --to db as well")
        _copy(path, replace=replace, json=json)
        return
    if replace:
        raise UsageError("--replace is for --to user; for the lab database: --on-conflict replace")
    _store(
        path,
        Path(db or os.environ.get(options.DB_VARIABLE) or options.default_database()),
        policy=on_conflict or "error",
        dry_run=dry_run,
        json=json,
    )


def _copy(path: Path, *, replace: bool, json: bool) -> None:
    from attn_tune.commands.pack.install import install_pack, never_entries, place_of, shared_problems

    before = never_entries(place_of(path)) if replace else set[str]()
    place = install_pack(path, replace=replace)
    lost = sorted(before - never_entries(place))
    if json:
        output.emit_json(path=str(place))
    else:
        print(f"{path}: installed as {place}")
        print("  'attn-tune explain POINT' shows the answer of a call")
    if lost:
        count = counted(len(lost), "never entry", "never entries")
        output.note(
            f"lost with the pack that was replaced: {count}, no longer in force unless another pack or file holds the "
            f"same: {'; '.join(lost)}"
        )
    if shared := shared_problems(place):
        output.note(shared)


def _store(path: Path, db: Path, *, policy: str, dry_run: bool, json: bool) -> None:
    import tempfile

    from attn_tune.db import import_pack as read

    # A dry run makes no database, and neither does a pack that cannot be imported.
    if is_new := not db.exists():
        with (
            tempfile.TemporaryDirectory() as nowhere,
            open_lab(Path(nowhere) / "lab.db", create=True) as database,
        ):
            taken = read(database, path, policy=policy, dry_run=dry_run)
    if not (is_new and dry_run):
        with open_lab(db, create=True) as database:
            taken = read(database, path, policy=policy, dry_run=dry_run)
    if json:
        output.emit_json(**dataclasses.asdict(taken))
        return
    show_outcomes(taken.outcomes)
    if taken.quarantined:
        output.say(
            f"  its quarantine list of {taken.quarantined} holds for jobs that use the pack: import it with --to user"
        )
    output.say(
        f"{taken.name} {taken.version}: {counted(taken.added, 'problem')} added, {taken.unchanged} unchanged, "
        f"{taken.kept} kept, {taken.replaced} replaced" + (" (dry run)" if dry_run else "")
    )
