"""Show the best config of one problem, for every kernel.

Rows of packs that were imported into the database stand beside its own.

Example: attn-tune best llama3-8b/4x4k --direction bwd
"""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.cases import Cases
from attn_tune.commands.shared.database import open_lab
from attn_tune.commands.shared.narrowing import Narrowing
from attn_tune.schema import NoDataError, Signature, Status

if TYPE_CHECKING:
    import pandas as pd

# The part of a report that shows trials without a time, by what they found.
SECTIONS = {Status.PREDICTED: "predicted", Status.COMPILED: "fits"}


def command(
    point: options.Point,
    db: options.Database,
    grid: options.PointGrids = None,
    workload: options.Workload = None,
    kernel: options.Kernels = None,
    direction: options.Directions = None,
    device: options.DeviceName = None,
    json: options.Json = False,
) -> None:
    from attn_tune.ops.registry import get_op
    from attn_tune.reports import frames

    asked = selection.signature(point, grid, workload)
    names = {asked.signature.text: selection.brief(asked.name)}
    with open_lab(db) as database:
        tried = database.frame("coverage", signature=asked.signature)
        imported = database.frame("imported")
        found = database.decisions(signature=asked.signature)
        narrowing = Narrowing(
            problems=names,
            kernels=Cases(kernel=kernel).stored_kernels([*tried["kernel"], *imported["kernel"]]),
            directions=selection.directions(direction, [get_op(asked.op)]),
            device=selection.device(device) if device else None,
        )
        is_decided = bool(found) or not imported[imported["signature"] == asked.signature.text].empty
        found, imported = narrowing.decisions(found), narrowing.rows(imported)
        if not found and imported.empty:
            if is_decided:
                raise NoDataError(
                    f"{db} has decisions for {asked.signature.text!r}, but none that --kernel, --direction and "
                    "--device leave; leave them out to see all"
                )
            raise _undecided(db, asked.signature, narrowing.rows(database.frame("trials", signature=asked.signature)))
    own, packs = frames.summary(found, names), frames.imported(imported, names)
    if json:
        output.emit_json(decisions=own, imported=packs)
        return
    if found:
        output.emit_winners(own.drop(columns=["signature", "trials"]))
    if not packs.empty:
        output.emit_frame(packs.drop(columns=["signature"]), title="Imported")


def _undecided(db: Path, signature: Signature, trials: "pd.DataFrame") -> NoDataError:
    """The error of a problem without a decision, and what shows more of it: a report of what was only compiled."""
    place = shlex.quote(str(db))
    statuses = set(trials["status"])
    for status, section in SECTIONS.items():
        if status in statuses:
            devices = " and ".join(sorted(set(trials["device"])))
            return NoDataError(
                f"{db} has no decision for {signature.text!r}: it was only compiled for {devices}, and not timed; "
                f"see: attn-tune report --section {section} --db {place}"
            )
    return NoDataError(
        f"{db} has no decision for {signature.text!r}; "
        f"tune it with: attn-tune sweep --grid {signature.text!r} --db {place}"
    )
