"""Host memory: limits read from made-up systems, and real processes that are counted."""

import os
import subprocess
import sys
import types

import psutil
import pytest

from attn_tune.schema.errors import UsageError
from attn_tune.tuner.run.memory import (
    GIB,
    SHARE,
    MemoryWatch,
    available_bytes,
    memory_limit,
    oom_kills,
)

MACHINE = 16 * GIB
V2 = {
    "proc/self/cgroup": "0::/job/worker\n",
    "sys/fs/cgroup/job/memory.max": f"{8 * GIB}\n",
    "sys/fs/cgroup/job/memory.current": f"{6 * GIB}\n",
    "sys/fs/cgroup/job/memory.stat": f"anon 1\ninactive_file {GIB}\n",
    "sys/fs/cgroup/job/worker/memory.max": "max\n",
    "sys/fs/cgroup/job/worker/memory.current": "5\n",
    "sys/fs/cgroup/job/worker/memory.events": "low 0\noom 4\noom_kill 3\n",
}
V1 = {
    "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/host/path\n0::/\n",
    "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 * GIB}\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GIB}\n",
    "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {2 * GIB}\n",
    "sys/fs/cgroup/memory/memory.oom_control": "under_oom 0\noom_kill 2\n",
}


@pytest.fixture
def system(monkeypatch, tmp_path):
    """Makes the root of a system from its files."""
    memory = types.SimpleNamespace(available=MACHINE)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)

    def make(*groups):
        for files in groups:
            for name, text in files.items():
                path = tmp_path / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        return tmp_path

    return make


@pytest.mark.parametrize(
    ("groups", "gib"),
    [
        pytest.param([], 16, id="machine"),
        pytest.param([V2], 3, id="v2: an outer cgroup is the tightest"),
        pytest.param([V1], 3, id="v1: seen from in a container"),
    ],
)
def test_the_tightest_room_counts(system, groups, gib):
    root = system(*groups)
    assert available_bytes(root) == gib * GIB
    assert memory_limit(root=root) == int(SHARE * gib * GIB)


def test_kills_without_a_counter_are_unknown(system):
    assert oom_kills(system()) is None


@pytest.mark.parametrize(("groups", "kills"), [([V2], 3), ([V1], 2), ([], 7)])
def test_kills_are_read_from_the_cgroup_or_the_machine(system, groups, kills):
    assert oom_kills(system({"proc/vmstat": "pgfault 1\noom_kill 7\n"}, *groups)) == kills


def test_the_limit_can_be_given(system):
    assert memory_limit(1.5, system()) == 3 * GIB // 2
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(UsageError, match="GiB above 0"):
            memory_limit(wrong, system())


GROUP = """
import os, sys, time
held = b"x" * (int(sys.argv[1]) << 20)
started, say = os.pipe()


def child():
    more = b"y" * (64 << 20)
    os.write(say, b".")
    time.sleep(600)


{fork}
print("ready", flush=True)
time.sleep(600)
"""
CHILDREN = {
    "none": "",
    "own": "if os.fork() == 0: child()\nos.read(started, 1)",
    "orphan": "if os.fork() == 0:\n  if os.fork() == 0: child()\n  os._exit(0)\nos.wait()\nos.read(started, 1)",
}


@pytest.mark.parametrize(("child", "least", "most"), [("none", 100, 160), ("own", 160, 240), ("orphan", 160, 240)])
def test_a_group_is_counted_once(child, least, most):
    """One hundred mebibytes that a fork shares with its parent count once."""
    process = subprocess.Popen(
        [sys.executable, "-c", GROUP.format(fork=CHILDREN[child]), "100"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        used = MemoryWatch(process.pid, least << 20).excess()
        assert used is not None
        assert MemoryWatch(process.pid, most << 20).excess() is None
        assert least << 20 < used < most << 20
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()
