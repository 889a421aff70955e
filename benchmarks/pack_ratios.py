"""Time ratios of two kernels in a pack: the times of both, problem by problem, and the geometric means.

    python benchmarks/pack_ratios.py attn_tune/packs/shipped/nvidia-h200 triton_hopper cudnn > hopper_over_cudnn.md

Both kernels of a problem were raced in one final if the pack was exported from one sweep; those of a pack that was
merged from several may not have been. Means are by head dim, over plain problems: without segments, window, soft cap,
sinks, bias or dropout. Needs no GPU.
"""

import argparse
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.registry import get_op
from attn_tune.packs.reader import read_pack


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack", type=Path)
    parser.add_argument("kernel")
    parser.add_argument("other")
    parser.add_argument("--direction", choices=("fwd", "bwd"), default="fwd")
    args = parser.parse_args()
    op = get_op("flash_attention")
    times: dict[str, dict[str, int]] = defaultdict(dict)
    for row in read_pack(args.pack).rows:
        if row.op == "flash_attention" and row.direction == args.direction:
            times[row.signature][row.kernel] = row.median_ns
    both = {s: t for s, t in times.items() if args.kernel in t and args.other in t}
    if not both:
        print(
            f"error: no problem of {args.pack} has both {args.kernel} and {args.other}",
            file=sys.stderr,
        )
        return 2
    print(f"| problem | {args.kernel}, us | {args.other}, us | speed |\n|---|---|---|---|")
    means: dict[int, list[float]] = defaultdict(list)
    for signature, t in sorted(both.items()):
        ratio = t[args.other] / t[args.kernel]
        problem = op.from_signature(op.parse_signature(signature))
        if _is_plain(problem):
            means[problem.head_dim].append(ratio)
        text = signature.partition(" ")[2]
        print(f"| {text} | {t[args.kernel] / 1e3:.0f} | {t[args.other] / 1e3:.0f} | {ratio:.3f} |")
    print()
    for head_dim, ratios in sorted(means.items()):
        mean, least = statistics.geometric_mean(ratios), min(ratios)
        print(f"- plain, head dim {head_dim}: {mean:.3f} over {len(ratios)} problems, least {least:.3f}")
    return 0


def _is_plain(problem: Problem) -> bool:
    values = (problem.bias_dims, problem.mask_dims, problem.soft_cap, *problem.window)
    flags = (problem.has_segments, problem.has_sinks, problem.dropout_rate > 0)
    return not any(flags) and all(value is None for value in values)


if __name__ == "__main__":
    sys.exit(main())
