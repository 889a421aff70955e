"""``sweep --devices`` and ``--executor`` on made-up GPUs: who gets what, under whose lease, and what is refused."""

import importlib.util
import json
import subprocess
import sys

import pytest

from attn_tune.commands.sweeps.hosts import ExecutorName, Hosts
from attn_tune.schema import UsageError
from attn_tune.tuner.run.fleet.accelerators import Accelerator
from tests.cli.fakes import SIGNATURE, FakeExecutor
from tests.cli.test_commands import run

HOLDER = """
import sys, time
from pathlib import Path
from attn_tune.tuner.run.fleet.lease import leased
with leased([(sys.argv[1], "")], folder=Path(sys.argv[2])):
    print("held", flush=True)
    time.sleep(600)
"""
OTHER = SIGNATURE.replace("s=128", "s=256")


class Member(FakeExecutor):
    """Stands for the worker of one GPU."""

    made: list["Member"]

    def __init__(self, *, interrupt, limits=None, environment=None, cores=None):
        super().__init__()
        self.environment = environment
        type(self).made.append(self)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("attn_tune.tuner.run.fleet.lease.lease_folder", lambda: tmp_path / "leases")
    monkeypatch.delenv("ATTN_TUNE_DB", raising=False)
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)


@pytest.fixture
def gpus(monkeypatch):
    """Three of them, of which nothing is known but their names."""
    found = tuple(Accelerator(index=i, key=f"GPU-{i}", environment={"CUDA_VISIBLE_DEVICES": str(i)}) for i in range(3))
    monkeypatch.setattr("attn_tune.tuner.run.fleet.accelerators.accelerators", lambda: found)
    monkeypatch.setattr("attn_tune.tuner.run.executor.IsolatedExecutor", Member)
    monkeypatch.setattr(Member, "made", [], raising=False)
    return Member.made


@pytest.fixture
def held(request, tmp_path):
    """Another process holds the lease of the device that the test names."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, request.param, tmp_path / "leases"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def sweep(tmp_path, *words):
    common = ("-g", SIGNATURE, "-g", OTHER, "-k", "xla", "--op", "flash_attention")
    return run("sweep", *common, "--db", tmp_path / "lab.db", *words)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ((), ["0"]),
        (("--devices", "2"), ["2"]),
        (("--devices", "1,0"), ["1", "0"]),
        (("--devices", "all"), ["0", "1", "2"]),
    ],
    ids=str,
)
def test_each_gpu_gets_a_worker_that_sees_it_alone(gpus, tmp_path, words, shown):
    result = sweep(tmp_path, *words, "--json")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["ending"] == "finished"
    assert not answer["without_valid_config"]
    assert [member.environment["CUDA_VISIBLE_DEVICES"] for member in gpus] == shown
    # Who named GPUs is not given a processor instead.
    assert {"JAX_PLATFORMS" in member.environment for member in gpus} == {bool(words)}
    assert sum(len(member.ran) for member in gpus) + answer["tried_before"] > 0
    again = json.loads(sweep(tmp_path, *words, "--json").stdout)
    assert (again["trials"], again["tried_before"]) == (0, sum(len(m.ran) for m in gpus))


def test_no_more_devices_than_cases(gpus, tmp_path):
    result = run(
        *("sweep", "-g", SIGNATURE, "-k", "xla", "-d", "fwd", "--op", "flash_attention"),
        *("--devices", "all", "--db", tmp_path / "lab.db"),
    )
    assert result.exit_code == 0, result.stderr
    assert len(gpus) == 1


@pytest.mark.parametrize("held", ["GPU-1"], indirect=True)
def test_a_gpu_of_another_sweep_is_refused_and_its_holder_named(gpus, held, tmp_path):
    result = sweep(tmp_path, "--devices", "all")
    assert result.exit_code == 4
    assert f"GPU 1 (GPU-1) is in use by process {held.pid}" in result.stderr
    assert not gpus
    assert sweep(tmp_path, "--devices", "0,2").exit_code == 0
    held.kill()
    assert sweep(tmp_path, "--devices", "1", "--wait").exit_code == 0


@pytest.mark.parametrize("held", ["cpu"], indirect=True)
def test_two_sweeps_on_a_processor_are_warned_about(gpus, held, monkeypatch, tmp_path):
    monkeypatch.setattr("attn_tune.tuner.run.fleet.accelerators.accelerators", lambda: ())
    result = sweep(tmp_path)
    assert result.exit_code == 0
    assert f"times may be noisy: process {held.pid}" in result.stderr


def errors():
    ray = ("--executor", "ray")
    return {
        "no such gpu": (("--devices", "3"), "there is no GPU '3'; there are 0, 1, 2, or 'all'"),
        "devices of a cluster": ((*ray, "--devices", "all"), "--devices all is of this host"),
        "type of a host": (("--accelerator", "H200"), "needs --executor ray"),
        "no such executor": (("--executor", "slurm"), "slurm"),
        "no ray": (ray, "install attn-tune with its extra 'ray'"),
    }


@pytest.mark.parametrize("name", errors())
def test_devices_that_cannot_be_had_are_a_usage_error(gpus, monkeypatch, tmp_path, name):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda n, *a: None if n == "ray" else find_spec(n, *a))
    words, message = errors()[name]
    result = sweep(tmp_path, *words)
    assert result.exit_code == 2, result.stderr
    assert message in result.stderr
    assert not gpus
    assert not (tmp_path / "lab.db").exists()


def test_a_host_without_gpus_has_no_devices_to_choose(monkeypatch, tmp_path):
    monkeypatch.setattr("attn_tune.tuner.run.fleet.accelerators.accelerators", lambda: ())
    result = sweep(tmp_path, "--devices", "all")
    assert result.exit_code == 2
    assert "this host has no GPU" in result.stderr


def test_a_where_condition_is_checked_before_a_file_is_opened():
    with pytest.raises(UsageError):
        Hosts(executor=ExecutorName.RAY, devices="0")
