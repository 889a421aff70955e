"""The phases that an executor tells of: of its worker, of every device of a fleet, and across Ray."""

import threading

import pytest

from attn_tune.schema.trial import Status
from attn_tune.tuner.protocol import ConfigRef, Entering, Outcome, Phase, Ready, Run
from attn_tune.tuner.run import executor as executors
from attn_tune.tuner.run.executor import IsolatedExecutor
from attn_tune.tuner.run.process import WorkerDied

KERNEL = "flash_attention/xla"


class Worker:
    """A worker process that answers with the next messages of ``script``."""

    script: list

    def __init__(self, *ignored, **also_ignored):
        self.pid, self.served, self.is_running = 1, 0, True

    def wait_until_ready(self, timeout_s, interrupt):
        assert isinstance(type(self).script.pop(0), Ready)

    def send(self, message):
        return None

    def receive(self, timeout_s, interrupt):
        message = type(self).script.pop(0)
        if isinstance(message, Exception):
            raise message
        return message

    def kill(self):
        return None

    close = kill


@pytest.fixture
def executor(monkeypatch):
    monkeypatch.setattr(executors, "WorkerProcess", Worker)
    with IsolatedExecutor(cores=1) as made:
        seen = []
        made.on_phase = seen.append
        yield made, seen


@pytest.fixture
def request_of(point, device):
    ref = ConfigRef(kernel=KERNEL, signature=point.signature, direction="fwd", config={})
    return Run(ref=ref, device=device)


def phases(*names):
    return [Entering(phase=Phase(name)) for name in names]


def test_an_executor_tells_the_phases_of_its_worker_and_when_it_is_idle(executor, request_of):
    made, seen = executor
    Worker.script = [Ready(), *phases("prepare", "compile", "validate", "measure"), Outcome(status=Status.OK)]
    made.run(request_of)
    assert seen == [Phase.START, Phase.PREPARE, Phase.COMPILE, Phase.VALIDATE, Phase.MEASURE, None]
    Worker.script = [*phases("compile"), Outcome(status=Status.COMPILE_ERROR, reason="no")]
    made.run(request_of)
    assert seen[6:] == [Phase.COMPILE, None]


def test_a_worker_that_dies_leaves_no_device_that_seems_to_time(executor, request_of):
    made, seen = executor
    Worker.script = [Ready(), *phases("measure"), WorkerDied("gone")]
    assert made.run(request_of).status is Status.CRASHED
    assert seen == [Phase.START, Phase.MEASURE, None]


def test_an_actor_answers_only_when_its_phase_is_another_one(monkeypatch):
    from attn_tune.tuner.protocol import Limits
    from attn_tune.tuner.run.fleet.ray_actor import DeviceActor

    actor = DeviceActor(Limits(), {})
    actor._executor.on_phase(Phase.COMPILE)
    assert actor.next_phase(0) == (1, Phase.COMPILE)
    answers = []
    asker = threading.Thread(target=lambda: answers.append(actor.next_phase(1)))
    asker.start()
    asker.join(0.2)
    assert answers == []
    actor._executor.on_phase(Phase.MEASURE)
    asker.join(60)
    assert answers == [(2, Phase.MEASURE)]
    actor.close()
