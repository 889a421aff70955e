"""Compile samples of configs that are called feasible, refused or ruled out, and report the wrong claims.

    python -m tools.audit --grid llama3-8b --target tpu-v6e --target sm_120 --sample 20

A constraint that is too strict hides winners. Configs that are refused before compiling, or ruled out by the failure
of a smaller config, were refused wrongly if they fit without spilling registers. Whole programs are compiled, in as
many processes as there are cores, for devices that need not be here; nothing is stored. With --journal an audit that
was cut short continues.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import typer

from attn_tune.commands.shared import options, output, process
from attn_tune.commands.shared.cases import Cases
from attn_tune.commands.sweeps.target_sweep import COMPILE_LIMIT_S
from attn_tune.devices.environments import current_environment
from attn_tune.schema import NoDataError
from attn_tune.tuner.offline.compilers.pool import CompilePool
from attn_tune.tuner.offline.target import NAMES, Target, find_target
from attn_tune.tuner.plan.planner import make_plan
from attn_tune.tuner.protocol import Limits
from attn_tune.tuner.run.compile_ahead import usable_cores
from tools.audit.claims import Checked, Compiler, audit_target
from tools.audit.journal import Journal


@options.grouped
def audit(
    cases: Cases,
    target: list[str] = options.option(
        ...,
        "--target",
        "TARGET",
        "Compile for this device, as in sweep; it need not be here. Repeatable. 'all' is every TPU and every "
        "architecture of GPUs.",
    ),
    sample: int = options.option(40, "--sample", "N", "Configs of each claim, in all.", min=1),
    seed: str = options.option("", "--seed", "TEXT", "Another seed, another sample."),
    journal: Path | None = options.option(
        None,
        "--journal",
        "FILE",
        "Keep the answers of the compilers in this file, and do not ask again for those in it.",
    ),
) -> None:
    kept = Journal(journal) if journal else None
    targets = [find_target(name) for name in dict.fromkeys(NAMES if "all" in target else target)]
    rows = []
    for i, one in enumerate(targets):
        count = sample // len(targets) + (i < sample % len(targets))
        for checked in _audited(cases, one, count, seed, kept):
            rows.append(_row(one, checked))
            output.note(f"{one} {len(rows)}: {checked.claim}, {checked.verdict}: {checked.compiled.status}")
    if not rows:
        raise NoDataError("nothing to audit: none of the chosen kernels can be compiled for it")
    frame = pd.DataFrame(rows)
    wrong = frame.loc[frame["verdict"] == "wrong"]
    if not wrong.empty:
        output.emit_frame(wrong, title="Wrong claims")
    counts = frame.groupby(["target", "claim"], sort=False)["verdict"].value_counts().unstack(fill_value=0)
    output.emit_frame(counts.reset_index(), title="Claims about configs, and what their compilers say")
    output.say(_rates(frame))


def _audited(cases: Cases, target: Target, count: int, seed: str, journal: Journal | None):
    """Yields the claims of a target that were checked, none where no kernel can be compiled for it."""
    kernels = tuple(spec for spec in cases.kernels() if spec.backend in target.backends)
    if not kernels or not count:
        return
    plan = make_plan(
        cases.points(),
        kernels=kernels,
        device=target.device,
        environment=target.environment(current_environment()),
        directions=cases.directions(),
    )
    environments = {kernel.kernel.id: kernel.environment.digest for case in plan.cases for kernel in case.kernels}
    with CompilePool(target, processes=usable_cores(), limits=Limits(compile=COMPILE_LIMIT_S)) as pool:
        asked: Compiler = pool
        if journal is not None:
            asked = journal.wrap(pool, lambda ref: [target.name, environments[ref.kernel]])
        yield from audit_target(plan, asked, count, seed=f"{seed} {target}")


def _row(target: Target, checked: Checked) -> dict[str, Any]:
    ref, compiled = checked.ref, checked.compiled
    return {
        "target": target.name,
        "claim": str(checked.claim),
        "verdict": checked.verdict,
        "kernel": ref.kernel,
        "direction": f"{ref.direction} {ref.part}".strip(),
        "signature": ref.signature.text,
        "config": json.dumps(dict(ref.part_config)),
        "because": checked.reason,
        "status": str(compiled.status),
        "spill_bytes": compiled.resources.spill_bytes,
        "compiler": compiled.reason.partition("\n")[0][:300],
    }


def _rates(frame: pd.DataFrame) -> str:
    """The two rates that an audit is for, over all targets."""
    known = frame.loc[frame["verdict"] != "unknown"]
    wrong, feasible = known["verdict"] == "wrong", known["claim"] == "feasible"
    return (
        f"{(wrong & feasible).sum()} of {feasible.sum()} configs called feasible fail to compile; "
        f"false-prune rate: {(wrong & ~feasible).sum()} of {(~feasible).sum()}"
    )


if __name__ == "__main__":
    process.settle()
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=__doc__)(audit)
    app(prog_name="python -m tools.audit")
