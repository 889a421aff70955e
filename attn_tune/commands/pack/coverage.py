"""Prove that every row of a pack can answer on its own device; list the dead.

The settings are those of a job in this environment: ATTN_TUNE_DETERMINISTIC, ATTN_TUNE_UNPROVEN.

Example: attn-tune pack coverage h200.atpack
"""

import os
from collections import Counter

import typer

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.exit_codes import FAILED

# Of names by which rows are asked for, and of reasons with names of packages, a part says nothing.
_WHOLE = ("kernel", "points", "reason")


def command(path: options.PackPath, json: options.Json = False) -> None:
    from attn_tune.packs.reader import read_pack
    from attn_tune.runtime.determinism import determinism_of
    from attn_tune.runtime.lookup.coverage import Reach, cover
    from attn_tune.runtime.unproven import takes_unproven

    pack = read_pack(path, signed=False)
    found = list(cover(pack, determinism_of(os.environ), takes_unproven(os.environ)))
    counts = Counter(one.reach for one in found)
    grades = Counter(str(one.grade) for one in found if one.grade)
    rows = [
        {
            "reach": str(one.reach),
            "kernel": f"{one.row.op}/{one.row.kernel}",
            "direction": one.row.direction,
            "signature": one.row.signature,
            "device": one.device,
            "reason": one.reason,
        }
        for one in found
        if one.reach is not Reach.REACHED
    ]
    if json:
        output.emit_json(counts={str(r): counts[r] for r in Reach}, grades=grades, rows=rows)
    else:
        if rows:
            from attn_tune.reports.pack_frames import uncovered

            frame = uncovered(rows, selection.point_names())
            output.emit_frame(frame, title="Rows that do not answer here", whole=_WHOLE)
        summary = ", ".join(f"{counts[r]} {r}" for r in Reach)
        graded = ", ".join(f"{n} {grade}" for grade, n in sorted(grades.items()))
        output.say(f"{pack}: {summary}" + (f" ({graded} here)" if graded else ""))
    if counts[Reach.DEAD]:
        raise typer.Exit(FAILED)
