"""Tables of rows of several files of serving, by point: ours, the peers, and our speed over the best right peer."""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from attn_tune.schema.errors import UsageError

# What the files call our own: the first of these that a point has is what a user gets.
_OURS = ("auto", "cascade")
# Our other kernels and configs, the parts of a call, and what only reads or copies as many bytes.
_NO_PEER = {"xla", "cudnn", "triton", "triton_hopper", "one_launch", "small_tile", "own_contiguous"} | {
    *("whole", "groups", "ragged", "prefix", "own", "merge", "read", "copy")
}
# On such a cache there is no table to follow: shown, and no peer.
_CONTIGUOUS = "contiguous"

# Microseconds and errors by what is called.
type Point = tuple[dict[str, float], dict[str, float]]


def markdown(reports: Iterable[Mapping[str, Any]]) -> str:
    """A table for each grid of all points that our own file and another have, and the geometric mean of the speeds.

    A peer whose error is above what is allowed is shown as wrong and is no best one, nor is one on a contiguous cache.

    Raises:
      UsageError: the files are of different devices, or have no point in common.
    """
    reports = list(reports)
    devices = {report["versions"]["device"] for report in reports}
    if len(devices) != 1:
        raise UsageError(f"the files are of different devices: {', '.join(sorted(devices))}; join those of one")
    files: dict[str, int] = {}
    grids: dict[str, dict[str, Point]] = {}
    for row in (row for report in reports for row in report["rows"]):
        name = row["point"]
        files[name] = files.get(name, 0) + 1
        # The points of cascades have no grid.
        grid = name.partition(".")[0] if "." in name else "cascade"
        times, errors = grids.setdefault(grid, {}).setdefault(name, ({}, {}))
        times |= row["us"]
        errors |= row["error_ratio"]
    parts = []
    for grid, points in grids.items():
        joined = {name: point for name, point in points.items() if files[name] > 1 and _own(point[0])}
        parts += [_table(grid, joined)] if joined else []
    if not parts:
        raise UsageError("no point is in a file of ours and in one of peers; join serving.json and torch.json, say")
    return "\n\n".join(parts)


def _table(grid: str, points: Mapping[str, Point]) -> str:
    names = list(dict.fromkeys(n for times, _ in points.values() for n in times if n not in (*_OURS, *_NO_PEER)))
    lines = [f"| {' | '.join([grid, 'ours, us', *names, 'best peer', 'speed'])} |", "|---" * (len(names) + 4) + "|"]
    speeds = []
    for point, (times, errors) in points.items():
        own = times[_own(times)]
        right = {n: times[n] for n in names if n in times and errors[n] <= 1 and _CONTIGUOUS not in n}
        best = min(right, key=right.__getitem__, default="")
        speed = right[best] / own if best else None
        speeds += [speed] if speed else []
        cells = [f"{times[n]:.2f}{' wrong' if errors[n] > 1 else ''}" if n in times else "" for n in names]
        cells = [point.removeprefix(f"{grid}."), f"{own:.2f}", *cells, best, f"{speed:.2f}" if speed else ""]
        lines.append(f"| {' | '.join(cells)} |")
    if speeds:
        least, mean, most = min(speeds), statistics.geometric_mean(speeds), max(speeds)
        lines.append(
            f"\nOurs is {mean:.2f} times as fast as the best right peer over pages "
            f"(geometric mean of {len(speeds)} rows, {least:.2f} to {most:.2f})."
        )
    return "\n".join(lines)


def _own(times: Mapping[str, float]) -> str:
    return next((name for name in _OURS if name in times), "")
