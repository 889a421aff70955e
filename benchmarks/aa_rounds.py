"""False positives of the decision rule: each winner of a database against copies of itself.

    python benchmarks/aa_rounds.py lab.db --copies 8 --out aa_rounds.json

For each problem that the database decided, the winning config runs in one round of finals as often as ``--copies`` says
and once more, interleaved as in a sweep, in a process that has run nothing else. The first is the incumbent. A copy
that beats it, with the rule that decides sweeps, is a decision that noise alone would have changed.
"""

import argparse
import json
import statistics
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attn_tune.db import Database
from attn_tune.db.decide.statistics import compare_paired
from attn_tune.schema import Decision
from attn_tune.schema.trial import Measurement
from attn_tune.tuner.protocol import ConfigRef, Finals
from attn_tune.tuner.run.executor import CaseError, IsolatedExecutor


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("database", type=Path)
    parser.add_argument("--copies", type=int, default=8)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with Database.open(args.database, read_only=True) as database:
        decisions = [d for d in database.decide() if d.rank == 0]
    if not decisions:
        print(f"{args.database} has decided nothing", file=sys.stderr)
        return 3
    with IsolatedExecutor() as executor:
        identity = executor.identify()
        rows = [row for d in decisions if (row := race_copies(executor, d, identity, args.copies))]
    report = {
        "device": str(identity.device),
        "environment": asdict(identity.environment),
        "rounds": len(rows),
        "comparisons": sum(len(row["ratios"]) for row in rows),
        "changed_decisions": sum(row["changed"] for row in rows),
        "changed_comparisons": sum(row["told_apart"] for row in rows),
        "worst_ratio": max(abs(r - 1) for row in rows for r in row["ratios"]),
        "median_ratio": statistics.median(abs(r - 1) for row in rows for r in row["ratios"]),
        "rows": rows,
    }
    for row in rows:
        spread = max(abs(r - 1) for r in row["ratios"])
        print(f"{row['told_apart']} of {len(row['ratios'])}  {spread:7.3%}  {row['what']}")
    print(
        f"{report['changed_comparisons']} of {report['comparisons']} comparisons and "
        f"{report['changed_decisions']} of {report['rounds']} decisions told equal configs apart; "
        f"medians differ by {report['median_ratio']:.3%}, at most {report['worst_ratio']:.3%}"
    )
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def race_copies(executor: IsolatedExecutor, decision: Decision, identity: Any, copies: int) -> dict[str, Any] | None:
    """One round; None where it cannot be run."""
    ref = ConfigRef(
        kernel=decision.kernel,
        signature=decision.signature,
        direction=decision.direction,
        config=decision.config,
    )
    what = f"{decision.kernel} {decision.direction} {decision.signature.text}"
    refs = (ref,) * (copies + 1)
    try:
        answer = executor.finals(Finals(refs=refs, device=identity.device, round_id="aa"))
    except CaseError as error:
        print(f"not run: {what}: {error}", file=sys.stderr)
        return None
    measured = [o.measurement for o in answer.outcomes if o.measurement is not None]
    if len(measured) < len(refs):
        print(f"not run: {what}: {answer.outcomes[0].reason}", file=sys.stderr)
        return None
    conditions = answer.outcomes[0].conditions
    return {
        "what": what,
        "median_ns": measured[0].median_ns,
        "conditions": asdict(conditions) if conditions else None,
        **verdicts(measured),
    }


def verdicts(measured: list[Measurement]) -> dict[str, Any]:
    """Applies the decision rule to copies (all but the first) against an incumbent (the first)."""
    incumbent, *copies = [m.samples_ns for m in measured]
    found = [
        compare_paired(sorted(zip(copy, incumbent, strict=True)), seed=f"copy {i}") for i, copy in enumerate(copies)
    ]
    return {
        "ratios": [c.ratio for c in found],
        "told_apart": sum(c.a_wins() for c in found),
        "changed": any(c.a_wins(among=len(found)) for c in found),
    }


if __name__ == "__main__":
    sys.exit(main())
