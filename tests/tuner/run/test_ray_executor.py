"""The driver's end of a Ray actor, on a made-up Ray whose actors die on cue; and what the actor itself checks."""

import dataclasses
import pickle
import sys
import types

import pytest

from attn_tune.schema.errors import UsageError
from attn_tune.schema.trial import Status
from attn_tune.tuner.protocol import (
    ConfigRef,
    Finals,
    FinalsOutcome,
    Identify,
    Identity,
    Limits,
    Outcome,
    Phase,
    Run,
)
from attn_tune.tuner.run.executor import CaseError, ExecutorError, Interrupted
from attn_tune.tuner.run.fleet import ray_actor, ray_executor
from attn_tune.tuner.run.fleet.ray_actor import Claim, DeviceActor
from attn_tune.tuner.run.fleet.ray_cluster import find_slots
from attn_tune.tuner.run.fleet.ray_executor import RayExecutor

KERNEL = "flash_attention/xla"
NEVER = object()


class Clock:
    """Time that passes only while the executor waits: ``monotonic`` and ``sleep`` of the module ``time``."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 10 * PLACE_S, "it waits for ever"


@dataclasses.dataclass
class Later:
    """A reply that is there after some looks."""

    looks: int
    reply: object

    def is_pending(self) -> bool:
        self.looks -= 1
        return self.looks >= 0


class FakeRay(types.ModuleType):
    """``script`` is what each call of ``serve`` and ``ready`` comes to, in order: a reply, an exception, or NEVER.

    Waiting for NEVER takes time on ``clock``.
    """

    def __init__(self, script, clock):
        super().__init__("ray")
        self.clock = clock
        self.script, self.calls, self.killed = list(script), [], []
        self.options, self.phases = {}, []
        self.exceptions = types.SimpleNamespace(
            RayError=type("RayError", (Exception,), {}),
        )
        base = self.exceptions.RayError
        self.exceptions.RayActorError = type("RayActorError", (base,), {})
        actor = self.exceptions.RayActorError
        self.exceptions.ActorDiedError = type("ActorDiedError", (actor,), {})
        self.exceptions.RayTaskError = type("RayTaskError", (base,), {"cause": None})

    def remote(self, **options):
        self.options = options
        return lambda cls: types.SimpleNamespace(remote=lambda *args: Handle(self))

    def wait(self, references, timeout):
        done = [r for r in references if r is not NEVER and not (isinstance(r, Later) and r.is_pending())]
        if not done:
            self.clock.sleep(timeout)
        return done, []

    def get(self, reference):
        if isinstance(reference, Later):
            return reference.reply
        if isinstance(reference, type) and issubclass(reference, Exception):
            raise reference("it is gone")
        if isinstance(reference, Exception):
            raised = self.exceptions.RayTaskError("a long story")
            raised.cause = reference
            raise raised
        return reference

    def kill(self, actor, no_restart=True):
        self.killed.append(no_restart)


class Handle:
    """An actor's methods, each of which takes the next line of the script."""

    def __init__(self, ray):
        self._ray = ray

    def __getattr__(self, name):
        def remote(*args):
            self._ray.calls.append((name, *args))
            if name == "next_phase":
                return self._ray.phases.pop(0) if self._ray.phases else NEVER
            return self._ray.script.pop(0) if name in ("serve", "ready") else None

        method = types.SimpleNamespace(remote=remote)
        method.options = lambda **options: method
        return method


@pytest.fixture
def identity(device, environment):
    named = dataclasses.replace(device, evidence=(("uuid", "GPU-7"), ("name", "a processor")))
    return Identity(device=named, environment=environment)


@pytest.fixture
def run_of(point, device):
    ref = ConfigRef(kernel=KERNEL, signature=point.signature, direction="fwd", config={})
    return Run(ref=ref, device=device)


@pytest.fixture
def start(monkeypatch, identity):
    """An executor whose actor has found its place and its device; then comes ``script``."""

    def start(*script, **kwargs):
        ray = FakeRay([None, identity], Clock())
        monkeypatch.setitem(sys.modules, "ray", ray)
        monkeypatch.setattr(ray_executor, "time", ray.clock)
        executor = RayExecutor(options={"num_cpus": 1}, place_s=PLACE_S, **kwargs)
        executor.identify()
        errors = ray.exceptions
        ray.script = [getattr(errors, s) if isinstance(s, str) else s for s in script]
        ray.calls.clear()
        return executor, ray

    return start


OK = Outcome(status=Status.OK)
LOST = "RayActorError"
PLACE_S = 30.0


def test_the_identity_is_checked_by_every_actor_and_has_no_uuid(start, identity, run_of):
    executor, ray = start(OK)
    assert executor.run(run_of) is OK
    (_, request, claim), *_ = [call for call in ray.calls if call[0] == "serve"]
    assert request is run_of
    assert claim.identity == identity
    assert dict(claim.identity.device.evidence) == {"name": "a processor"}
    assert claim.sources.keys() == {KERNEL}


def test_phases_of_the_actor_are_told_as_they_change(start, run_of):
    executor, ray = start(Later(5, OK))
    seen = []
    executor.on_phase = seen.append
    ray.phases = [(1, Phase.PREPARE), Later(2, (4, Phase.MEASURE)), NEVER]
    assert executor.run(run_of) is OK
    assert seen == [Phase.PREPARE, Phase.MEASURE, None]
    # Each call says what was seen; none is made while one waits for its answer.
    assert [call[1] for call in ray.calls if call[0] == "next_phase"] == [0, 1, 4]


def test_an_actor_that_is_lost_while_its_phase_is_awaited_is_no_error_of_that(start, run_of):
    executor, ray = start(Later(2, OK))
    ray.phases = [ray.exceptions.RayActorError]
    assert executor.run(run_of) is OK


@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_actor_is_replaced_and_asked_again(start, identity, run_of, times):
    executor, ray = start(*[LOST, None, identity] * times, OK)
    executor.expect([run_of.ref], run_of.device)
    assert executor.run(run_of) is OK
    sent = [call[1] for call in ray.calls if call[0] == "serve"]
    assert sent == [run_of, *[Identify(), run_of] * times]
    # The new actor gets what comes, as the old one did.
    assert sum(call[0] == "expect" for call in ray.calls) == 1 + times
    assert not ray.script


def test_a_config_that_kills_three_sound_actors_is_crashed(start, identity, run_of):
    executor, ray = start(LOST, None, identity, LOST, None, identity, LOST)
    outcome = executor.run(run_of)
    assert outcome.status is Status.CRASHED
    assert "3 Ray actors were lost" in outcome.reason
    assert not ray.script


def test_actors_that_die_without_a_config_are_not_blamed_on_one(start, identity, run_of):
    executor, _ = start(LOST, None, LOST, None, identity, LOST)
    with pytest.raises(ExecutorError, match="3 Ray actors were lost"):
        executor.run(run_of)


def test_finals_that_kill_actors_are_the_cases_loss(start, identity, run_of):
    executor, _ = start(LOST, None, identity, LOST, None, identity, LOST)
    with pytest.raises(CaseError):
        executor.finals(Finals(refs=(run_of.ref,), device=run_of.device))


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ((LOST, NEVER), "no Ray actor within 30 s: no node has room"),
        ((LOST, "ActorDiedError"), "a Ray actor does not start"),
        ((LOST, None, ExecutorError("node7: no driver")), "node7: no driver"),
        (("RayTaskError",), "a Ray actor failed: it is gone"),
        ((ExecutorError("node7: jaxlib is 2"),), "jaxlib is 2"),
    ],
)
def test_no_actor_to_be_had_is_an_executor_error(start, run_of, script, message):
    executor, ray = start(*script)
    with pytest.raises(ExecutorError, match=message):
        executor.run(run_of)
    # The wait for a place ends at its limit, give or take one look.
    assert ray.clock.now == 0 or NEVER in script
    assert ray.clock.now < PLACE_S + 1


def test_a_node_whose_loss_ray_has_not_noticed_is_asked_again(start, identity, run_of):
    executor, ray = start(LOST, LOST, LOST, None, identity, OK)
    assert executor.run(run_of) is OK
    assert not ray.script
    assert 0 < ray.clock.now < PLACE_S


@pytest.mark.parametrize("kind", [CaseError, Interrupted])
def test_an_error_of_an_actor_is_raised_here(start, run_of, kind):
    executor, _ = start(kind("no inputs"))
    with pytest.raises(kind, match=r"^no inputs$"):
        executor.run(run_of)


def test_an_interrupt_stops_the_actor_at_once(start, run_of):
    executor, ray = start(NEVER, interrupt=lambda: ray.clock.now > 1)
    with pytest.raises(Interrupted):
        executor.run(run_of)
    assert ("stop",) in ray.calls
    assert ray.killed == [False]  # It did not obey; Ray starts another one.


def test_closing_ends_the_worker_before_the_actor(start):
    executor, ray = start()
    executor.close()
    assert ray.calls[-1] == ("close",)
    assert ray.killed == [True]


def test_ray_restarts_actors_and_does_not_repeat_requests(start):
    _, ray = start()
    assert (ray.options["max_restarts"], ray.options["max_task_retries"]) == (-1, 0)
    assert ray.options["num_cpus"] == 1


class FakeWorker:
    """In the place of ``IsolatedExecutor``, inside an actor."""

    fails: Exception | None = None

    def __init__(self, *, limits, environment, interrupt):
        self.interrupt = interrupt
        self.asked = 0

    def identify(self):
        self.asked += 1
        return type(self).identity

    def run(self, request):
        if self.fails:
            raise self.fails
        return OK

    def finals(self, request):
        return FinalsOutcome(outcomes=(OK,))

    def close(self):
        return None


@pytest.fixture
def actor(monkeypatch, tmp_path, identity):
    monkeypatch.setattr(ray_actor, "lease_folder", lambda: tmp_path)
    monkeypatch.setattr(ray_actor, "IsolatedExecutor", FakeWorker)
    monkeypatch.setattr(FakeWorker, "identity", identity, raising=False)
    monkeypatch.setattr(FakeWorker, "fails", None)
    made = DeviceActor(Limits(), {})
    yield made
    made.close()


def test_an_actor_serves_what_the_claim_allows(actor, identity, run_of):
    assert actor.serve(Identify(), Claim()) == identity
    assert actor.serve(run_of, Claim.of(run_of, identity)) is OK
    finals = Finals(refs=(run_of.ref,), device=run_of.device)
    assert actor.serve(finals, Claim.of(finals, identity)).outcomes == (OK,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device": {"l2_bytes": 1}}, "l2_bytes is 0 here, and 1 in the rest of the sweep"),
        ({"environment": {"jaxlib": "9"}}, "jaxlib is '0.0' here, and '9'"),
        ({"sources": "another"}, f"the source of {KERNEL} differs"),
    ],
)
def test_an_actor_on_another_kind_of_node_refuses(actor, identity, run_of, change, message):
    changed = dataclasses.replace(
        identity,
        device=dataclasses.replace(identity.device, **change.get("device", {})),
        environment=dataclasses.replace(identity.environment, **change.get("environment", {})),
    )
    claim = Claim.of(run_of, changed)
    if "sources" in change:
        claim = dataclasses.replace(claim, sources={KERNEL: change["sources"]})
    with pytest.raises(ExecutorError, match=message):
        actor.serve(run_of, claim)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CaseError("no inputs"), CaseError),
        (ExecutorError("the worker process does not start"), ExecutorError),
        (UsageError("unknown kernel"), ExecutorError),
        (Interrupted("stopped"), Interrupted),
    ],
)
def test_errors_in_an_actor_are_raised_and_can_be_sent(actor, identity, run_of, error, kind):
    FakeWorker.fails = error
    with pytest.raises(kind) as caught:
        actor.serve(run_of, Claim.of(run_of, identity))
    sent = pickle.loads(pickle.dumps(caught.value))
    assert (type(sent), str(sent)) == (kind, str(caught.value))


def test_an_actor_leases_its_device_until_it_is_closed(actor, identity):
    rival = DeviceActor(Limits(), {})
    assert actor.serve(Identify(), Claim()) == identity
    with pytest.raises(ExecutorError, match=r"GPU-7\) is in use by process"):
        rival.serve(Identify(), Claim())
    actor.close()
    assert rival.serve(Identify(), Claim()) == identity
    rival.close()


def node(alive=True, **resources):
    return {"Alive": alive, "Resources": resources}


H200 = {"GPU": 8.0, "CPU": 64.0, "accelerator_type:H200": 1.0}
A100 = {"GPU": 4.0, "CPU": 32.0, "accelerator_type:A100": 1.0}


@pytest.mark.parametrize(
    ("nodes", "accelerator", "count", "options"),
    [
        ([node(**H200), node(**A100)], "H200", 8, {"accelerator_type": "H200"}),
        ([node(**H200), node(CPU=4.0), node(False, **H200)], "", 8, {"num_gpus": 1}),
        ([node(TPU=4.0, CPU=8.0), node(TPU=4.0, CPU=8.0)], "", 8, {"resources": {"TPU": 1}}),
        ([node(CPU=8.0), node(CPU=4.0), node(CPU=0.0)], "", 2, {"num_cpus": 4.0}),
    ],
)
def test_slots(nodes, accelerator, count, options):
    found = find_slots(nodes, accelerator)
    assert found.count == count
    assert options.items() <= found.options.items()


@pytest.mark.parametrize("nodes", [[], [node(False, CPU=8.0)], [node(CPU=8.0)]])
def test_no_slot_is_a_usage_error(nodes):
    with pytest.raises(UsageError, match="no node of the Ray cluster has"):
        find_slots(nodes, "H200")
