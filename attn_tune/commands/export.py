"""Write the decisions as a config pack, checksummed.

Every row must pass the release gate: measured in quiet and proven in a known environment, with the source of its
kernel that is installed here, not failed since, near enough to the best, and no slower than the untuned config, here
or where the pack would answer for a near problem that was measured. Configs in quarantine, here or in the pack's own
list, are never shipped.

Example: attn-tune export h200-llama.atpack --device nvidia-h200
"""

import dataclasses
import enum
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.cases import Cases
from attn_tune.commands.shared.database import open_lab
from attn_tune.schema import GateError
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.db import PackSummary


class Rules(enum.StrEnum):
    """Choices of ``--rule``: ``winner`` won its race, ``tie`` stayed untuned, ``only`` was the only right one."""

    WINNER = "winner"
    TIE = "tie"
    ONLY = "only"


_DOUBTS = {
    "unproven": "no feature problem was run",
    "noisy": "the final was disturbed",
    "regret": "the bound on the regret is above 10 %",
}


@options.grouped
def command(
    db: options.Database,
    cases: Cases,
    path: Path = options.argument("PACK", "The pack to write: a folder, or one file ending in .atpack."),
    name: options.PackName = None,
    version: options.PackVersion = "1",
    device: str | None = options.option(
        None, "--device", "DEVICE", "Only this device: a digest, a variant or a family."
    ),
    rule: list[Rules] | None = options.option(
        None, "--rule", "RULE", "Only decisions by this rule: winner, tie, only. Repeatable."
    ),
    winners: bool = options.flag("--winners", "Only the best kernel of each problem."),
    min_gain: float | None = options.option(
        None,
        "--min-gain",
        "RATIO",
        "Only configs that are so many times as fast as the untuned one.",
    ),
    revalidate: bool = options.flag(
        "--revalidate", "Prove every row of this machine's device once more, here and now."
    ),
    no_gate: str | None = options.option(
        None,
        "--no-gate",
        "REASON",
        "Ship rows that the release gate objects to; the manifest keeps the reason.",
    ),
    max_regret: float = options.option(
        10.0,
        "--max-regret",
        "%",
        "Refuse rows whose time may be so many percent above the best one's.",
        min=0.0,
    ),
    allow_noisy: bool = options.flag(
        "--allow-noisy",
        "Also rows whose final was disturbed: by another sweep on the host, or a clock that moved.",
    ),
    allow_unproven: bool = options.flag(
        "--allow-unproven",
        "Also rows whose config ran no feature problem. Jobs take such rows with ATTN_TUNE_UNPROVEN=1 only.",
    ),
    allow_predicted: bool = options.flag(
        "--allow-predicted",
        "Also configs that were only predicted, where nothing was measured. Such rows say so.",
    ),
    allow_nondeterministic: bool = options.flag(
        "--allow-nondeterministic",
        "Also kernels whose results may differ in their last bits from run to run, and configs that were "
        "seen to. Jobs take such rows with ATTN_TUNE_DETERMINISTIC=0 only.",
    ),
    quarantine: list[Path] | None = options.option(
        None,
        "--quarantine",
        "FILE",
        "A file of overrides whose never entries the pack carries, for all who use it. Repeatable.",
    ),
    with_quarantine: bool = options.flag(
        "--with-quarantine",
        "Carry the never entries that are active here ('attn-tune override list').",
    ),
    wheel: bool = options.flag("--wheel", "Also write the pack as a wheel, in the same folder."),
    note: str | None = options.option(
        None,
        "--note",
        "TEXT",
        "A line for people, kept in the manifest: author, time, commit. 'attn-tune pack inspect' shows it.",
    ),
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    from attn_tune.commands.shared.revalidate import revalidate as prove
    from attn_tune.db import GatePolicy, Selection, export_pack as write
    from attn_tune.packs.override_files import read_overrides
    from attn_tune.packs.wheel import export_wheel, wheel_path
    from attn_tune.runtime.overrides.active import Overrides, files_in_force

    if wheel:
        wheel_path(name or path.stem, version, path.parent, overwrite=overwrite)
    in_force = Overrides(files_in_force(os.environ))
    entries = [entry for file in quarantine or () for entry in Overrides([read_overrides(file)]).never]
    entries += in_force.never if with_quarantine else ()
    with open_lab(db) as database:
        tried = database.frame("coverage")
        chosen = cases.stored_points(tried["signature"])
        chosen_rows = Selection(
            kernels=cases.stored_kernels(tried["kernel"]),
            directions=cases.stored_directions(tried["direction"]),
            device=device,
            signatures=None if chosen is None else frozenset(chosen),
            rules=frozenset(str(r) for r in rule) if rule else None,
            winners=winners,
            min_gain=min_gain,
        )
        try:
            written = write(
                database,
                path,
                name=name or path.stem,
                version=version,
                selection=chosen_rows,
                revalidate=prove if revalidate else None,
                ungated=no_gate,
                policy=GatePolicy(
                    max_regret=max_regret / 100,
                    allow_unproven=allow_unproven,
                    allow_noisy=allow_noisy,
                ),
                allow_predicted=allow_predicted,
                allow_nondeterministic=allow_nondeterministic,
                quarantine=entries,
                in_force=in_force,
                note=note,
                overwrite=overwrite,
            )
        except GateError as error:
            if json:
                output.emit_json(passed=False, objections=error.objections)
            raise
    built = export_wheel(path, path.parent, overwrite=overwrite) if wheel else None
    if json:
        output.emit_json(**dataclasses.asdict(written), wheel=built)
        return
    _say_written(written)
    if built:
        print(f"  wheel {built}")


def _say_written(written: "PackSummary") -> None:
    path, gate = written.path, written.gate
    output.say(
        f"{path}: {counted(written.problems, 'problem')}, {counted(written.rows, 'row')}, "
        f"{counted(written.size_bytes, 'byte')}, for {', '.join(written.devices)}"
    )
    output.say(f"  decisions {written.decision_digest}")
    if written.left_out:
        output.say(f"  left out, not deterministic: {', '.join(written.left_out)}")
    if count := gate.get("nondeterministic"):
        output.say(
            f"  {counted(count, 'row')} of kernels that are not deterministic: "
            "ATTN_TUNE_DETERMINISTIC=0 lets jobs use them"
        )
    if written.quarantined:
        output.say(f"  carries a quarantine list of {written.quarantined}")
    for doubt, count in gate.get("accepted", {}).items():
        output.say(f"  {counted(count, 'row')} let through on purpose: {_DOUBTS[doubt]}")
    if gate["passed"]:
        guards = gate["guards"]
        output.say(
            f"  gate passed: {counted(gate['rows'], 'row')}, {gate['revalidated']} validated again; "
            f"{counted(guards['replayed'], 'guard')} replayed, "
            f"{counted(guards['heuristic_rows'], 'row')} added where the untuned config wins"
        )
    else:
        count = gate["objections"]
        verdict = f"NOT passed, {counted(count, 'objection')}" if count else "not asked, though it had no objection"
        output.say(f"  gate {verdict}: {gate['reason']}")
        for reason in gate["reasons"]:
            output.say(f"    {reason}")
    place = path.resolve()
    print(f"  use it here with: attn-tune pack import {shlex.quote(str(path))}")
    print(f"  or with ATTN_TUNE_PACKS={shlex.quote(str(place))}, or with attn_tune.use_pack({str(place)!r})")
