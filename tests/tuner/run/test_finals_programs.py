"""The finals' worker gets the programs that helpers made, for the search or meanwhile, and compiles the others."""

import pytest

from attn_tune.schema.trial import Resources, Status
from attn_tune.tuner.protocol import ConfigRef, Finals, FinalsOutcome, Load, Lowered, Outcome, Ready, Run
from attn_tune.tuner.run import executor as executors
from attn_tune.tuner.run.executor import IsolatedExecutor

KERNEL = "flash_attention/triton"


class Worker:
    """A worker process that answers a run or the finals at once, and keeps what it was sent."""

    started: list["Worker"]

    def __init__(self, *ignored, **also_ignored):
        self.pid, self.served, self.is_running, self.sent = 1, 0, True, []
        self.started.append(self)

    def wait_until_ready(self, timeout_s, interrupt):
        return Ready()

    def send(self, message):
        self.sent.append(message)

    def receive(self, timeout_s, interrupt):
        if isinstance(self.sent[-1], Finals):
            return FinalsOutcome(outcomes=())
        return Outcome(status=Status.OK)

    def kill(self):
        return None

    close = kill


class Ahead:
    """Helpers that have made the programs ``made``, by key, and keep what was expected and taken."""

    helpers = 1

    def __init__(self, **ignored):
        self.made, self.expected, self.taken = {}, [], []

    def expect(self, refs, device):
        self.expected.append([ref.config for ref in refs])

    def take(self, ref, interrupt):
        self.taken.append(ref.config)
        return self.made.pop(ref.key, None)

    def ready(self, besides):
        return []

    def warm_up(self):
        return None

    close = warm_up


@pytest.fixture
def executor(monkeypatch):
    Worker.started = []
    monkeypatch.setattr(executors, "WorkerProcess", Worker)
    monkeypatch.setattr(executors, "CompileAhead", Ahead)
    with IsolatedExecutor() as made:
        yield made


def program(name):
    return Lowered(program=name.encode(), resources=Resources(), lower_ms=1.0)


def loads(worker):
    return [(m.ref.config["block_q"], m.lowered.program) for m in worker.sent if isinstance(m, Load)]


def test_finals_load_what_the_search_and_the_helpers_made(executor, point, device):
    refs = [
        ConfigRef(kernel=KERNEL, signature=point.signature, direction="fwd", config={"block_q": size})
        for size in (16, 32, 64, 128)
    ]
    ahead = executor._ahead
    ahead.made = {refs[0].key: program("a"), refs[1].key: program("b")}
    for ref in refs[:2]:
        executor.run(Run(ref=ref, device=device))
    # The third is lowered only now, the fourth by none.
    ahead.made[refs[2].key] = program("c")
    executor.expect(refs, device)
    assert ahead.expected == [[{"block_q": 64}, {"block_q": 128}]]
    executor.finals(Finals(refs=tuple(refs), device=device))
    first, second = Worker.started
    assert [type(m) for m in first.sent] == [Run, Run]
    assert loads(second) == [(16, b"a"), (32, b"b"), (64, b"c")]
    assert isinstance(second.sent[-1], Finals)
    # What helpers make of the next case does not disturb the worker that measures.
    executor._load(refs[3], program("d"))
    assert len(loads(second)) == 3


def test_programs_are_forgotten_with_their_case(executor, point, device):
    ref = ConfigRef(kernel=KERNEL, signature=point.signature, direction="fwd", config={"block_q": 16})
    other = ConfigRef(kernel=KERNEL, signature=point.signature, direction="bwd", config={"block_q": 16})
    ahead = executor._ahead
    ahead.made = {ref.key: program("a"), other.key: program("b")}
    executor.run(Run(ref=ref, device=device))
    executor.run(Run(ref=other, device=device))
    executor.finals(Finals(refs=(ref,), device=device))
    assert ahead.taken == [{"block_q": 16}] * 3
    assert loads(Worker.started[-1]) == []
