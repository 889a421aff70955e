"""The pool of processes that compile: one that is late is killed, and the next config gets a fresh one."""

import dataclasses
import os
import signal

import pytest

from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema import Environment, UsageError
from attn_tune.schema.trial import Status
from attn_tune.tuner.offline.compilers.pool import CompilePool
from attn_tune.tuner.offline.compilers.protocol import Compiled
from attn_tune.tuner.offline.target import COMPILE_ONLY, NAMES, find_target
from attn_tune.tuner.protocol import ConfigRef, Limits
from attn_tune.tuner.run.process import WorkerProcess

SMALL = {"block_q": 16, "block_k": 32, "num_warps": 2, "num_stages": 1}
HUGE = {"block_q": 128, "block_k": 256, "num_warps": 8, "num_stages": 5}


def make_ref(config):
    """The forward of a small problem, in Triton."""
    sizes = {"batch": 1, "q_len": 2048, "kv_len": 2048, "num_q_heads": 2, "num_kv_heads": 2}
    problem = Problem(**sizes, head_dim=64, v_head_dim=64)
    return ConfigRef(kernel="flash_attention/triton", signature=problem.signature, direction="fwd", config=config)


@pytest.mark.parametrize("name", NAMES)
def test_every_target_has_a_device_and_an_environment_of_its_own(name):
    target = find_target(name)
    assert target.device.platform == ("tpu" if name.startswith("tpu") else "cuda")
    assert target.device.shared_bytes > 0
    base = Environment(jax="1", jaxlib="1", triton="3", driver="580")
    if target.topology:
        pytest.importorskip("libtpu")
    environment = target.environment(base)
    assert environment.driver == COMPILE_ONLY
    assert environment.compiler.split()[0] == ("libtpu" if target.topology else "ptxas")
    assert environment.digest != dataclasses.replace(environment, driver="").digest


@pytest.mark.parametrize("name", ["nvidia-h200", "nvidia-a100-sxm4-80gb"])
def test_the_compiler_of_a_gpu_is_the_assembler_that_triton_takes_for_it(name):
    target = find_target(name)
    own = pytest.importorskip("triton.backends.nvidia.compiler").get_ptxas(target.device.compute_capability)
    environment = target.environment(Environment(jax="1", jaxlib="1", triton="3"))
    assert environment.compiler.startswith(f"ptxas {own.version}.")


def test_a_target_is_found_by_the_name_of_a_gpu_and_both_names_of_a_tpu():
    assert find_target("nvidia-h200").device.compute_capability == 90
    assert find_target("tpu-v7x") == find_target("TPU-7x")
    for name in ("tpu-v9", "cpu", "sm_75"):
        with pytest.raises(UsageError, match=r"tpu-v6e|target"):
            find_target(name)


def test_the_pool_answers_with_registers_or_the_shortage():
    target = find_target("sm_89")
    refs = [make_ref(SMALL), make_ref(HUGE)]
    with CompilePool(target, processes=1) as pool:
        fits, lacks = (compiled for _, compiled in sorted(pool.compile(refs), key=lambda a: a[0]))
    assert fits.status is Status.COMPILED
    assert fits.resources.registers
    assert lacks.status is Status.OUT_OF_RESOURCES
    assert lacks.shortage
    assert lacks.shortage.needed > lacks.shortage.limit == target.device.shared_bytes


def test_the_pool_kills_a_late_process_and_never_begins_a_skipped_config(monkeypatch):
    send = WorkerProcess.send

    def stop_and_send(worker, message):
        os.kill(worker.pid, signal.SIGSTOP)
        send(worker, message)

    monkeypatch.setattr(WorkerProcess, "send", stop_and_send)
    told = Compiled(status=Status.OUT_OF_RESOURCES, reason="told", pruned=True)
    refs = [make_ref(SMALL), make_ref(HUGE)]
    with CompilePool(find_target("sm_90"), processes=1, limits=Limits(compile=0.0)) as pool:
        skip = {refs[1].key: told}
        answers = dict(pool.compile(refs, skip=lambda ref: skip.get(ref.key)))
    assert answers[0].status is Status.TIMED_OUT
    assert "killed" in answers[0].reason
    assert answers[1] is told


def test_launches_of_a_tpu_leave_schedules_and_whole_programs_are_only_compiled():
    pytest.importorskip("libtpu")
    blocks = {"block_q": 128, "block_kv": 128, "block_kv_compute": 128}
    ref = dataclasses.replace(make_ref(blocks), kernel="flash_attention/pallas_tpu_splash")
    with CompilePool(find_target("tpu-v6e"), processes=1) as pool:
        ((_, alone),) = pool.compile([ref])
        ((_, whole),) = pool.compile([ref], whole=True)
    assert (alone.status, whole.status) == (Status.COMPILED, Status.COMPILED), whole.reason
    assert any(schedule.multiplies for schedule in alone.schedules)
    # Writing theirs down takes far longer than compiling them.
    assert whole.schedules == ()
