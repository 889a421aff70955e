"""The body of ``attn-tune audit --target``: claims about configs, and what the compilers say of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.commands.shared import output

if TYPE_CHECKING:
    from attn_tune.kernels.spec import KernelSpec
    from attn_tune.tuner.grid import GridPoint
    from attn_tune.tuner.targets import Target
    from attn_tune.tuner.targets.audit import Checked
    from attn_tune.tuner.targets.journal import Journal


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is audited: ``count`` configs of each claim, shared among the targets; ``journal`` keeps the answers."""

    points: "Sequence[GridPoint]"
    kernels: "Sequence[KernelSpec]"
    directions: Sequence[str]
    count: int
    seed: str
    journal: Path | None = None


def run(request: Request, names: Sequence[str], *, json: bool) -> None:
    """Compiles the samples and prints how many claims of each kind held.

    Raises:
      UsageError: a target is not known, or its compiler is not installed.
      NoDataError: there is nothing to audit.
      CompilerError: nothing can be compiled.
    """
    import pandas as pd

    from attn_tune.schema import NoDataError
    from attn_tune.tuner.targets import NAMES, find_target
    from attn_tune.tuner.targets.journal import Journal

    journal = Journal(request.journal) if request.journal else None
    known = NAMES if "all" in names else names
    targets = [find_target(name) for name in dict.fromkeys(known)]
    found = [
        (target, checked)
        for i, target in enumerate(targets)
        for checked in _audit(request, target, _share(request.count, len(targets), i), journal)
    ]
    if not found:
        raise NoDataError("nothing to audit: none of the chosen kernels can be compiled for it")
    rows = [_row(target, checked) for target, checked in found]
    frame = pd.DataFrame(rows)
    wrong = frame.loc[frame["wrong"]]
    counts = _counts(frame)
    if json:
        from attn_tune.reports import tables

        output.emit_json(
            {
                "targets": [target.name for target in targets],
                "seed": request.seed,
                "claims": tables.to_records(counts),
                "wrong": tables.to_records(wrong),
                "configs": tables.to_records(frame),
            }
        )
        return
    if not wrong.empty:
        output.emit_frame(wrong, title="Wrong claims")
    output.emit_frame(counts, title="Claims about configs, and what their compilers say")
    print(_said(counts))


def _audit(
    request: Request, target: "Target", count: int, journal: "Journal | None"
) -> "list[Checked]":
    from attn_tune.commands.sweeps.target_sweep import COMPILE_LIMIT_S
    from attn_tune.runtime.environments import current_environment
    from attn_tune.tuner import make_plan
    from attn_tune.tuner.ahead import usable_cores
    from attn_tune.tuner.protocol import Limits
    from attn_tune.tuner.targets import CompilePool
    from attn_tune.tuner.targets.audit import audit_target

    kernels = tuple(spec for spec in request.kernels if spec.backend in target.backends)
    if not kernels or not count:
        return []
    plan = make_plan(
        request.points,
        kernels=kernels,
        device=target.device,
        environment=target.environment(current_environment()),
        directions=request.directions,
    )
    environments = {
        kernel.kernel.id: kernel.environment.digest
        for case in plan.cases
        for kernel in case.kernels
    }
    found = []
    limits = Limits(compile=COMPILE_LIMIT_S)
    with CompilePool(target, processes=usable_cores(), limits=limits) as pool:
        asked = pool
        if journal is not None:
            asked = journal.before(pool, lambda ref: [target.name, environments[ref.kernel]])
        for checked in audit_target(plan, asked, count, seed=f"{request.seed} {target}"):
            found.append(checked)
            said = "wrong" if checked.is_wrong else "right" if checked.is_known else "unknown"
            output.note(
                f"{target} {len(found)}: {checked.claim}, {said}: {checked.compiled.status}"
            )
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
        "config": json.dumps(dict(own)),
        "because": checked.reason,
        "status": str(compiled.status),
        "spill_bytes": compiled.resources.spill_bytes,
        "compiler": compiled.reason.partition("\n")[0][:300],
    }


def _said(counts) -> str:
    """The two rates that an audit is for, over all targets."""
    own = counts.loc[counts["target"] == "all"].set_index("claim")[["checked", "wrong"]]
    fits = own.loc[own.index == "feasible"].sum()
    pruned = own.loc[own.index != "feasible"].sum()
    said = f"{fits['wrong']} of {fits['checked']} configs that are called feasible fail to compile"
    rate = f" ({pruned['wrong'] / pruned['checked']:.1%})" if pruned["checked"] else ""
    return f"{said}; false-prune rate: {pruned['wrong']} of {pruned['checked']}{rate}"


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
