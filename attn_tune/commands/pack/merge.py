"""Merge packs into a new one, under the policies of import.

Example: attn-tune pack merge all.atpack a.atpack b.atpack --on-conflict fastest-verified
"""

import dataclasses
from pathlib import Path

from attn_tune.commands.pack.outcomes import POLICIES, show_outcomes
from attn_tune.commands.shared import options, output, selection
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
    wheel: bool = options.flag("--wheel", "Also write the pack as a wheel, in the same folder."),
    overwrite: options.Overwrite = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    from attn_tune.db import merge_packs as merge
    from attn_tune.packs.reader import read_pack
    from attn_tune.packs.wheel import export_wheel, wheel_path

    if wheel:
        wheel_path(name or path.stem, version, path.parent, overwrite=overwrite)
    merged = merge(
        [read_pack(one) for one in packs],
        path,
        name=name or path.stem,
        version=version,
        policy=on_conflict,
        overwrite=overwrite,
        dry_run=dry_run,
    )
    built = export_wheel(path, path.parent, overwrite=overwrite) if wheel and not dry_run else None
    if json:
        digest = merged.pack.digest if merged.pack else None
        outcomes = [dataclasses.asdict(one) for one in merged.outcomes]
        output.emit_json(
            path=path,
            digest=digest,
            rows=merged.rows,
            quarantined=merged.quarantined,
            outcomes=outcomes,
            left_out=[dataclasses.asdict(one) for one in merged.left_out],
            wheel=built,
        )
        return
    show_outcomes(merged.outcomes)
    names = selection.point_names()
    for one in merged.left_out:
        output.say(
            f"left out of {one.pack}: {one.kernel} {one.direction}, {names.get(one.signature, one.signature)}, on "
            f"{one.device}, {one.config}; a never entry forbids it: {one.reason}"
        )
    listed = f", {merged.quarantined} in quarantine" if merged.quarantined else ""
    listed += " (dry run)" if dry_run else ""
    output.say(f"{path}: {counted(merged.rows, 'row')} of {counted(len(packs), 'pack')}{listed}")
    if built:
        print(f"  wheel {built}")
