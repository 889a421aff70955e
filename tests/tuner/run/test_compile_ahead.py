"""Compiling ahead: that the worker finds what a helper compiled, and that no helper's fate is the sweep's."""

import dataclasses
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from attn_tune.kernels.lang.triton.target import compile_target
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.flash_attention.inputs import make_inputs
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.config import config_to_dict
from attn_tune.schema.device import Device
from attn_tune.schema.trial import Resources, Status
from attn_tune.tuner.protocol import ConfigRef, Lowered, Outcome
from attn_tune.tuner.run import compile_ahead as ahead
from attn_tune.tuner.run.compile_ahead import CompileAhead, helper_count
from attn_tune.tuner.run.helper_processes import HelperLost
from attn_tune.tuner.work.compile import lower_config, part_function
from tests.patience import until

ROOT = Path(__file__).parents[3]
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
LOWERED = Lowered(program=b"", resources=Resources(), lower_ms=1.0)

pytestmark = pytest.mark.slow


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
        self.fate = lambda job: LOWERED

    def __call__(self, count, environment):
        self.started += count
        self.helpers = [self] * count
        return self

    def ask(self, job, timeout_s, interrupt):
        self.jobs.append(job)
        while not self.go.wait(0.01):
            if interrupt():
                raise InterruptedError
        return self.fate(job)

    def kill(self):
        self.killed += 1

    def close(self):
        pass


@pytest.fixture
def helpers(monkeypatch):
    helpers = Helpers()
    monkeypatch.setattr(ahead, "HelperGroup", helpers)
    return helpers


@pytest.mark.parametrize(
    ("device", "cores", "count"),
    [(H200, 2, 0), (H200, 3, 2), (H200, 16, 15), (H200, 96, 64), (TPU, 96, 0)],
)
def test_the_number_of_helpers_follows_cores_and_device(device, cores, count):
    assert helper_count(device, cores) == count


def test_no_helpers_without_triton(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert helper_count(H200, 16) == 0


def test_a_helper_lowers_the_same_program_as_this_process(compile_ahead, clean_environment):
    import jax
    from jax import export

    tile = {"block_q": 32, "block_k": 32, "num_warps": 2, "num_stages": 1}
    seen = []
    one = compile_ahead(cores=3, on_ready=lambda ref, lowered: seen.append(ref))
    refs = [ref_of("fwd", **tile), ref_of("bwd", "dkv", dkv=tile)]
    one.expect(refs, H200)
    for ref in refs:
        answer = one.take(ref)
        assert isinstance(answer, Lowered)
        inputs = jax.eval_shape(lambda d=ref.direction: make_inputs(PROBLEM, d, 0))
        here = lower_config(ref, inputs, 90)
        assert answer.resources == here.resources
        assert answer.resources.registers > 0
        exported = export.deserialize(bytearray(answer.program))
        wanted = part_function(ref)
        with compile_target(90):
            outputs = jax.eval_shape(wanted, inputs)
        assert exported.in_avals == tuple(jax.core.ShapedArray(x.shape, x.dtype) for x in jax.tree.leaves(inputs))
        assert set(jax.tree.unflatten(exported.out_tree, exported.out_avals)) == set(outputs)
    assert set(map(id, seen)) == set(map(id, refs))
    assert one.take(refs[0]) is None  # It was taken before.


def test_a_compiler_error_is_the_configs_own_outcome(compile_ahead, clean_environment):
    one = compile_ahead(cores=3)
    big = ref_of("fwd", block_q=32, block_k=64, num_stages=8, num_warps=4)
    huge = dataclasses.replace(big, problem=dataclasses.replace(PROBLEM, head_dim=128, v_head_dim=128))
    odd = ref_of("fwd", num_warps=3)
    one.expect([huge, odd], H200)
    outcome = one.take(huge)
    assert isinstance(outcome, Outcome)
    assert outcome.status is Status.OUT_OF_RESOURCES
    assert "shared memory" in outcome.reason
    # A config that breaks its own rules is for the worker to judge.
    assert one.take(odd) is None


def test_kernels_whose_compilers_need_no_device_are_lowered(compile_ahead, helpers):
    one = compile_ahead(cores=16)
    one.expect([ref_of("fwd", kernel="flash_attention/xla")], H200)
    assert (one.helpers, helpers.started) == (0, 0)
    helpers.go.set()
    kernels = [f"flash_attention/{name}" for name in ("xla", "triton", "tokamax_mosaic", "fa4")]
    one.expect([ref_of("fwd", kernel=kernel) for kernel in kernels], H200)
    until(lambda: one.lowered == 2)
    assert {(job[0].kernel, job[1]) for job in helpers.jobs} == {(kernels[1], 90), (kernels[3], 90)}


def test_helpers_keep_ahead_but_not_too_far(compile_ahead, helpers):
    helpers.go.set()
    one = compile_ahead(cores=3)
    refs = [ref_of("fwd", num_stages=n) for n in range(1, 31)]
    one.expect(refs, H200)
    most = ahead._DEPTH * one.helpers
    until(lambda: one.lowered == most)
    time.sleep(0.05)
    assert [ref for ref, _ in one.ready()] == refs[:most]
    assert one.take(refs[0]) is LOWERED
    until(lambda: one.lowered == most + 1)
    one.expect((), H200)
    assert not one.ready()
    time.sleep(0.05)
    assert one.lowered == most + 1


def test_ready_configs_of_later_keep_no_config_from_being_lowered(compile_ahead, helpers):
    helpers.go.set()
    one = compile_ahead(cores=3)
    refs = [ref_of("fwd", num_stages=n) for n in range(1, 31)]
    later = refs[: ahead._DEPTH * 2]
    one.expect(later, H200)
    until(lambda: one.lowered == len(later))
    new = refs[len(later) : len(later) + 3]
    one.expect([*new, *later], H200)
    assert [one.take(ref) for ref in [*new, *later]] == [LOWERED] * (3 + len(later))


def test_a_config_that_is_expected_again_is_not_lowered_again(compile_ahead, helpers):
    helpers.go.set()
    one = compile_ahead(cores=3)
    refs = [ref_of("fwd", num_stages=n) for n in (1, 2, 3)]
    one.expect(refs[:2], H200)
    until(lambda: one.lowered == 2)
    one.expect(refs[1:], H200)
    until(lambda: one.lowered == 3)
    assert [ref for ref, _ in one.ready()] == refs[1:]


def test_waiting_for_a_config_can_be_interrupted(compile_ahead, helpers):
    one = compile_ahead(cores=3)
    one.expect([ref_of("fwd")], H200)
    with pytest.raises(InterruptedError):
        one.take(ref_of("fwd"), lambda: True)


def test_a_config_that_kills_its_helper_costs_nothing_else(compile_ahead, helpers, caplog):
    refs = [ref_of("fwd", num_stages=n) for n in (1, 2, 3)]

    def fate(job):
        if job[0] == refs[1]:
            raise HelperLost("killed by SIGSEGV")
        return LOWERED

    helpers.fate = fate
    helpers.go.set()
    one = compile_ahead(cores=3)
    one.expect(refs, H200)
    until(lambda: one.lowered == 2)
    assert [one.take(ref) for ref in refs] == [LOWERED, None, LOWERED]
    assert (helpers.started, helpers.killed) == (3, 1)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_helpers_that_cannot_start_are_given_up_with_one_warning(compile_ahead, caplog, tmp_path):
    # In front of the real package, installed or not.
    broken = tmp_path / "attn_tune" / "__init__.py"
    broken.parent.mkdir()
    broken.write_text("raise ModuleNotFoundError(\"No module named 'attn_tune'\")\n")
    one = compile_ahead(cores=4, environment={"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"})
    refs = [ref_of("fwd", num_stages=n) for n in range(1, 21)]
    one.expect(refs, H200)
    until(lambda: one._closed.is_set())
    one.expect(refs[:1], H200)
    assert one.take(refs[0]) is None
    one.close()
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert "the helper process ended" in warning.getMessage()
    assert one.lowered == 0


def test_a_helper_that_hangs_is_killed(compile_ahead, clean_environment):
    one = compile_ahead(cores=3, config_s=0.0)
    one.expect([ref_of("fwd")], H200)
    until(lambda: one._lost == 1)
    one.close()
    assert one.lowered == 0


def test_helpers_die_with_the_sweep():
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from tests.tuner.run.test_compile_ahead import H200, CompileAhead, ref_of\n"
        "one = CompileAhead(cores=3)\n"
        "one.expect([ref_of('fwd')], H200)\n"
        "print(one._group._process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(ROOT)], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    helper = int(parent.stdout.readline())
    until(lambda: len(_children(helper)) == 2)
    all_of_them = [helper, *_children(helper)]
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: not any(map(_command, all_of_them)))


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [int(word) for word in text.split()]


def _command(pid: int) -> bytes:
    """The command line of a process; empty when it is gone, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
