"""Host memory: how much a worker may take, how much it takes, and whether the kernel's OOM killer was here.

Limits of cgroups and the count of the OOM killer are Linux's. Limits on address space are no way out, because jax
reserves far more than it uses.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from attn_tune.schema.errors import UsageError

# The sweep, the page cache and other processes need some too.
SHARE = 0.8
GIB = 1 << 30

_ROOT = Path("/")


def memory_limit(given_gib: float | None = None, root: Path = _ROOT) -> int:
    """Bytes that a worker and its children may take together.

    ``given_gib``, else ``SHARE`` of what is available now.

    Raises:
      UsageError: the number is not positive.
    """
    if given_gib is not None:
        if not 0 < given_gib < float("inf"):
            raise UsageError(f"the memory of a worker must be a number of GiB above 0, got {given_gib:g}")
        return int(given_gib * GIB)
    return int(SHARE * available_bytes(root))


def available_bytes(root: Path = _ROOT) -> int:
    """The bytes that can be taken without swapping, by the machine and by the cgroups (v1, v2) around this process."""
    rooms = [room for folder in _cgroups(root) if (room := _room(folder)) is not None]
    return min([psutil.virtual_memory().available, *rooms])


def oom_kills(root: Path = _ROOT) -> int | None:
    """Count the strikes of the OOM killer: in this process's cgroup where that counts them, else on the machine."""
    for folder in _cgroups(root):
        for name in ("memory.events", "memory.oom_control"):
            if (count := _fields(folder / name).get("oom_kill")) is not None:
                return count
    return _fields(root / "proc/vmstat").get("oom_kill")


@dataclass
class MemoryWatch:
    """Watches the process group of ``leader``. The leader is looked at each time, its children every few times.

    ``limit`` is in bytes.

    Attributes:
      turns: the children are read once in so many times.
    """

    leader: int
    limit: int
    turns: int = 10
    _turn: int = 0
    _children: int = 0

    def excess(self) -> int | None:
        """The bytes in use if they are above the limit, else None."""
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
    """The processes in the group ``leader``; also those whose parent has died."""
    found = set()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):  # It has ended.
            if os.getpgid(pid) == leader:
                found.add(pid)
    return found


def _resident(pid: int) -> int:
    with contextlib.suppress(psutil.Error):  # It has ended.
        return psutil.Process(pid).memory_info().rss
    return 0


def _proportional(pid: int) -> int:
    with contextlib.suppress(psutil.Error, AttributeError):  # Only Linux shares them out.
        return psutil.Process(pid).memory_full_info().pss
    return _resident(pid)


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
