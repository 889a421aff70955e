"""Compare two packs: rows added, removed and changed, with their times.

Also entries that only one of their quarantine lists has. It says what differs, row by row and of every kernel;
'attn-tune lab compare' says whether the winners of one are faster, beyond noise.

Example: attn-tune pack diff h200-1.atpack h200-2.atpack
"""

import dataclasses
from collections import Counter
from pathlib import Path

import typer

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.exit_codes import FAILED
from attn_tune.commands.shared.packs import pack_path


def command(
    old: Path = options.argument("OLD", "A pack: a folder, an .atpack file, or a name.", parser=pack_path),
    new: Path = options.argument("NEW", "Another pack.", parser=pack_path),
    evidence: bool = options.flag("--evidence", "Also rows that decide the same on other evidence."),
    exit_code: bool = options.flag("--exit-code", "Exit with 1 if the decisions or the quarantine lists differ."),
    json: options.Json = False,
) -> None:
    from attn_tune.db import Change, diff_packs, diff_quarantine
    from attn_tune.packs.reader import read_pack

    before, after = (read_pack(path, signed=False) for path in (old, new))
    found = diff_packs(before, after)
    listed = [dataclasses.asdict(one) for one in diff_quarantine(before, after)]
    counts = Counter(one.change for one in found)
    shown = [d for d in found if evidence or d.change is not Change.EVIDENCE]
    rows = [dataclasses.asdict(d) | {"ratio": d.ratio} for d in shown]
    if json:
        output.emit_json(counts={str(c): counts[c] for c in Change}, rows=rows, quarantine=listed)
    else:
        if rows:
            from attn_tune.reports.pack_frames import differences

            output.emit_frame(differences(rows, selection.point_names()))
        for one in listed:
            output.say(f"quarantine {one['change']}: {one['speaks_of']}: {one['reason']}")
        same = counts[Change.EVIDENCE]
        summary = ", ".join(f"{counts[c]} {c}" for c in Change if c is not Change.EVIDENCE)
        output.say(f"{before} -> {after}: {summary}, {same} decided alike on other evidence")
    if exit_code and (len(found) > counts[Change.EVIDENCE] or listed):
        raise typer.Exit(FAILED)
