"""Make a grid of the lookups that production missed: the spools of ``ATTN_TUNE_ON_MISS=record``."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attn_tune.ops.registry import get_op
from attn_tune.runtime.miss_spool import BadLine, SpoolLine, read_lines, spool_files
from attn_tune.schema.errors import NoDataError, StorageError, UsageError, unknown_name
from attn_tune.tuner.plan.case import GridPoint, merge_points
from attn_tune.tuner.plan.grid import Grid


@dataclass(frozen=True, kw_only=True, slots=True)
class MissRow:
    """One missed key over all processes.

    Attributes:
      op: the op's name.
      direction: one of its directions.
      signature: the text of the problem.
      device: the identity of the device that asked.
      nearest: the nearest row that a pack had, in words.
      count: lookups of all processes.
      processes: how many asked.
      first: when it was first missed, in Unix seconds.
      last: when it was last missed, in Unix seconds.
    """

    op: str
    direction: str
    signature: str
    device: str
    nearest: str
    count: int
    processes: int
    first: int
    last: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Spool:
    """The content of a spool.

    Attributes:
      files: the files that were read.
      rows: the keys, most asked first.
      bad: the lines that could not be read.
    """

    files: tuple[Path, ...]
    rows: tuple[MissRow, ...]
    bad: tuple[BadLine, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that missed."""
        return tuple(sorted({row.device for row in self.rows}))


def read_spool(path: Path) -> Spool:
    """Read the spool file or folder at ``path``; an absent one is empty. Bad lines are returned, not raised.

    Raises:
      StorageError: a file is there but cannot be read.
    """
    files = spool_files(path)
    lines: list[SpoolLine] = []
    bad: list[BadLine] = []
    for file in files:
        try:
            for line in read_lines(file):
                (bad if isinstance(line, BadLine) else lines).append(line)  # type: ignore[arg-type]
        except OSError as error:
            raise StorageError(f"spool {file}: cannot be read: {error.strerror}") from None
    return Spool(files=files, rows=_rows(lines), bad=tuple(bad))


def _rows(lines: Iterable[SpoolLine]) -> tuple[MissRow, ...]:
    asked: dict[tuple[str, str, str, str], list[SpoolLine]] = {}
    for line in lines:
        key = (line.op, line.direction, line.signature, line.device)
        asked.setdefault(key, []).append(line)
    rows = []
    for (op, direction, signature, device), found in asked.items():
        # A process writes its count again as it grows: the largest is what it asked.
        counts: dict[str, int] = {}
        for line in found:
            counts[line.process] = max(line.count, counts.get(line.process, 0))
        rows.append(
            MissRow(
                op=op,
                direction=direction,
                signature=signature,
                device=device,
                nearest=next((line.nearest for line in reversed(found) if line.nearest), ""),
                count=sum(counts.values()),
                processes=len(counts),
                first=min(line.time for line in found),
                last=max(line.time for line in found),
            )
        )
    return tuple(sorted(rows, key=lambda r: (-r.count, r.signature, r.direction, r.device)))


def grid_of_misses(
    spool: Spool, name: str, *, device: str | None = None, where: str = ""
) -> tuple[Grid, tuple[str, ...]]:
    """Make a grid of the missed problems of one device, and sentences about those that cannot be tuned here.

    Args:
      where: the folder or file that was read, for the error.

    Raises:
      NoDataError: nothing was missed.
      UsageError: several devices missed and ``device`` does not say which, or it is none of them.
    """
    if not spool.rows:
        there = f" in {where}" if where else ""
        raise NoDataError(
            f"no miss is recorded{there}; run the job with ATTN_TUNE_ON_MISS=record, 'attn-tune lab misses' then shows "
            "them"
        )
    if device is not None and device not in spool.devices:
        raise unknown_name("device that missed", device, spool.devices)
    if device is None and len(spool.devices) > 1:
        raise UsageError(f"several devices missed ({', '.join(spool.devices)}); say which with --missed-on")
    points, refused = [], []
    for row in spool.rows:
        if device not in (None, row.device):
            continue
        try:
            op = get_op(row.op)
            signature = op.parse_signature(row.signature)
            op.from_signature(signature)
            if row.direction not in op.directions:
                raise UsageError(f"{row.op} has no direction {row.direction!r}")
        except UsageError as error:
            refused.append(f"{row.signature} {row.direction}: {error}")
            continue
        points.append(
            GridPoint(
                name=f"{name}.{len(points) + 1}",
                op=op.name,
                signature=signature,
                source=f"missed on {row.device}",
                directions=(row.direction,),
                calls=row.count,
            )
        )
    merged = merge_points(points)
    if not merged:
        raise NoDataError(f"no recorded miss can be tuned by this installation: {refused[0]}")
    grid = Grid(name=name, summary="problems that production missed", source="", points=merged)
    return grid, tuple(refused)
