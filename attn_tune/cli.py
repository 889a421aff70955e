"""The application ``attn-tune``: its groups and commands.

A command is a module of ``attn_tune.commands``. Its docstring is the help, its function ``command`` is run.
"""

import sys
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, cast

import typer

from attn_tune.commands.shared import process
from attn_tune.commands.shared.application import Application
from attn_tune.commands.shared.group import MARKUP, group, walk
from attn_tune.schema.errors import StorageError

PACK = group(
    "pack",
    "Import, inspect, verify, compare, sign, merge and restamp packs.",
    {
        "import": "pack.import_pack",
        "inspect": "pack.inspect",
        "verify": "pack.verify",
        "diff": "pack.diff",
        "merge": "pack.merge",
        "sign": "pack.sign",
        "coverage": "pack.coverage",
        "restamp": "pack.restamp",
    },
    # It answers to restamp, not to people.
    hidden={"programs": "pack.restamp:programs"},
)
LAB = group(
    "lab",
    "Merge and shrink lab databases, see what jobs missed, audit what is refused.",
    {
        "merge": "lab.merge",
        "gc": "lab.gc",
        "misses": "lab.misses",
        "audit": "lab.audit",
    },
)
OVERRIDE = group(
    "override",
    "Override lookups: use this config, never that one, only these answers.\n\n"
    "A never entry goes before a use entry, and both before packs and heuristics. Where a file is only, as freeze "
    "writes it, nothing else answers. Jobs go by the files of ATTN_TUNE_OVERRIDES, then by the user's own.\n\n"
    "Example: attn-tune override list",
    {
        "add": "override.add",
        "remove": "override.remove",
        "list": "override.list",
        "freeze": "override.freeze",
        "check": "override.check",
    },
)


class AttnTune(Application):
    """All commands, by the panels of the help."""

    panels: ClassVar = {
        "Tune": {
            "sweep": "sweep",
            "plan": "plan",
            "status": "status",
            "validate": "validate",
            "lab": LAB,
        },
        "Read results": {"best": "best", "report": "report"},
        "Ship and use": {
            "export": "export",
            "pack": PACK,
            "explain": "explain",
            "override": OVERRIDE,
        },
        "Look around": {
            "kernels": "kernels",
            "grids": "grids",
            "devices": "devices",
            "doctor": "doctor",
        },
    }


app = typer.Typer(
    cls=AttnTune,
    name="attn-tune",
    epilog="Exit codes: 0 ok, 1 nothing valid, 2 usage, 3 no data, 4 lock or I/O, 5 integrity, 130 interrupted.",
    rich_markup_mode=MARKUP,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"attn-tune {version('attn-tune')}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Tunes attention kernels for JAX, on GPU and TPU, with proof."""


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, imported, with the words that lead to it."""
    return walk(cast(AttnTune, typer.main.get_command(app)))


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
