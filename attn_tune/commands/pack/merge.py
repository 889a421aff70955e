"""Merge packs into a new one, under the policies of import.

Example: attn-tune pack merge all.atpack a.atpack b.atpack --on-conflict fastest-verified
"""

import dataclasses
from pathlib import Path

from attn_tune.commands.pack.outcomes import POLICIES, show_outcomes
from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.packs import pack_path
from attn_tune.schema.words import counted


def command(
    path: Path = options.argument("OUT", "The pack to write."),
    packs: list[Path] = options.argument(
        "PACK", "The packs; the first is the one that others change.", parser=pack_path
    ),
    name: options.PackName = None,
    version: options.PackVersion = "1",
    on_conflict: str = options.option("error", "--on-conflict", "POLICY", POLICIES),
    overwrite: options.Overwrite = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    from attn_tune.db import merge_packs as merge
    from attn_tune.packs.reader import read_pack

    merged = merge(
        [read_pack(one) for one in packs],
        path,
        name=name or path.stem,
        version=version,
        policy=on_conflict,
        overwrite=overwrite,
        dry_run=dry_run,
    )
    if json:
        digest = merged.pack.digest if merged.pack else None
        outcomes = [dataclasses.asdict(one) for one in merged.outcomes]
        output.emit_json(
            path=path,
            digest=digest,
            rows=merged.rows,
            quarantined=merged.quarantined,
            outcomes=outcomes,
        )
        return
    show_outcomes(merged.outcomes)
    listed = f", {merged.quarantined} in quarantine" if merged.quarantined else ""
    listed += " (dry run)" if dry_run else ""
    output.say(f"{path}: {counted(merged.rows, 'row')} of {counted(len(packs), 'pack')}{listed}")
