"""The commands in the order of the help. Their modules are imported when they are run, so that the help is quick."""

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer.core import TyperCommand

# Name: (where it is, the first line of its docstring; a test holds the two together).
COMMANDS = {
    "sweep": ("sweep:sweep", "Compile, prove and time candidates, and store every trial."),
    "plan": ("plan:plan", "Show what a sweep would do, without doing it."),
    "status": (
        "status:status",
        "Show how the running sweep is doing, or how the last one ended.",
    ),
    "best": ("report:best", "Show the best config of one problem, for every kernel."),
    "report": (
        "report:report",
        "Report winners, trials by status, failures, coverage and predictions.",
    ),
    "explain": (
        "explain:explain",
        "Say which kernel and config a call would get here, and why.",
    ),
    "validate": ("validate:validate", "Check outputs and every gradient against the reference."),
    "audit": ("audit:audit", "Compile a sample of what is refused before compiling."),
    "export": ("export:export_pack", "Write the decisions as a config pack, checksummed."),
    "import": ("packs:import_pack", "Verify a pack, then take it in, all or nothing."),
    "merge": (
        "upkeep:merge",
        "Take the trials of other lab databases in, and decide anew.",
    ),
    "gc": (
        "upkeep:gc",
        "Delete what no decision or evidence rests on, and make the file smaller.",
    ),
    "merge-packs": (
        "packs:merge_packs",
        "Merge packs into a new one, under the policies of import.",
    ),
    "inspect": (
        "pack_tools:inspect",
        "Show what a pack holds: devices, kernels, environments, gate, signatures.",
    ),
    "verify": ("pack_tools:verify", "Check packs: sums, schema, digests and signatures."),
    "diff": (
        "pack_tools:diff",
        "Compare two packs: rows added, removed and changed, with their times.",
    ),
    "sign": ("pack_tools:sign", "Sign a pack with an ed25519 key (extra 'sign')."),
    "coverage": (
        "pack_tools:coverage",
        "Prove that every row of a pack can answer on its own device; list the dead.",
    ),
    "restamp": (
        "restamp:restamp",
        "Keep the rows of a pack whose kernels' source changed and whose programs did not.",
    ),
    "programs": (
        "restamp:programs",
        "Lower calls of rows: a JSON object a line from stdin, an answer a line to stdout.",
    ),
    "override": (
        "override:app",
        "Override lookups: use this config, never that one, only these answers.",
    ),
    "kernels": (
        "kernels:kernels",
        "List the kernels: what each can do here, or why it cannot.",
    ),
    "grids": (
        "grids:grids",
        "List the grids, or the points of one, of a model or of misses.",
    ),
    "misses": ("misses:misses", "Show what jobs missed, import it as a grid, or clear it."),
    "devices": ("devices:devices", "Show the devices here, as decisions are matched to them."),
    "doctor": ("doctor:doctor", "Check everything that sweeps and lookups need."),
}


@functools.cache
def load_command(name: str) -> "TyperCommand":
    """Imports one command.

    Raises:
      KeyError: there is none of that name.
    """
    import typer

    module, _, attribute = COMMANDS[name][0].partition(":")
    function = getattr(importlib.import_module(f"attn_tune.cli.{module}"), attribute)
    if isinstance(function, typer.Typer):
        # A command that has commands of its own.
        return typer.main.get_command(function)  # type: ignore[return-value]
    single = typer.Typer(
        rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False
    )
    single.command(name)(function)
    return typer.main.get_command(single)  # type: ignore[return-value]
