"""``attn-tune override quarantine``: what must not run, whoever says so."""

import os
from collections.abc import Iterable
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.exit_codes import INTEGRITY

if TYPE_CHECKING:
    from attn_tune.runtime.quarantine import Entry

quarantine = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Say what must not run, whoever says it should: add, remove, list.\n\n"
    "Lookups turn it down on every rung, and nothing of it is exported.\n\n"
    "Example: attn-tune override quarantine list",
)

File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help="The list. Default: attn-tune/quarantine.json in the user's configuration directory, which every lookup "
        "of the user finds.",
    ),
]


@quarantine.command("add")
def add(
    kernel: Annotated[
        str, typer.Argument(metavar="KERNEL", help="OP/NAME, NAME, or an op for all its kernels.")
    ],
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; lookups say it.")],
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="KNOB=VALUE",
            help="Only configs with this knob (PART.KNOB=VALUE in a part), or a config as JSON. Repeatable.",
        ),
    ] = None,
    direction: Annotated[
        str | None,
        typer.Option("--direction", "-d", metavar="DIRECTION", help="Only this direction."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Only this device: a variant or a family.")
    ] = None,
    signature: Annotated[
        list[str] | None,
        typer.Option(
            "--signature",
            "-s",
            metavar="FIELD=VALUE",
            help="Only problems with this field, or one whole signature. Repeatable.",
        ),
    ] = None,
    file: File = None,
    json: options.Json = False,
) -> None:
    """Put configs of a kernel in quarantine. What is left out matches everything.

    Example: attn-tune override quarantine add triton -d bwd -c dq.num_warps=8 --device sm_90 --reason "wrong dq"
    """
    from attn_tune.kernels.quarantining import make_entry, parse_knobs
    from attn_tune.runtime.quarantine_files import change_list

    entry = make_entry(
        kernel=kernel,
        reason=reason,
        direction=str(direction or ""),
        device=device or "",
        config=parse_knobs(config or ()),
        signature=signature or (),
    )

    def added(before: "list[Entry]") -> "list[Entry]":
        # The same thing once, with the newest reason.
        return [one for one in before if one.condition != entry.condition] + [entry]

    path = _path(file)
    after = change_list(path, added)
    if json:
        output.emit_json({"path": path, "id": entry.id, "entries": len(after)})
    else:
        print(f"{path}: {entry.id} {entry.condition}: {entry.reason}")


@quarantine.command("remove")
def remove(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="As 'attn-tune override quarantine list' shows."),
    ],
    file: File = None,
    json: options.Json = False,
) -> None:
    """Take entries out of a list.

    Example: attn-tune override quarantine remove 3f2a9c01
    """
    from attn_tune.runtime.quarantine_files import change_list
    from attn_tune.runtime.whole_files import without

    path = _path(file)
    after = change_list(path, lambda before: without(before, ids, f"the quarantine list {path}"))
    if json:
        output.emit_json({"path": path, "removed": ids, "entries": len(after)})
    else:
        print(f"{path}: {len(ids)} removed, {len(after)} left")


@quarantine.command("list")
def show(
    file: Annotated[
        Path | None, typer.Option("--file", metavar="PATH", help="Only this list.")
    ] = None,
    json: options.Json = False,
) -> None:
    """List what is in quarantine for this user's jobs, in files and in packs.

    Example: attn-tune override quarantine list
    """
    from attn_tune.runtime.overlay import current_view
    from attn_tune.runtime.quarantine_files import read_list

    if file is not None:
        entries, broken = read_list(file), ""
    else:
        found = current_view().quarantine
        entries, broken = list(found.entries), found.broken
    rows = [_row(entry) for entry in entries]
    if json:
        output.emit_json({"entries": rows, "broken": broken})
    elif rows:
        _table(rows)
    else:
        print("Nothing is in quarantine.")
    if broken:
        output.note(f"error: {broken}; until it can, nothing stored is used")
        raise typer.Exit(INTEGRITY)


def _row(entry: "Entry") -> dict[str, Any]:
    return {"id": entry.id, **loads(entry.line), "list": entry.origin}


def _table(rows: Iterable[dict[str, Any]]) -> None:
    import pandas as pd

    columns = ["id", "op", "kernel", "direction", "device", "config", "signature", "reason", "list"]
    said = []
    for row in rows:
        fields = (f"{name}={value}" for name, value in row.get("signature", {}).items())
        config = dumps(row["config"]) if "config" in row else None
        said.append({**row, "config": config, "signature": " ".join(fields) or None})
    output.emit_frame(pd.DataFrame(said, columns=columns))


def _path(file: Path | None) -> Path:
    from attn_tune.runtime.quarantine_files import user_list

    return selection.own_file(file, user_list(os.environ), "list")
