"""The application ``attn-tune``: its groups and commands.

A command is a module of ``attn_tune.commands``. Its docstring is the help, its function ``command`` is run.
"""

import inspect
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import typer

from attn_tune.commands import (
    best,
    devices,
    doctor,
    explain,
    export,
    grids,
    kernels,
    plan,
    report,
    status,
    sweep,
    validate,
)
from attn_tune.commands.lab import (
    compare,
    convert as convert_lab,
    gc,
    merge as merge_labs,
    metadata,
    misses,
    query,
)
from attn_tune.commands.override import add, check, freeze, list as list_entries, remove
from attn_tune.commands.pack import (
    badge,
    convert as convert_pack,
    coverage,
    diff,
    import_pack,
    inspect as inspect_pack,
    merge as merge_packs,
    restamp,
    sign,
    verify,
)
from attn_tune.commands.shared import options, process
from attn_tune.commands.shared.application import Application
from attn_tune.schema.errors import StorageError


def _add(group: typer.Typer, modules: Mapping[str, ModuleType], panel: str | None = None) -> None:
    """Add the command of each module to ``group``; help is folded to the terminal, so a paragraph is one line."""
    for name, module in modules.items():
        paragraphs = inspect.cleandoc(module.__doc__ or "").split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        group.command(name, help=text, rich_help_panel=panel)(module.command)


LAB = typer.Typer(
    help="Compare sweeps, query, merge, shrink and convert lab databases, see what jobs missed.",
    no_args_is_help=True,
)
_add(
    LAB,
    {
        "compare": compare,
        "query": query,
        "metadata": metadata,
        "merge": merge_labs,
        "gc": gc,
        "misses": misses,
        "convert": convert_lab,
    },
)
PACK = typer.Typer(
    help="Import, inspect, verify, compare, sign, merge, restamp and convert packs.\n\n"
    "'attn-tune doctor' lists the packs that lookups find here, imported, installed and shipped ones.",
    no_args_is_help=True,
)
_add(
    PACK,
    {
        "import": import_pack,
        "inspect": inspect_pack,
        "verify": verify,
        "diff": diff,
        "merge": merge_packs,
        "sign": sign,
        "coverage": coverage,
        "restamp": restamp,
        "convert": convert_pack,
        "badge": badge,
    },
)
# It answers to restamp, not to people.
PACK.command("programs", hidden=True)(restamp.programs)
OVERRIDE = typer.Typer(
    help="Override lookups: use this config, never that one, only these answers.\n\n"
    "A never entry goes before a use entry, and both before packs and untuned configs. Where a file is only, as freeze "
    "writes it, nothing else answers. Jobs use the files of ATTN_TUNE_OVERRIDES, then by the user's own.\n\n"
    "Example: attn-tune override list",
    no_args_is_help=True,
)
_add(
    OVERRIDE,
    {"add": add, "remove": remove, "list": list_entries, "freeze": freeze, "check": check},
)
# Commands and groups by the panels of the help.
PANELS: dict[str, dict[str, Any]] = {
    "Tune": {"sweep": sweep, "plan": plan, "status": status, "validate": validate, "lab": LAB},
    "Read results": {"best": best, "report": report},
    "Ship and use": {"export": export, "pack": PACK, "explain": explain, "override": OVERRIDE},
    "Look around": {"kernels": kernels, "grids": grids, "devices": devices, "doctor": doctor},
}


class AttnTune(Application):
    """All commands, in the order of the panels."""

    def list_commands(self, ctx):
        return [name for panel in PANELS.values() for name in panel]


app = typer.Typer(
    cls=AttnTune,
    name="attn-tune",
    epilog="Exit codes: 0 ok, 1 nothing valid, 2 usage, 3 no data, 4 lock or I/O, 5 integrity, 6 differs, "
    "130 interrupted.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _panel, _members in PANELS.items():
    for _name, _member in _members.items():
        if isinstance(_member, typer.Typer):
            app.add_typer(_member, name=_name, rich_help_panel=_panel)
        else:
            _add(app, {_name: _member}, _panel)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"attn-tune {version('attn-tune')}")
        raise typer.Exit


@app.callback()
def _root(
    debug: bool = options.flag("--debug", "Show the traceback of an error."),
    version: bool = options.flag("--version", "Print the version.", callback=_version, is_eager=True),
) -> None:
    """Tunes attention kernels for JAX, on GPU and TPU, with proof."""


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group that the help shows, with the words that lead to it."""
    root: Any = typer.main.get_command(app)
    for name in root.list_commands(typer.Context(root)):
        command = root.commands[name]
        yield (name,), command
        for inner, one in getattr(command, "commands", {}).items():
            if not one.hidden:
                yield (name, inner), one


def main() -> None:
    """Run the command line."""
    process.settle()
    try:
        try:
            app(prog_name="attn-tune")
        finally:
            sys.stdout.flush()
    except StorageError as error:  # of stdout: a command's own errors end in ``Application``
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
