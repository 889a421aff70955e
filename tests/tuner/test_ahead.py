"""Compiling ahead: that the worker finds what a helper compiled, and that no helper's fate is the sweep's."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from attn_tune.kernels.flash_attention.problem import Problem
from attn_tune.kernels.registry import get_kernel
from attn_tune.schema.config import config_to_dict
from attn_tune.schema.device import Device
from attn_tune.tuner import ahead
from attn_tune.tuner.ahead import CompileAhead, helper_count
from attn_tune.tuner.process import WorkerDied
from attn_tune.tuner.protocol import ConfigRef

ROOT = Path(__file__).parents[2]
H200 = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)
TPU = Device(platform="tpu", family="v5e", variant="tpu-v5e", units=1)
PROBLEM = Problem(
    batch=1,
    q_len=100,
    kv_len=70,
    num_q_heads=2,
    num_kv_heads=1,
    head_dim=32,
    v_head_dim=32,
    causal=True,
    dtype="bfloat16",
    has_segments=True,
    bias_dims="1nts",
)

# As the worker does it, but on a target that is named: real inputs, and its own count of what was compiled.
WORKER = """
import pickle, sys
import jax
from triton import knobs
from attn_tune.kernels._common.triton_target import compile_target
from attn_tune.kernels.registry import get_op
from attn_tune.kernels.spec import load
from attn_tune.tuner.compile import part_function

knobs.compilation.listener = lambda src, cache_hit, **_: print("BUILD", src.name, cache_hit)
for ref in pickle.load(sys.stdin.buffer):
    op = get_op(ref.signature.op)
    problem = op.from_signature(ref.signature)
    inputs = load(op.inputs)(problem, ref.direction, 1)
    with compile_target(90):
        jax.jit(part_function(ref, problem)).trace(inputs).lower(lowering_platforms=("cuda",))
"""


def ref_of(direction: str, part: str = "", kernel: str = "flash_attention/triton", **changes):
    search = get_kernel(kernel).searches[direction]
    config = config_to_dict(search.heuristic(PROBLEM, H200))
    return ConfigRef(
        kernel=kernel,
        signature=PROBLEM.signature,
        direction=direction,
        config={**config, **changes},
        part=part,
    )


def until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


@pytest.fixture
def compile_ahead():
    made = []

    def make(**kwargs) -> CompileAhead:
        made.append(CompileAhead(**kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def clean_environment(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("TRITON_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


class Helpers:
    """In the place of helper processes; ``go`` lets them work, and ``fate`` is asked about each config."""

    def __init__(self):
        self.jobs, self.killed, self.started = [], 0, 0
        self.go = threading.Event()
        self.fate = lambda job: ""

    def __call__(self, environment, module):
        self.started += 1
        return self

    def send(self, job):
        self.jobs.append(job)

    def receive(self, timeout_s, interrupt):
        while not self.go.wait(0.01):
            if interrupt():
                raise InterruptedError
        return self.fate(self.jobs[-1])

    def kill(self):
        self.killed += 1


@pytest.fixture
def helpers(monkeypatch):
    helpers = Helpers()
    monkeypatch.setattr(ahead, "WorkerProcess", helpers)
    return helpers


@pytest.mark.parametrize(
    ("device", "cores", "count"),
    [(H200, 2, 0), (H200, 3, 1), (H200, 16, 14), (H200, 96, 16), (TPU, 96, 0)],
)
def test_how_many_helpers(device, cores, count):
    assert helper_count(device, cores) == count


def test_no_helpers_without_triton(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert helper_count(H200, 16) == 0


def test_a_worker_finds_what_a_helper_compiled(compile_ahead, clean_environment):
    import pickle

    tile = {"block_q": 32, "block_k": 32, "num_warps": 2, "num_stages": 1}
    refs = [ref_of("fwd", **tile), ref_of("bwd", "dkv", dkv=tile)]
    one = compile_ahead(cores=3)
    one.expect(refs, H200)
    until(lambda: one.lowered == len(refs))
    done = subprocess.run(
        [sys.executable, "-c", WORKER],
        input=pickle.dumps(refs),
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    builds = [line.split()[1:] for line in done.stdout.decode().splitlines() if "BUILD" in line]
    assert [found for _, found in builds] == ["True"] * 2
    assert len({name for name, _ in builds}) == 2


def test_only_triton_kernels_are_lowered(compile_ahead, helpers):
    one = compile_ahead(cores=16)
    one.expect([ref_of("fwd", kernel="flash_attention/xla")], H200)
    assert (one.helpers, helpers.started) == (0, 0)
    helpers.go.set()
    one.expect([ref_of("fwd", kernel="flash_attention/xla"), ref_of("fwd")], H200)
    until(lambda: one.lowered == 1)
    assert [(job[0].kernel, job[1]) for job in helpers.jobs] == [("flash_attention/triton", 90)]


def test_helpers_keep_ahead_but_not_too_far(compile_ahead, helpers):
    helpers.go.set()
    one = compile_ahead(cores=3)
    refs = [ref_of("fwd", num_stages=n) for n in range(1, 21)]
    one.expect(refs, H200)
    until(lambda: one.lowered == ahead._DEPTH)
    time.sleep(0.05)
    assert [job[0] for job in helpers.jobs] == refs[:4]
    one.reached(
        refs[4]
    )  # Too late to help with this one: there is room when the first ones are taken.
    one.reached(refs[0])
    until(lambda: one.lowered == 5)
    assert helpers.jobs[-1][0] == refs[5]
    one.expect((), H200)
    one.reached(refs[1])
    time.sleep(0.05)
    assert one.lowered == 5


def test_a_config_that_kills_its_helper_costs_nothing_else(compile_ahead, helpers, caplog):
    refs = [ref_of("fwd", num_stages=n) for n in (1, 2, 3)]

    def fate(job):
        if job[0] == refs[1]:
            raise WorkerDied("killed by SIGSEGV")
        return "CompileError: not this one"

    helpers.fate = fate
    helpers.go.set()
    one = compile_ahead(cores=3)
    one.expect(refs, H200)
    until(lambda: one.lowered == 2)
    assert (helpers.started, helpers.killed) == (2, 1)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_helpers_that_cannot_start_are_given_up_with_one_warning(compile_ahead, caplog, tmp_path):
    # In front of the real package, installed or not.
    broken = tmp_path / "attn_tune" / "__init__.py"
    broken.parent.mkdir()
    broken.write_text("raise ModuleNotFoundError(\"No module named 'attn_tune'\")\n")
    one = compile_ahead(cores=4, environment={"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"})
    one.expect([ref_of("fwd", num_stages=n) for n in range(1, 21)], H200)
    until(lambda: one._closed.is_set())
    one.expect([ref_of("fwd")], H200)
    one.reached(ref_of("fwd"))
    one.close()
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "No module named 'attn_tune'" in warning.getMessage()
    assert one.lowered == 0


def test_a_helper_that_hangs_is_killed(compile_ahead, clean_environment):
    one = compile_ahead(cores=3, config_s=0.2)  # Less than importing jax takes.
    one.expect([ref_of("fwd")], H200)
    until(lambda: one._lost == 1)
    started = time.monotonic()
    one.close()
    assert time.monotonic() - started < 5
    assert one.lowered == 0


def test_helpers_die_with_the_sweep():
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from tests.tuner.test_ahead import H200, CompileAhead, ref_of\n"
        "from attn_tune.tuner.process import WorkerProcess\n"
        "start = WorkerProcess.__init__\n"
        "def told(self, *args):\n"
        "    start(self, *args)\n"
        "    print(self.pid, flush=True)\n"
        "WorkerProcess.__init__ = told\n"
        "one = CompileAhead(cores=3)\n"
        "one.expect([ref_of('fwd')], H200)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(ROOT)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    helper = int(parent.stdout.readline())
    until(lambda: b"lowering" in _command(helper))
    time.sleep(0.3)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: not _command(helper), 10)


def _command(pid: int) -> bytes:
    """The command line of a process; empty when it is gone, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
