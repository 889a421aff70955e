"""A job of real JAX processes on this CPU, one of them with a stale pack: a typed error on all, and no hang.

    python benchmarks/rank_disagreement.py --processes 8 --out ranks.txt

Three jobs: all processes with the same pack; one with a stale pack; one with a stale pack that also comes two seconds
late. ``told`` is the time from the moment at which the last process asked until the last one had its error or answer.
Run from the repository root: it uses the process of the tests.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.runtime.jobs import run_job
from tests.runtime.packbuilder import pack_files, row, sig, write_zip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--out")
    args = parser.parse_args()
    count, stale = args.processes, args.processes - 3
    lines = [f"{count} processes on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"]
    good = True
    with tempfile.TemporaryDirectory() as folder:
        new = write_zip(Path(folder) / "new.atpack", pack_files([row(sig(64), 1)]))
        old = write_zip(Path(folder) / "old.atpack", pack_files([row(sig(64), 2)], version="2025.4"))
        for title, odd, delays in (
            ("the same pack", None, {}),
            ("one stale pack", stale, {}),
            ("one stale pack, two seconds late", stale, {stale: 2.0}),
        ):
            environments = [
                {"XDG_DATA_HOME": folder, "ATTN_TUNE_PACKS": str(old if me == odd else new)} for me in range(count)
            ]
            said, whole = run_job(environments, delays=delays, limit_s=300)
            told = max(one["ended"] for one in said) - max(one["started"] for one in said)
            outcomes = [one.get("error", "answered") for one in said]
            expected = "answered" if odd is None else "DisagreementError"
            good &= outcomes == [expected] * count and (odd is None or told < 1.0)
            lines += [
                f"\n{title}: {outcomes.count(expected)} of {count} processes {expected}, told in {told * 1e3:.0f} ms, "
                f"the whole job took {whole:.1f} s",
                *sorted({one.get("message", "") for one in said} - {""}),
            ]
    text = "\n".join([*lines, "", "as expected" if good else "NOT as expected", ""])
    print(text, end="")
    if args.out:
        Path(args.out).write_text(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
