"""The planted-fault battery on real worker processes: every fault named rightly, no neighbour harmed."""

import contextlib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from attn_tune.schema.errors import StorageError
from attn_tune.tuner.protocol import Limits
from attn_tune.tuner.run import executor as executor_module
from attn_tune.tuner.run.process import WorkerProcess
from tests.chosen import exhaustive, values_asked_for
from tests.patience import until
from tests.planted.planted_battery import FAULTS, PatientExecutor, request, run_battery

LANES = 2
# Each costs two workers and is seen as another one is: a fault of the processor, an exit, a lack of memory, a program
# that does not end.
ALIKE = {
    *("abort_in_run", "sys_exit_in_trace", "exit_in_trace", "loop_in_compile", "memory_error", "illegal_access"),
    *("hang_in_compile", "out_of_memory"),
}
ROWS = [fault for fault in FAULTS if "cpu" in fault.platforms]
NAMES = [exhaustive(f.name) if f.name in ALIKE else f.name for f in ROWS]
# More than a worker needs, less than an eater takes.
WORKER = Limits(memory_gib=1.5)
ENVIRONMENT = {"PLANTED_GIB": str(WORKER.memory_gib), "JAX_PLATFORMS": "cpu"}

pytestmark = pytest.mark.slow


@dataclass
class Battery:
    """Results by fault, and the workers that were started for each lane."""

    results: dict = field(default_factory=dict)
    workers: list[int] = field(default_factory=list)
    expected_workers: list[int] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    run_ids: list[str] = field(default_factory=list)


@contextlib.contextmanager
def counted_workers(monkeypatch) -> Iterator[list[WorkerProcess]]:
    started = []

    class Counted(WorkerProcess):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(executor_module, "WorkerProcess", Counted)
    yield started


@pytest.fixture(scope="module")
def battery(request, planted, point, device) -> Battery:
    """Every row, in a few executors at once, for most of the time is spent waiting; ``ALIKE`` only if asked for."""
    battery = Battery()

    def run_lane(faults) -> None:
        run_id = uuid.uuid4().hex
        battery.run_ids.append(run_id)
        with PatientExecutor(environment={**ENVIRONMENT, "PLANTED_RUN": run_id}, limits=WORKER) as executor:
            for result in run_battery(executor, faults, point.signature, device):
                battery.results[result.fault.name] = result
                if result.fault.name == "child_stays":
                    mine = str(executor.worker_pid)
                    battery.strays = [pid for pid in processes_of(run_id) if pid != mine]
        battery.expected_workers.append(1 + sum(fault.lost for fault in faults))

    asked = values_asked_for(request, "name")
    rows = [fault for fault in ROWS if fault.name in asked or fault.name not in ALIKE]
    lanes = [rows[i::LANES] for i in range(LANES)]
    with pytest.MonkeyPatch.context() as patch, counted_workers(patch) as started:
        with ThreadPoolExecutor(LANES) as pool:
            list(pool.map(run_lane, lanes))
        battery.workers.append(len(started))
    return battery


def processes_of(run_id: str) -> list[str]:
    """The processes whose environment names the run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if run_id.encode() in path.read_bytes():
                found.append(path.parent.name)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_each_fault_is_named_and_harms_no_other_config(battery, name):
    result = battery.results[name]
    assert result.outcome.status is result.fault.status, result.outcome.reason
    assert result.fault.words in result.outcome.reason
    assert result.harmless, (result.before.reason, result.after.reason)


def test_no_worker_is_lost_for_nothing(battery):
    assert sum(battery.workers) == sum(battery.expected_workers)


def test_children_do_not_outlive_their_worker(battery):
    assert battery.strays
    # They were killed; a busy machine takes a while to end them.
    until(lambda: not any(map(processes_of, battery.run_ids)))


def test_a_full_disk_stops_the_sweep_and_blames_no_config(planted, point, device):
    with PatientExecutor(environment=ENVIRONMENT, limits=WORKER) as executor:
        with pytest.raises(StorageError, match="the disk is full") as caught:
            executor.run(request(point.signature, device, "disk_full"))
        assert caught.value.exit_code == 4
