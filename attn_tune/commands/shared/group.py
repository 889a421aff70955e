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
    "audit": ("lab.audit:audit", "Compile a sample of what is refused before compiling."),
    "export": ("export:export_pack", "Write the decisions as a config pack, checksummed."),
    "import": ("pack.packs:import_pack", "Verify a pack, then take it in, all or nothing."),
    "merge": (
        "lab.upkeep:merge",
        "Take the trials of other lab databases in, and decide anew.",
    ),
    "gc": (
        "lab.upkeep:gc",
        "Delete what no decision or evidence rests on, and make the file smaller.",
    ),
    "merge-packs": (
        "pack.packs:merge_packs",
        "Merge packs into a new one, under the policies of import.",
    ),
    "inspect": (
        "pack.pack_tools:inspect",
        "Show what a pack holds: devices, kernels, environments, gate, signatures.",
    ),
    "verify": ("pack.pack_tools:verify", "Check packs: sums, schema, digests and signatures."),
    "diff": (
        "pack.pack_tools:diff",
        "Compare two packs: rows added, removed and changed, with their times.",
    ),
    "sign": ("pack.pack_tools:sign", "Sign a pack with an ed25519 key (extra 'sign')."),
    "coverage": (
        "pack.pack_tools:coverage",
        "Prove that every row of a pack can answer on its own device; list the dead.",
    ),
    "quarantine": (
        "override.quarantine:quarantine",
        "Say what must not run, whoever says it should: add, remove, list.",
    ),
    "pin": (
        "override.pin:pin",
        "Pin one config for a user's jobs, whatever packs say: add, remove, list.",
    ),
    "freeze": (
        "override.lockfile:freeze",
        "Write a lockfile: what lookups answer now, for jobs to replay.",
    ),
    "check-lockfile": (
        "override.lockfile:check_lockfile",
        "Say whether a job here would replay a lockfile exactly.",
    ),
    "kernels": (
        "kernels:kernels",
        "List the kernels: what each can do here, or why it cannot.",
    ),
    "grids": (
        "grids:grids",
        "List the grids, or the points of one, of a model or of misses.",
    ),
    "misses": ("lab.misses:misses", "Show what jobs missed, import it as a grid, or clear it."),
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
    function = getattr(importlib.import_module(f"attn_tune.commands.{module}"), attribute)
    if isinstance(function, typer.Typer):
        # A command that has commands of its own.
        return typer.main.get_command(function)  # type: ignore[return-value]
    single = typer.Typer(
        rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False
    )
    single.command(name)(function)
    return typer.main.get_command(single)  # type: ignore[return-value]
