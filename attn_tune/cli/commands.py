"""The list of commands, in the order of the help."""

import typer

from attn_tune.cli.devices import devices
from attn_tune.cli.doctor import doctor
from attn_tune.cli.explain import explain
from attn_tune.cli.grids import grids
from attn_tune.cli.kernels import kernels
from attn_tune.cli.packs import export_pack, import_pack
from attn_tune.cli.plan import plan
from attn_tune.cli.report import best, report
from attn_tune.cli.status import status
from attn_tune.cli.sweep import sweep
from attn_tune.cli.validate import validate

COMMANDS = {
    "sweep": sweep,
    "plan": plan,
    "status": status,
    "best": best,
    "report": report,
    "explain": explain,
    "validate": validate,
    "export": export_pack,
    "import": import_pack,
    "kernels": kernels,
    "grids": grids,
    "devices": devices,
    "doctor": doctor,
}


def register(app: typer.Typer) -> None:
    """Adds every command to ``app``."""
    for name, function in COMMANDS.items():
        app.command(name)(function)
