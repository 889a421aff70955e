"""Flash attention beside its peers: one run, one device, interleaved, device time.

    python benchmarks/flash_attention_peers.py --grid peers --out peers.json --markdown peers.md

Every implementation gets the same arrays, is checked against the float32 reference (output and gradients), and takes
its turn in rounds with a cold cache, so that clock drift hits all alike. Printed per implementation: median device
time, TFLOP/s (visible pairs only, backward counted as 2.5 forwards) and the worst error as a multiple of what is
allowed; above one it is wrong, and no peer. ``fwd+bwd`` is one forward and all gradients.

The file is written after each point, and ``--resume`` continues where it ends. A point that was begun twice and ended
with the process is left out; an implementation that lost the device is not run again. ``--shard 0/2`` does every other
point, and ``table.py a.json b.json`` joins what two processes made. Exit status 4: the device was lost, run again with
``--resume``.
"""

import argparse
import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from earlier_tree import not_a_tree
from peers import peers
from peers_inputs import make_case
from peers_race import DeviceLostError, Settings, race_case
from peers_report import KIND, markdown

from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.tuner.plan.grid import GridPoint, load_grid

DEVICE_LOST = 4
_PACKAGES = (
    "jax",
    "jaxlib",
    "triton",
    "tokamax",
    "ejkernel",
    "fa4-jax",
    "flash-attn3-jax",
    "nvidia-cutlass-dsl",
    "nvidia-cudnn-cu12",
    "nvidia-cudnn-cu13",
)
# A point that took the process with it so often is not begun again.
_MOST_BEGUN = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    args = _arguments(arguments)
    points = _points(args)
    if not points:
        print("no grid point matches", file=sys.stderr)
        return 2
    if args.resume and args.out is None:
        print("--resume needs --out", file=sys.stderr)
        return 2
    if args.earlier is not None and (reason := not_a_tree(args.earlier)):
        print(f"--earlier: {reason}", file=sys.stderr)
        return 2
    report = _begin(args)
    settings = Settings(
        directions=args.direction,
        rounds=args.rounds,
        threads=args.threads,
        gradients_up_to=args.gradients_up_to,
    )
    implementations = [
        peer
        for peer in peers(args.ejkernel, xla=args.with_xla, untuned=args.with_untuned, earlier=args.earlier)
        if not args.implementation or any(word in peer.name for word in args.implementation)
    ]
    started = time.monotonic()
    for number, (name, point) in enumerate(points, 1):
        begun = report["begun"].get(name, 0)
        if name in report["seconds"] or begun >= _MOST_BEGUN:
            print(f"{name}: {'done' if name in report['seconds'] else 'left out, begun twice'}")
            continue
        report["begun"][name] = begun + 1
        _save(args, report)
        start = time.monotonic()
        lost = {(x["implementation"], x["direction"]): x["reason"] for x in report["lost"] if x["point"] == name}
        try:
            case = make_case(Problem.from_signature(point.signature))
            report["rows"] += race_case(name, case, implementations, settings, lost, _say)
        except DeviceLostError as error:
            # The one that did it is known, so the point may be begun again.
            report["begun"][name] -= 1
            report["lost"].append(
                {"point": name, "implementation": error.implementation}
                | {"direction": error.direction, "reason": error.reason}
            )
            _save(args, report)
            print(f"{name}: the device was lost by {error}; run again with --resume", flush=True)
            # Threads may still wait for the device.
            os._exit(DEVICE_LOST)
        except Exception as error:  # one point's inputs or answers do not stop the others
            _say(f"\n{name}  failed: {type(error).__name__}: {str(error)[:300]}")
            report["failed"][name] = f"{type(error).__name__}: {str(error)[:300]}"
        report["seconds"][name] = round(time.monotonic() - start, 1)
        _save(args, report)
        took, whole = report["seconds"][name], time.monotonic() - started
        _say(f"  {number} of {len(points)} points, {took} s, {whole:.0f} s in all")
    text = markdown([report["rows"]])
    print(f"\n{text}")
    if args.markdown:
        args.markdown.write_text(text + "\n")
    return 0


def shard(points: Sequence[Any], number: int, count: int) -> list[Any]:
    """Part ``number`` of ``count``. Back and forth, so that what alternates (causal, full) is shared evenly."""
    places = (i % (2 * count) for i in range(len(points)))
    return [point for place, point in zip(places, points, strict=True) if min(place, 2 * count - 1 - place) == number]


def _points(args: argparse.Namespace) -> list[tuple[str, GridPoint]]:
    found = [
        # The preset's own name says nothing here.
        (point.name.removeprefix("peers."), point)
        for name in args.grid
        for point in load_grid(name, lengths=args.lengths).points
        if point.op == "flash_attention"
        if not args.point or any(word in point.name for word in args.point)
    ]
    return shard(found[: args.max_points], *args.shard)


def _begin(args: argparse.Namespace) -> dict[str, Any]:
    """The report so far, or a new one."""
    from attn_tune.devices.environments import current_environment
    from attn_tune.devices.identity import current_device

    device, environment = current_device(), current_environment()
    report = {
        "kind": KIND,
        "device": device.identity,
        "driver": environment.driver,
        "versions": {name: v for name in _PACKAGES if (v := _version(name))},
        "compiler": environment.compiler,
    }
    parts = {"rows": [], "begun": {}, "seconds": {}, "lost": [], "failed": {}}
    if args.resume and args.out.exists():
        before = json.loads(args.out.read_text())
        parts = {name: before.get(name, empty) for name, empty in parts.items()}
    return report | parts


def _save(args: argparse.Namespace, report: dict[str, Any]) -> None:
    if args.out:
        whole = args.out.with_name(f"{args.out.name}.new")
        whole.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
        os.replace(whole, args.out)


def _say(text: str) -> None:
    print(text, flush=True)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def parse_shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} must be NUMBER/COUNT, as in 0/2")
    return int(number), int(count)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--grid", action="append", required=True)
    parser.add_argument("--point", action="append", help="keep points whose name holds this word")
    parser.add_argument("--implementation", action="append", help="keep implementations whose name holds this word")
    parser.add_argument("--lengths", action="append", default=[], help="as attn-tune sweep")
    parser.add_argument("--direction", nargs="+", choices=["fwd", "fwd+bwd"], default=["fwd", "fwd+bwd"])
    parser.add_argument("--max-points", type=int, default=100)
    parser.add_argument("--shard", type=parse_shard, default=(0, 1), help="as in 0/2")
    parser.add_argument("--rounds", type=int, default=Settings.rounds)
    parser.add_argument(
        "--threads",
        type=int,
        default=max(1, min(8, (os.cpu_count() or 2) // 2)),
        help="compilations at a time; default: %(default)s",
    )
    parser.add_argument(
        "--gradients-up-to",
        type=int,
        default=Settings.gradients_up_to,
        help="check gradients of this query length or less; default: %(default)s",
    )
    parser.add_argument("--with-xla", action="store_true", help="time our XLA kernel too")
    parser.add_argument("--with-untuned", action="store_true", help="time our untuned Triton too")
    parser.add_argument(
        "--earlier", type=Path, help="time auto of the earlier version whose package attn_tune is in this folder too"
    )
    parser.add_argument("--ejkernel", choices=["none", "default", "tuned"], default="default")
    parser.add_argument("--resume", action="store_true", help="go on with what --out has")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
