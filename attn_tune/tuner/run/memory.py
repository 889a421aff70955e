"""Host memory: how much a worker may take, how much it takes, and whether the kernel's OOM killer was here.

Linux only. Elsewhere nothing is watched: address-space limits are no way out, because jax reserves far more than it
uses. psutil would add a dependency and still know neither cgroups nor process groups, whose members stay known when the
one in between has died.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attn_tune.schema.errors import UsageError

# The sweep, the page cache and whoever else is there need some too.
SHARE = 0.8
GIB = 1 << 30

_ROOT = Path("/")


def memory_limit(given_gib: float | None = None, root: Path = _ROOT) -> int | None:
    """Bytes that a worker and its children may take together; None where it cannot be known.

    ``given_gib``, else ``SHARE`` of what is available now.

    Raises:
      UsageError: the number is not positive.
    """
    if given_gib is not None:
        if not 0 < given_gib < float("inf"):
            raise UsageError(
                f"the memory of a worker must be a number of GiB above 0, got {given_gib:g}"
            )
        return int(given_gib * GIB)
    available = available_bytes(root)
    return None if available is None else int(SHARE * available)


def available_bytes(root: Path = _ROOT) -> int | None:
    """The bytes that can be taken without swapping, by the machine and by the cgroups (v1, v2) around this process."""
    machine = _fields(root / "proc/meminfo").get("MemAvailable:")
    rooms = [] if machine is None else [machine * 1024]
    rooms += [room for folder in _cgroups(root) if (room := _room(folder)) is not None]
    return min(rooms, default=None)


def oom_kills(root: Path = _ROOT) -> int | None:
    """Counts the strikes of the OOM killer: in this process's cgroup where that is told, else on the machine."""
    for folder in _cgroups(root):
        for name in ("memory.events", "memory.oom_control"):
            if (count := _fields(folder / name).get("oom_kill")) is not None:
                return count
    return _fields(root / "proc/vmstat").get("oom_kill")


@dataclass
class MemoryWatch:
    """Watches the process group of ``leader``. The leader is looked at each time, its children every few times.

    ``limit`` is in bytes; None watches nothing.
    """

    leader: int
    limit: int | None
    turns: int = 10
    _turn: int = 0
    _children: int = 0

    def excess(self) -> int | None:
        """The bytes in use if they are above the limit, else None."""
        if self.limit is None:
            return None
        if self._turn % self.turns == 0:
            self._children = sum(_resident(pid) for pid in _group(self.leader) - {self.leader})
        self._turn += 1
        if _resident(self.leader) + self._children <= self.limit:
            return None
        # Pages that a fork shares were counted for each process; the slower count is right.
        used = sum(_proportional(pid) for pid in _group(self.leader))
        return used if used > self.limit else None


def gib(count: int) -> str:
    """``count`` bytes in GiB, for reading."""
    return f"{count / GIB:.1f} GiB"


def _group(leader: int) -> set[int]:
    """The processes in the group ``leader``."""
    found = set()
    for pid in _pids():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue  # It has ended.
        # The name in parentheses may hold anything, so count from behind it: state, parent, group.
        if int(stat.rpartition(")")[2].split()[2]) == leader:
            found.add(pid)
    return found


def _pids() -> Iterator[int]:
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    yield from (int(name) for name in names if name.isdigit())


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0  # It has ended, or nobody tells.
    return pages * os.sysconf("SC_PAGE_SIZE")


def _proportional(pid: int) -> int:
    share = _fields(Path(f"/proc/{pid}/smaps_rollup")).get("Pss:")
    return _resident(pid) if share is None else share * 1024


def _cgroups(root: Path) -> Iterator[Path]:
    """The folders of the memory cgroups around this process, the innermost first."""
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            mount = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
        else:
            continue
        folder = mount / path.strip("/")
        # In a container the path may be the host's, and the mount its end.
        yield from (f for f in (folder, *folder.parents) if f.is_relative_to(mount) and f.is_dir())


def _room(folder: Path) -> int | None:
    """The bytes left under the limit of one cgroup; None without one. Cached files give way, so they count as free."""
    for limit_name, used_name, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, used = _number(folder / limit_name), _number(folder / used_name)
        if limit is not None and used is not None:
            return max(0, limit - used + _fields(folder / "memory.stat").get(cached, 0))
    return None


def _number(path: Path) -> int | None:
    """The number in a file; None for ``max`` and where there is no such file."""
    lines = _lines(path)
    return int(lines[0]) if lines and lines[0].strip().isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """The lines ``name number`` of a file."""
    fields = (line.split() for line in _lines(path))
    return {f[0]: int(f[1]) for f in fields if len(f) >= 2 and f[1].isdigit()}


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []  # Not this kind of system, or not for us to see.
