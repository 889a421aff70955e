"""Options that several commands share, declared once, and groups of them."""

import copy
import dataclasses
import enum
import functools
import inspect
import os
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from attn_tune.commands.shared.packs import pack_path
from attn_tune.schema import UsageError, directories

DB_VARIABLE = "ATTN_TUNE_DB"


class Strategy(enum.StrEnum):
    """Choices of ``--strategy``.

    ``exhaustive``: every config. ``portfolio``: configs that won elsewhere come first. ``random``: a random
    order. ``surrogate``: the order of a model that is fitted to the times so far.
    """

    EXHAUSTIVE = "exhaustive"
    PORTFOLIO = "portfolio"
    RANDOM = "random"
    SURROGATE = "surrogate"


class Effort(enum.StrEnum):
    """Choices of ``--effort``: ``quick`` and ``normal`` try a share of each space, ``full`` tries all of it."""

    QUICK = "quick"
    NORMAL = "normal"
    FULL = "full"


class Format(enum.StrEnum):
    """Choices of ``--format``: ``table`` is for people, ``csv``, ``markdown`` and ``json`` are for programs."""

    TABLE = "table"
    CSV = "csv"
    MARKDOWN = "markdown"
    JSON = "json"


def data_directory() -> Path:
    """``attn-tune`` in the user's data directory (XDG), the one that lookups read.

    Raises:
      UsageError: neither ``XDG_DATA_HOME`` nor ``HOME`` is set.
    """
    if path := directories.data_directory(os.environ):
        return Path(path)
    raise UsageError("there is no data directory: neither HOME nor XDG_DATA_HOME is set; set one of them")


def default_database() -> Path:
    """The lab database without ``--db``."""
    return data_directory() / "lab.db"


def database_of_home() -> Path | None:
    """The lab database without ``--db``; None without a data directory."""
    return default_database() if directories.data_directory(os.environ) else None


_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|)")


def seconds(text: str) -> float:
    """Read a duration: ``90``, ``90s``, ``10m``, ``1.5h``.

    Raises:
      UsageError: the text has another form.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"duration {text!r} must be a number with s, m or h, as in 10m")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def table_or_json(json: bool) -> Format:
    """The format of a command that has no other."""
    return Format.JSON if json else Format.TABLE


def argument(metavar: str, help: str, default: Any = ..., **more: Any) -> Any:
    """An argument; without ``default`` it must be given. ``more`` goes to typer."""
    return typer.Argument(default, metavar=metavar, help=help, **more)


def option(default: Any, names: str, metavar: str, help: str, **more: Any) -> Any:
    """An option with a value; ``default`` is ``...`` in ``Annotated``.

    ``names`` are separated by spaces; ``more`` goes to typer.
    """
    return typer.Option(default, *names.split(), metavar=metavar or None, help=help, **more)


def flag(names: str, help: str, default: Any = False, **more: Any) -> Any:
    """An option without a value, or a pair of them: ``"--wait/--no-wait"``; the rest as for ``option``."""
    return typer.Option(default, *names.split(), metavar="", help=help, **more)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Give ``command`` the options of its parameters that are groups of options.

    A group is a dataclass whose fields are annotated options; its ``panel`` is their panel in the help. The command is
    called with the group made of them.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type, list[str]]] = {}
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if not dataclasses.is_dataclass(kind):
            parameters.append(parameter.replace(annotation=kind, kind=parameter.KEYWORD_ONLY))
            continue
        made = list(_in_panel(kind))
        groups[name] = (typing.cast(type, kind), [one.name for one in made])
        parameters += made

    @functools.wraps(command)
    def expanded(**given: Any) -> None:
        for name, (kind, fields) in groups.items():
            given[name] = kind(**{field: given.pop(field) for field in fields})
        command(**given)

    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {one.name: one.annotation for one in parameters}
    return expanded


def _in_panel(kind: Any) -> Iterator[inspect.Parameter]:
    """The fields of a group of options as parameters, each in the panel of the group."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint: Any = hints[field.name]
        default: Any = copy.copy(field.default)
        if typing.get_origin(hint) is Annotated:
            base, made = typing.get_args(hint)
            made = copy.copy(made)
            hint = Annotated[base, made]
        else:
            made = default
        made.rich_help_panel = kind.panel
        yield inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def not_blank(values: list[str] | None) -> list[str] | None:
    """The values of an option that narrows. A blank one, of a shell variable that is not set, would narrow nothing."""
    for value in values or ():
        if not value.strip(" ,"):
            raise typer.BadParameter(f"{value!r} names nothing; name something, or leave the option out")
    return values


Json = Annotated[bool, flag("--json", "Print JSON to stdout, and nothing else there.", ...)]


def _database(default: Callable[[], Path | None]) -> Any:
    return option(
        ...,
        "--db",
        "PATH",
        "The lab database. Default: attn-tune/lab.db in the user's data directory.",
        envvar=DB_VARIABLE,
        default_factory=default,
        show_default=False,
    )


Database = Annotated[Path, _database(default_database)]
# For commands that answer without one too.
DatabaseIfAny = Annotated[Path | None, _database(database_of_home)]
Point = Annotated[str, argument("POINT", "A grid point such as llama3-8b/4x4k, or a signature.")]
PointGrids = Annotated[
    list[str] | None,
    option(
        ...,
        "--grid -g",
        "GRID",
        "A grid whose points may be named too: a TOML file of your own. Repeatable.",
    ),
]
Grids = Annotated[
    list[str] | None,
    option(
        ...,
        "--grid -g",
        "GRID",
        "A preset (see 'attn-tune grids'), a TOML file or the text of one signature. Repeatable.",
    ),
]
Points = Annotated[
    list[str] | None,
    option(
        ...,
        "--point",
        "FILTER",
        "Only points whose name contains this, or matches it as a shell pattern. Repeatable.",
        callback=not_blank,
    ),
]
Lengths = Annotated[
    list[str] | None,
    option(
        ...,
        "--lengths",
        "LENGTHS",
        "Lengths of the grids: 4k, 4x4k, a group such as prefill, or all. Commas; repeatable.",
        callback=not_blank,
    ),
]
Ops = Annotated[list[str] | None, option(..., "--op", "OP", "Only this op. Repeatable.", callback=not_blank)]
Kernels = Annotated[
    list[str] | None,
    option(..., "--kernel -k", "KERNEL", "Only this kernel: NAME or OP/NAME. Repeatable.", callback=not_blank),
]
Directions = Annotated[
    list[str] | None,
    option(
        ...,
        "--direction -d",
        "DIRECTION",
        "Only this direction, such as fwd or bwd. Repeatable. Default: all of the op.",
        callback=not_blank,
    ),
]
Workload = Annotated[
    str | None,
    option(..., "--workload", "WORKLOAD", "The problem with this workload of its op, such as uni."),
]
Workloads = Annotated[
    list[str] | None,
    option(
        ...,
        "--workload",
        "WORKLOAD",
        "Problems with this workload (a profile of the data, such as uni), instead of the grid's own. Commas; "
        "repeatable.",
        callback=not_blank,
    ),
]
DeviceName = Annotated[
    str | None,
    option(
        ...,
        "--device",
        "DEVICE",
        "Another device than this machine's: a variant (nvidia-h200) or an architecture (sm_90).",
    ),
]
Target = Annotated[
    str | None,
    option(
        ...,
        "--target",
        "TARGET",
        "Only compile, for a device that need not be here: tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e, tpu-v7x, sm_80, "
        "sm_89, sm_90, sm_100, sm_120 or the name of a GPU. Times are predicted for TPUs.",
    ),
]
All = Annotated[
    bool,
    flag("--all", "Leave nothing out: kernels that cannot run here, and rare failures.", ...),
]
Overwrite = Annotated[bool, flag("--overwrite", "Replace the file that is there.", ...)]
DryRun = Annotated[bool, flag("--dry-run", "Write nothing; show what would become of each row.", ...)]
PackPath = Annotated[
    Path, argument("PACK", "A pack: a folder, an .atpack file, or a name as doctor prints it.", parser=pack_path)
]
PackName = Annotated[str | None, option(..., "--name", "NAME", "The pack's name. Default: the name of the path.")]
PackVersion = Annotated[str, option(..., "--version", "VERSION", "The pack's version.")]
