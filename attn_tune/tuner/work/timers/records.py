"""Split a device's kernel records into the launches they came from.

All launches run on one stream, so the records are in launch order: flush, launch, flush, launch, ... The kernels of the
flush and of each launch were listed beforehand, one by one, so that every record is known by its place and checked by
its name.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_tune.tuner.work.timers.timer import TimerError


@dataclass(frozen=True, slots=True)
class Record:
    """One kernel that ran: its name and how long it was on the device.

    Attributes:
      name: the name of the kernel.
      ns: its time on the device, in nanoseconds.
    """

    name: str
    ns: int


def split_records(records: Sequence[Record], expected: Sequence[Sequence[str]], flush: Sequence[str]) -> list[int]:
    """Nanoseconds per launch: the sum of its kernels' durations, the flush's left out.

    Args:
      expected: for each launch, the names of its kernels in order.
      flush: the names of the flush's kernels, run before each launch.

    Raises:
      TimerError: a record is missing, surplus or out of order.
    """
    want = [name for names in expected for name in (*flush, *names)]
    got = [record.name for record in records]
    if want != got:
        at = next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b), -1)
        detail = f"record {at} is {got[at]!r}, not {want[at]!r}" if at >= 0 else "names agree so far"
        raise TimerError(f"expected {len(want)} kernel records, got {len(got)}; {detail}")
    durations, place = [], 0
    for names in expected:
        place += len(flush)
        durations.append(max(1, sum(r.ns for r in records[place : place + len(names)])))
        place += len(names)
    return durations
