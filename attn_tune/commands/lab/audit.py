"""Compile samples of configs that are called feasible, refused or ruled out, and report the wrong claims.

A constraint that is too strict hides winners. Configs that are refused before compiling, or ruled out by the failure
of a smaller config, were refused wrongly if they fit without spilling registers. Whole programs are compiled, in as
many processes as there are cores, for devices that need not be here; nothing is stored. With --journal an audit that
was cut short continues.

Example: attn-tune lab audit --grid llama3-8b --target tpu-v6e --target sm_120 --sample 20
"""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.cases import Cases
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.tuner.offline.audit import Checked
    from attn_tune.tuner.offline.compiler_log import CompilerLog
    from attn_tune.tuner.offline.target import Target


@options.grouped
def command(
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
        "Keep the answers of the compilers in this file, and do not ask again for those that it holds.",
    ),
    json: options.Json = False,
) -> None:
    import pandas as pd

    from attn_tune.schema import NoDataError
    from attn_tune.tuner.offline.compiler_log import CompilerLog
    from attn_tune.tuner.offline.target import NAMES, find_target

    kept = CompilerLog(journal) if journal else None
    names = NAMES if "all" in target else target
    targets = [find_target(name) for name in dict.fromkeys(names)]
    found = [
        (one, checked)
        for i, one in enumerate(targets)
        for checked in _audit(cases, one, _share(sample, len(targets), i), seed, kept)
    ]
    if not found:
        raise NoDataError("nothing to audit: none of the chosen kernels can be compiled for it")
    rows = [_row(one, checked) for one, checked in found]
    frame = pd.DataFrame(rows)
    wrong = frame.loc[frame["wrong"]]
    counts = _counts(frame)
    if json:
        output.emit_json(
            targets=[one.name for one in targets],
            seed=seed,
            claims=counts,
            wrong=wrong,
            configs=frame,
        )
        return
    if not wrong.empty:
        output.emit_frame(wrong, title="Wrong claims")
    output.emit_frame(counts, title="Claims about configs, and what their compilers say")
    output.say(_rates(counts))


def _audit(cases: Cases, target: "Target", count: int, seed: str, journal: "CompilerLog | None") -> "list[Checked]":
    from attn_tune.commands.sweeps.target_sweep import COMPILE_LIMIT_S
    from attn_tune.devices.environments import current_environment
    from attn_tune.tuner.offline.audit import audit_target
    from attn_tune.tuner.offline.compilers.pool import CompilePool
    from attn_tune.tuner.plan.planner import make_plan
    from attn_tune.tuner.protocol import Limits
    from attn_tune.tuner.run.compile_ahead import usable_cores

    kernels = tuple(spec for spec in cases.kernels() if spec.backend in target.backends)
    if not kernels or not count:
        return []
    plan = make_plan(
        cases.points(),
        kernels=kernels,
        device=target.device,
        environment=target.environment(current_environment()),
        directions=cases.directions(),
    )
    environments = {kernel.kernel.id: kernel.environment.digest for case in plan.cases for kernel in case.kernels}
    found = []
    limits = Limits(compile=COMPILE_LIMIT_S)
    with CompilePool(target, processes=usable_cores(), limits=limits) as pool:
        asked = pool
        if journal is not None:
            asked = journal.wrap(pool, lambda ref: [target.name, environments[ref.kernel]])
        for checked in audit_target(plan, asked, count, seed=f"{seed} {target}"):
            found.append(checked)
            verdict = "wrong" if checked.is_wrong else "right" if checked.is_known else "unknown"
            output.note(f"{target} {len(found)}: {checked.claim}, {verdict}: {checked.compiled.status}")
    return found


def _share(count: int, parts: int, place: int) -> int:
    """``count`` in ``parts`` that differ by one at most."""
    return count // parts + (place < count % parts)


def _row(target: "Target", checked: "Checked") -> dict[str, object]:
    ref, compiled = checked.ref, checked.compiled
    own = ref.config[ref.part] if ref.part else ref.config
    return {
        "target": target.name,
        "claim": str(checked.claim),
        "wrong": checked.is_wrong,
        "known": checked.is_known,
        "kernel": ref.kernel,
        "direction": f"{ref.direction} {ref.part}".strip(),
        "signature": ref.signature.text,
        "config": json_format.dumps(dict(own)),
        "because": checked.reason,
        "status": str(compiled.status),
        "spill_bytes": compiled.resources.spill_bytes,
        "compiler": compiled.reason.partition("\n")[0][:300],
    }


def _rates(counts) -> str:
    """The two rates that an audit is for, over all targets."""
    own = counts.loc[counts["target"] == "all"].set_index("claim")[["checked", "wrong"]]
    fits = own.loc[own.index == "feasible"].sum()
    pruned = own.loc[own.index != "feasible"].sum()
    wrong = f"{fits['wrong']} of {counted(int(fits['checked']), 'config')} called feasible fail to compile"
    rate = f" ({pruned['wrong'] / pruned['checked']:.1%})" if pruned["checked"] else ""
    return f"{wrong}; false-prune rate: {pruned['wrong']} of {pruned['checked']}{rate}"


def _counts(frame):
    """One row a target and claim, and one a claim over all targets."""
    import pandas as pd

    rows = []
    for target in (*frame["target"].unique(), "all"):
        own = frame if target == "all" else frame.loc[frame["target"] == target]
        for claim, group in own.groupby("claim", sort=False):
            wrong, known = int(group["wrong"].sum()), int(group["known"].sum())
            row = {"target": target, "claim": claim, "checked": known, "wrong": wrong}
            rate = f"{wrong / known:.1%}" if known else ""
            rows.append({**row, "rate": rate, "took too long": len(group) - known})
    return pd.DataFrame(rows)
