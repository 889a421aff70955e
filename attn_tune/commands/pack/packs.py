"""``attn-tune import`` and ``merge-packs``, and the options that they share with ``export``."""

import dataclasses
import enum
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.sweeps.database_sweep import open_lab
from attn_tune.schema import UsageError
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.db.conflicts import Outcome


class Target(enum.StrEnum):
    """Choices of ``import --to``."""

    DB = "db"
    USER = "user"


POLICIES = (
    "Where answers differ: error, keep, replace, fastest-verified or prefer=NAME (of a pack)."
)
PolicyOption = Annotated[
    str, typer.Option("--on-conflict", "--policy", metavar="POLICY", help=POLICIES)
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Write nothing; show what would become of each row.")
]
Name = Annotated[str | None, typer.Option(help="The pack's name. Default: the name of the path.")]
Version = Annotated[str, typer.Option(help="The pack's version.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the pack that is there.")]


def import_pack(
    path: Annotated[Path, typer.Argument(help="A pack: a folder or an .atpack file.")],
    to: Annotated[
        Target | None,
        typer.Option(
            help="user: the folder where every job of this user finds packs. db: the lab database, where 'report' and "
            "'best' show its rows. Default: db with --db, else user.",
        ),
    ] = None,
    db: Annotated[
        Path | None,
        typer.Option(
            "--db",
            metavar="PATH",
            help="The lab database. Default with --to db: as for the other commands.",
        ),
    ] = None,
    on_conflict: Annotated[
        str | None,
        typer.Option(
            "--on-conflict",
            "--policy",
            metavar="POLICY",
            help=f"With --to db. {POLICIES} Default: error.",
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="With --to user. Put the pack in the place of the imported one of the same file name.",
        ),
    ] = False,
    dry_run: DryRun = False,
    json: options.Json = False,
) -> None:
    """Verify a pack, then take it in, all or nothing.

    Without options every job of this user finds it from then on.

    Example: attn-tune import h200-llama.atpack
    """
    if (to or (Target.DB if db else Target.USER)) is Target.USER:
        if db or on_conflict or dry_run:
            raise UsageError("--db, --on-conflict and --dry-run are for the lab database: --to db")
        _install(path, replace=replace, json=json)
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


def _install(path: Path, *, replace: bool, json: bool) -> None:
    from attn_tune.commands.pack.install import install_pack

    place = install_pack(path, replace=replace)
    if json:
        output.emit_json({"path": str(place)})
    else:
        print(f"{path}: installed as {place}")
        print("  'attn-tune explain POINT' says what a call gets from it")


def _store(path: Path, db: Path, *, policy: str, dry_run: bool, json: bool) -> None:
    import tempfile

    from attn_tune.db.imports import import_pack as read

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
        output.emit_json(dataclasses.asdict(taken))
        return
    _show_outcomes(taken.outcomes)
    if taken.quarantined:
        print(
            f"  its quarantine list of {taken.quarantined} holds for jobs that use the pack: import it with --to user"
        )
    print(
        f"{taken.name} {taken.version}: {counted(taken.added, 'problem')} added, {taken.unchanged} unchanged, "
        f"{taken.kept} kept, {taken.replaced} replaced" + (" (dry run)" if dry_run else "")
    )


def merge_packs(
    path: Annotated[Path, typer.Argument(help="The pack to write.")],
    packs: Annotated[
        list[Path],
        typer.Argument(metavar="PACK PACK...", help="The packs; the first is what is there."),
    ],
    name: Name = None,
    version: Version = "1",
    on_conflict: PolicyOption = "error",
    overwrite: Overwrite = False,
    dry_run: DryRun = False,
    json: options.Json = False,
) -> None:
    """Merge packs into a new one, under the policies of import.

    Example: attn-tune merge-packs all.atpack a.atpack b.atpack --on-conflict fastest-verified
    """
    from attn_tune.db.merge_packs import merge_packs as merge
    from attn_tune.runtime.packs import read_pack

    merged = merge(
        [read_pack(one) for one in packs],
        path,
        name=name or path.stem,
        version=version,
        policy=on_conflict,
        overwrite=overwrite,
        dry_run=dry_run,
    )
    if json:
        digest = merged.pack.digest if merged.pack else None
        outcomes = [dataclasses.asdict(one) for one in merged.outcomes]
        output.emit_json(
            {
                "path": path,
                "digest": digest,
                "rows": merged.rows,
                "quarantined": merged.quarantined,
                "outcomes": outcomes,
            }
        )
        return
    _show_outcomes(merged.outcomes)
    listed = f", {merged.quarantined} in quarantine" if merged.quarantined else ""
    print(
        f"{path}: {counted(merged.rows, 'row')} of {len(packs)} packs{listed}"
        + (" (dry run)" if dry_run else "")
    )


def _show_outcomes(outcomes: "Sequence[Outcome]") -> None:
    import pandas as pd

    if outcomes:
        names = selection.point_names()
        rows = [
            {"point": names.get(one.signature, one.signature), **dataclasses.asdict(one)}
            for one in outcomes
        ]
        output.emit_frame(pd.DataFrame(rows).drop(columns=["signature"]))
