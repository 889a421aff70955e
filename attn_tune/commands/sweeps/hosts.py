"""The devices of a sweep: those of this host, each under its lease, or those of a Ray cluster."""

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from attn_tune.commands.shared import options, output
from attn_tune.schema import StorageError, UsageError

if TYPE_CHECKING:
    from attn_tune.tuner.run.fleet.fleet import Fleet


class ExecutorName(enum.StrEnum):
    """Choices of ``--executor``: ``local`` is this host, ``ray`` the running Ray cluster."""

    LOCAL = "local"
    RAY = "ray"


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The options that choose the devices of a sweep. The help of an option describes its field."""

    panel: ClassVar[str] = "Devices"
    executor: ExecutorName = options.option(
        ExecutorName.LOCAL,
        "--executor",
        "local|ray",
        "Run on this host, or on every device of the running Ray cluster (extra 'ray').",
    )
    devices: str | None = options.option(
        None,
        "--devices",
        "all|0,1",
        "GPUs of this host, by number; each case runs on one. Default: the first.",
    )
    accelerator: str | None = options.option(
        None,
        "--accelerator",
        "TYPE",
        "With --executor ray: only devices of this type, by Ray's name (H200).",
    )
    wait: bool = options.flag("--wait/--no-wait", "Wait for a GPU that another sweep measures on, or fail at once.")
    lease_folder: Path | None = options.option(
        None,
        "--lease-folder",
        "PATH",
        "The folder of the leases, for containers that share GPUs. Default: attn-tune-leases in /tmp.",
    )
    worker_gib: float | None = options.option(
        None,
        "--worker-memory",
        "GIB",
        "Host memory that a worker may take. Default: 80 % of what is available.",
    )

    def __post_init__(self):
        if self.executor is ExecutorName.RAY and self.devices is not None:
            raise UsageError(
                f"--devices {self.devices} is of this host; with --executor ray the cluster says what there is"
            )
        if self.executor is ExecutorName.LOCAL and self.accelerator is not None:
            raise UsageError(f"--accelerator {self.accelerator} needs --executor ray")

    def check_unused(self) -> None:
        """Check that no device is chosen, for a sweep that needs none.

        Raises:
          UsageError: one is.
        """
        if self.executor is not ExecutorName.LOCAL or self.devices is not None:
            raise UsageError("--target compiles on the cores of this host: leave out --executor and --devices")


@contextlib.contextmanager
def open_fleet(hosts: Hosts, cases: int, stop: threading.Event) -> "Iterator[Fleet]":
    """Hold the devices that ``hosts`` names, at most one for each of ``cases``; no other sweep has them meanwhile.

    Raises:
      UsageError: they do not exist.
      StorageError: another sweep measures on one of them.
    """
    from attn_tune.tuner.protocol import Limits

    limits, most = Limits(memory_gib=hosts.worker_gib), max(1, cases)
    if hosts.executor is ExecutorName.RAY:
        from attn_tune.tuner.run.fleet.ray_cluster import ray_fleet

        with ray_fleet(accelerator=hosts.accelerator or "", most=most, limits=limits, interrupt=stop.is_set) as fleet:
            yield fleet
        return
    from attn_tune.tuner.run.compile_ahead import usable_cores
    from attn_tune.tuner.run.executor import IsolatedExecutor
    from attn_tune.tuner.run.fleet import lease
    from attn_tune.tuner.run.fleet.accelerators import accelerators, choose_accelerators
    from attn_tune.tuner.run.fleet.fleet import Fleet

    folder = hosts.lease_folder or lease.lease_folder()
    chosen = choose_accelerators(hosts.devices, accelerators())[:most]
    with contextlib.ExitStack() as held:
        if not chosen:
            is_shared = held.enter_context(_beside_others(folder))
            executor = IsolatedExecutor(limits=limits, interrupt=stop.is_set)
            yield held.enter_context(Fleet([executor], is_shared))
            return
        devices = [(one.key, str(one)) for one in chosen]
        held.enter_context(
            lease.leased(devices, wait=hosts.wait, interrupt=stop.is_set, say=output.note, folder=folder)
        )
        # GPUs that were named are not replaced by a processor.
        insist = hosts.devices is not None
        executors = [
            IsolatedExecutor(
                limits=limits,
                interrupt=stop.is_set,
                cores=usable_cores() // len(chosen),
                environment=one.insisted_environment if insist else one.environment,
            )
            for one in chosen
        ]
        names = [f"GPU {one.index}" for one in chosen]
        yield held.enter_context(Fleet(executors, _never, names))


def _never() -> bool:
    return False


@contextlib.contextmanager
def _beside_others(folder: Path) -> Iterator[Callable[[], bool]]:
    """Announce a sweep on the processor, and give a function that is true while another sweep runs there."""
    from attn_tune.tuner.run.fleet.lease import Lease, Presence

    with contextlib.ExitStack() as held:
        try:
            presence = held.enter_context(Presence("cpu-sweeps", folder))
            holder = held.enter_context(Lease("cpu", folder)).take()
        except StorageError:
            yield _never  # Other sweeps cannot be seen from here.
            return
        if holder:
            output.note(f"another sweep runs on this host, so times may be noisy: {holder}")
        yield lambda: not presence.is_alone
