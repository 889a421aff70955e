"""Where a sweep runs: the devices of this host, each under its lease, or those of a Ray cluster."""

import contextlib
import enum
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from attn_tune.commands.shared import output
from attn_tune.schema import StorageError, UsageError

if TYPE_CHECKING:
    from attn_tune.tuner.accelerators import Accelerator
    from attn_tune.tuner.fleet import Fleet


class ExecutorName(enum.StrEnum):
    """Choices of ``--executor``."""

    LOCAL = "local"
    RAY = "ray"


Executor = Annotated[
    ExecutorName,
    typer.Option(
        "--executor",
        metavar="local|ray",
        help="Where to run: on this host, or on every device of the running Ray cluster (extra 'ray').",
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        metavar="all|0,1",
        help="GPUs of this host, by number; each case runs on one. Default: the first.",
    ),
]
AcceleratorType = Annotated[
    str | None,
    typer.Option(
        "--accelerator",
        metavar="TYPE",
        help="With --executor ray: only devices of this type, by Ray's name (H200).",
    ),
]
Wait = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait", help="Wait for a GPU that another sweep measures on, or fail at once."
    ),
]


@dataclass(frozen=True, kw_only=True)
class Where:
    """What the options say. ``cases`` is how many there are at most: more devices than that are not taken."""

    executor: ExecutorName = ExecutorName.LOCAL
    devices: str | None = None
    accelerator: str | None = None
    wait: bool = False
    cases: int = 1

    def __post_init__(self):
        if self.executor is ExecutorName.RAY and self.devices is not None:
            raise UsageError(
                f"--devices {self.devices} is of this host; with --executor ray the cluster says what there is"
            )
        if self.executor is ExecutorName.LOCAL and self.accelerator is not None:
            raise UsageError(f"--accelerator {self.accelerator} needs --executor ray")


@contextlib.contextmanager
def open_fleet(where: Where, stop: threading.Event) -> "Iterator[Fleet]":
    """The devices that ``where`` names; they are nobody else's meanwhile.

    Raises:
      UsageError: they do not exist.
      StorageError: another sweep measures on one of them.
    """
    if where.executor is ExecutorName.RAY:
        from attn_tune.tuner.ray_cluster import ray_fleet

        with ray_fleet(
            accelerator=where.accelerator or "", most=where.cases, interrupt=stop.is_set
        ) as fleet:
            yield fleet
        return
    from attn_tune.tuner.accelerators import accelerators, choose_accelerators
    from attn_tune.tuner.fleet import Fleet
    from attn_tune.tuner.lease import leased

    chosen = choose_accelerators(where.devices, accelerators())[: max(1, where.cases)]
    with contextlib.ExitStack() as held:
        is_shared = _never
        if chosen:
            devices = [(one.key, str(one)) for one in chosen]
            held.enter_context(
                leased(devices, wait=where.wait, interrupt=stop.is_set, say=output.note)
            )
        else:
            is_shared = held.enter_context(_beside_others())
        executors = _executors(chosen, where.devices is not None, stop)
        yield held.enter_context(Fleet(executors, is_shared))


def _executors(chosen: "tuple[Accelerator, ...]", insist: bool, stop: threading.Event):
    """One for each GPU, or one for what else there is. Who named GPUs does not get a processor instead."""
    from attn_tune.tuner.ahead import usable_cores
    from attn_tune.tuner.executor import IsolatedExecutor

    if not chosen:
        return [IsolatedExecutor(interrupt=stop.is_set)]
    return [
        IsolatedExecutor(
            interrupt=stop.is_set,
            cores=usable_cores() // len(chosen),
            environment=one.insisted_environment if insist else one.environment,
        )
        for one in chosen
    ]


def _never() -> bool:
    return False


@contextlib.contextmanager
def _beside_others() -> Iterator[Callable[[], bool]]:
    """A function that says whether another sweep runs on the processor, which no sweep can have for itself."""
    from attn_tune.tuner.lease import Lease, Presence, lease_folder

    folder = lease_folder()
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
