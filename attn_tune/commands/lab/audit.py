"""``attn-tune audit``."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attn_tune.commands.lab import audit_targets
from attn_tune.commands.shared import options, output, selection
from attn_tune.schema import NoDataError, UsageError

if TYPE_CHECKING:
    from attn_tune.tuner.audit import Audited


def audit(
    grid: options.Grids = None,
    lengths: options.Lengths = None,
    point: options.Points = None,
    op: options.Ops = None,
    kernel: options.Kernels = None,
    direction: options.Directions = None,
    sample: Annotated[
        int,
        typer.Option("--sample", metavar="N", min=1, help="Compile so many of the refused."),
    ] = 40,
    seed: Annotated[
        str, typer.Option("--seed", metavar="TEXT", help="Another seed, another sample.")
    ] = "",
    device: options.DeviceName = None,
    target: options.TargetNames = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            "--journal",
            metavar="FILE",
            help="With --target: keep what the compilers say in this file, and do not ask them again what it holds.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Compile a sample of what is refused before compiling.

    A constraint that is too strict hides winners. What is refused, and would have fitted without spilling registers,
    was refused wrongly. Triton kernels only, for a GPU that need not be here; nothing is stored.

    With --target as many of what is called feasible, and of what a smaller config's failure rules out, are compiled
    too, as whole programs: N of each in all, shared among the targets. As many processes compile as there are cores.
    With --journal an audit that was cut short, or a smaller one, is gone on with.

    Example: attn-tune audit --grid llama3-8b --device nvidia-h200 --sample 100

    Example: attn-tune audit --grid llama3-8b --target tpu-v6e --target sm_120 --sample 20
    """
    if journal is not None and not target:
        raise UsageError("--journal is for audits of targets; add --target, or leave it out")
    if target and device:
        raise UsageError("--device is for audits without --target; leave one of the two out")
    if target:
        request = audit_targets.Request(
            points=selection.points(grid, lengths, point, op),
            kernels=selection.kernels(kernel, op),
            directions=selection.directions(direction),
            count=sample,
            seed=seed,
            journal=journal,
        )
        audit_targets.run(request, target, json=json)
        return
    import pandas as pd

    from attn_tune.runtime.environments import current_environment
    from attn_tune.tuner import make_plan
    from attn_tune.tuner.audit import Verdict, audit as run_audit

    made = make_plan(
        selection.points(grid, lengths, point, op),
        kernels=selection.kernels(kernel, op),
        device=selection.device(device),
        environment=current_environment(),
        directions=selection.directions(direction),
    )
    found: list[Audited] = []
    for one in run_audit(made, sample, seed=seed):
        found.append(one)
        output.note(f"{len(found)}/{sample} {one.verdict}: {one.trial.reason}")
    if not found:
        raise NoDataError(f"nothing to audit: no Triton config is refused on {made.device}")
    rows = [_row(one) for one in found]
    counts = Counter(sorted(one.verdict for one in found))
    judged = len(found) - counts[Verdict.UNKNOWN]
    rate = counts[Verdict.FITS] / judged if judged else None
    if json:
        output.emit_json(
            {
                "device": made.device.identity,
                "sampled": len(found),
                "refused_in_all": made.counts.pruned,
                "verdicts": {str(verdict): count for verdict, count in counts.items()},
                "false_prune_rate": rate,
                "configs": rows,
            }
        )
        return
    output.emit_frame(
        pd.DataFrame(rows), title=f"Refused on {made.device}, and compiled all the same"
    )
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    rated = "" if rate is None else f"; false-prune rate {rate:.1%}"
    print(f"{len(found)} of {made.counts.pruned} refused configs: {said}{rated}")


def _row(one: "Audited") -> dict[str, object]:
    import json

    trial, resources = one.trial, one.resources
    return {
        "kernel": trial.kernel,
        "direction": f"{trial.direction} {trial.part}".strip(),
        "signature": trial.signature.text,
        "config": json.dumps(dict(trial.config)),
        "refused because": trial.reason,
        "verdict": str(one.verdict),
        "shared_bytes": resources.shared_bytes if resources else None,
        "registers": resources.registers if resources else None,
        "spill_bytes": resources.spill_bytes if resources else None,
        "compiler": one.said,
    }
