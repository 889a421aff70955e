"""``attn-tune export`` and ``attn-tune import``."""

import dataclasses
import enum
from pathlib import Path
from typing import Annotated

import typer

from attn_tune.cli import choose, options, sink
from attn_tune.cli.lab import open_lab


class Target(enum.StrEnum):
    """Choices of ``import --to``."""

    DB = "db"
    USER = "user"


class Policy(enum.StrEnum):
    """Choices of ``import --on-conflict``."""

    ERROR = "error"
    KEEP = "keep"
    REPLACE = "replace"


def export_pack(
    path: Annotated[
        Path, typer.Argument(help="The pack to write: a folder, or one file ending in .atpack.")
    ],
    db: options.Database,
    name: Annotated[
        str | None, typer.Option(help="The pack's name. Default: the name of the path.")
    ] = None,
    version: Annotated[str, typer.Option(help="The pack's version.")] = "1",
    op: Annotated[str | None, typer.Option(metavar="OP", help="Only this op.")] = None,
    kernel: options.Kernels = None,
    direction: Annotated[
        options.Direction | None,
        typer.Option("--direction", "-d", metavar="fwd|bwd", help="Only this direction."),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="DEVICE", help="Only this device: a digest, a variant or a family."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the pack that is there.")
    ] = False,
    allow_predicted: Annotated[
        bool,
        typer.Option(
            "--allow-predicted",
            help="Also what was only predicted, where nothing was measured. Such rows say so.",
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Write the decisions as a config pack, checksummed.

    Example: attn-tune export h200-llama.atpack --device nvidia-h200
    """
    from attn_tune.db.packs import export_pack as write
    from attn_tune.kernels.registry import get_op

    with open_lab(db) as database:
        written = write(
            database,
            path,
            name=name or path.stem,
            version=version,
            op=get_op(op).name if op else None,
            kernels=[spec.id for spec in choose.kernels(kernel)] if kernel else None,
            direction=direction,
            device=device,
            overwrite=overwrite,
            allow_predicted=allow_predicted,
        )
    if json:
        sink.emit_json(dataclasses.asdict(written))
        return
    print(
        f"{path}: {written.problems} problems, {written.rows} rows, {written.size_bytes} bytes, "
        f"for {', '.join(written.devices)}"
    )
    print(f"  decisions {written.decision_digest}")
    print(f"  use it with ATTN_TUNE_PACKS={path}, or with attn_tune.use_pack({str(path)!r})")


def import_pack(
    path: Annotated[Path, typer.Argument(help="A pack: a folder or an .atpack file.")],
    db: options.Database,
    to: Annotated[
        Target,
        typer.Option(help="db: the lab database. user: the folder where every job finds packs."),
    ] = Target.DB,
    on_conflict: Annotated[
        Policy, typer.Option(help="When the database already has another answer.")
    ] = Policy.ERROR,
    json: options.Json = False,
) -> None:
    """Verify a pack, then take it in, all or nothing.

    Example: attn-tune import h200-llama.atpack --to user
    """
    if to is Target.USER:
        from attn_tune.cli.install import install_pack

        place = install_pack(path)
        if json:
            sink.emit_json({"path": str(place)})
        else:
            print(f"{path}: installed as {place}")
        return
    from attn_tune.db.imports import import_pack as read

    with open_lab(db, create=True) as database:
        taken = read(database, path, policy=on_conflict.value)
    if json:
        sink.emit_json(dataclasses.asdict(taken))
    else:
        print(
            f"{taken.name} {taken.version}: {taken.added} problems added, {taken.unchanged} unchanged, "
            f"{taken.kept} kept, {taken.replaced} replaced"
        )
