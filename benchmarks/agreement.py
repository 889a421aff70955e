"""Whether two sweeps of the same problems, on two machines of one kind, decide alike.

    python benchmarks/agreement.py first.db second.db

Per kernel and problem that both databases decided: ``same``, the two name one config; ``tie``, one names a config that
the other could not tell from its own; ``differ`` otherwise, with both configs. The kernel
that wins (rank 0) is compared too.
"""

import argparse
import sys
from pathlib import Path

from attn_tune.db import Database
from attn_tune.schema import Decision
from attn_tune.schema.config import config_digest

type Key = tuple[str, str, str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    args = parser.parse_args()
    first, second = read(args.first), read(args.second)
    counts = {"same": 0, "tie": 0, "differ": 0}
    for key in sorted(first.keys() & second.keys()):
        a, b = first[key], second[key]
        verdict = compare(a, b)
        counts[verdict] += 1
        rank = "" if a.rank == b.rank else f"  rank {a.rank} and {b.rank}"
        print(f"{verdict:6} {' '.join(key)}{rank}")
        if verdict == "differ":
            print(f"       {dict(a.config)}\n       {dict(b.config)}")
    total = sum(counts.values())
    if not total:
        print("the databases have no decision in common", file=sys.stderr)
        return 3
    alike = counts["same"] + counts["tie"]
    print(f"{alike} of {total} alike ({alike / total:.1%}): {counts}")
    return 0


def read(path: Path) -> dict[Key, Decision]:
    """Every kernel's decision by (kernel, direction, signature)."""
    with Database.open(path, read_only=True) as database:
        return {(d.kernel, d.direction, d.signature.text): d for d in database.decide()}


def compare(a: Decision, b: Decision) -> str:
    """``same``, ``tie`` or ``differ``."""
    mine, theirs = config_digest(a.config), config_digest(b.config)
    if mine == theirs:
        return "same"
    return "tie" if mine in b.ties or theirs in a.ties else "differ"


if __name__ == "__main__":
    sys.exit(main())
