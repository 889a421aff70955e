"""``attn-tune override pin``: one config for a user's jobs, whatever the packs say."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.exit_codes import INTEGRITY
from attn_tune.schema import UsageError

if TYPE_CHECKING:
    from attn_tune.runtime.pins import Pin

pin = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Pin one config for a user's jobs, whatever packs say: add, remove, list.\n\n"
    "Where it cannot run, or is in quarantine, the packs answer.\n\n"
    "Example: attn-tune override pin list",
)

File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help="The file of pins. Default: attn-tune/pins.json in the user's configuration directory, which every "
        "lookup of the user finds.",
    ),
]


@pin.command("add")
def add(
    kernel: Annotated[str, typer.Argument(metavar="OP/KERNEL", help="The kernel that is to run.")],
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="KNOB=VALUE",
            help="Its config, every knob without a default (PART.KNOB=VALUE in a part), or as JSON. Repeatable.",
        ),
    ] = None,
    direction: Annotated[
        str, typer.Option("--direction", "-d", metavar="DIRECTION", help="The direction.")
    ] = "fwd",
    point: Annotated[
        str | None,
        typer.Option(
            "--point", metavar="POINT", help="Only this problem: a grid point or a signature."
        ),
    ] = None,
    grid: options.PointGrids = None,
    device: Annotated[
        str | None, typer.Option(metavar="DEVICE", help="Only this device: a variant or a family.")
    ] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="Why; the list shows it.")
    ] = "",
    file: File = None,
    json: options.Json = False,
) -> None:
    """Pin a config, in place of another pin of the same problem and device.

    Example: attn-tune override pin add flash_attention/xla -c chunk_q=64 -c chunk_k=128 --point llama3-8b/4x4k
    """
    from attn_tune.kernels.pinning import make_pin
    from attn_tune.kernels.quarantining import device_condition, parse_knobs
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.runtime.pin_files import change_pins

    if grid and not point:
        raise UsageError("--grid says where --point is found; give --point too")
    spec = get_kernel(kernel)
    made = make_pin(
        spec.op,
        spec.name,
        parse_knobs(config or ()),
        str(direction),
        problem=selection.signature(point, grid).signature.text if point else None,
        device=device_condition(device or ""),
        reason=" ".join(reason.split()),
    )
    path = _path(file)
    after = change_pins(
        path, lambda before: [p for p in before if p.condition != made.condition] + [made]
    )
    if json:
        output.emit_json({"path": path, "id": made.id, "pins": len(after)})
    else:
        print(f"{path}: {made.id} {made} to {made.kernel} {made.config_json}")


@pin.command("remove")
def remove(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="As 'attn-tune override pin list' shows.")
    ],
    file: File = None,
    json: options.Json = False,
) -> None:
    """Take pins out of a file.

    Example: attn-tune override pin remove 3f2a9c01
    """
    from attn_tune.runtime.pin_files import change_pins
    from attn_tune.runtime.whole_files import without

    path = _path(file)
    after = change_pins(path, lambda before: without(before, ids, f"the file of pins {path}"))
    if json:
        output.emit_json({"path": path, "removed": ids, "pins": len(after)})
    else:
        print(f"{path}: {len(ids)} removed, {len(after)} left")


@pin.command("list")
def show(
    file: Annotated[
        Path | None, typer.Option("--file", metavar="PATH", help="Only this file.")
    ] = None,
    json: options.Json = False,
) -> None:
    """List the pins that this user's jobs go by.

    A file of pins that cannot be read is ignored by jobs; here it is named, and the exit status is 5.

    Example: attn-tune override pin list
    """
    from attn_tune.runtime.pin_files import pins_in_force, read_pins

    if file is not None:
        pins, broken = read_pins(file), ()
    else:
        found = pins_in_force(os.environ)
        pins, broken = found.pins, found.broken
    if json:
        output.emit_json({"pins": [_row(p) | {"config": p.config} for p in pins], "broken": broken})
    elif pins:
        import pandas as pd

        output.emit_frame(pd.DataFrame([_row(p) for p in pins]))
    else:
        print("Nothing is pinned.")
    for error in broken:
        output.note(f"error: {error}; the file is ignored")
    if broken:
        raise typer.Exit(INTEGRITY)


def _row(one: "Pin") -> dict[str, Any]:
    return {
        "id": one.id,
        "op": one.op,
        "direction": one.direction,
        "signature": one.signature or None,
        "device": one.device or None,
        "kernel": one.kernel,
        "config": one.config_json,
        "reason": one.reason or None,
        "file": one.origin,
    }


def _path(file: Path | None) -> Path:
    from attn_tune.runtime.pin_files import user_pins

    return selection.own_file(file, user_pins(os.environ), "file")
