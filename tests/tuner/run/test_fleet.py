"""Several executors that answer from a table: who does what, and what happens when one is lost or all must stop."""

import dataclasses
import threading
import time
from collections import Counter, defaultdict

import pytest

from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import UsageError
from attn_tune.schema.trial import Stage, Trial
from attn_tune.tuner.plan.case import GridPoint
from attn_tune.tuner.plan.planner import make_plan
from attn_tune.tuner.protocol import Identity, Phase
from attn_tune.tuner.run.executor import ExecutorError
from attn_tune.tuner.run.fleet.fleet import Fleet
from attn_tune.tuner.run.progress import Progress, ProgressKind
from attn_tune.tuner.run.sweep import sweep
from tests.tuner.replay import ReplayExecutor, one_launch, two_launches
from tests.tuner.run.fleet_member import CONFIGS, FleetMember, by_case, searched, trials_of


@pytest.fixture
def plan_of(problem: Problem, device, environment):
    def plan_of(cases: int, *specs, **kwargs):
        points = [
            GridPoint(
                name=f"case{i}",
                op="flash_attention",
                signature=dataclasses.replace(problem, kv_len=16 + i).signature,
            )
            for i in range(cases)
        ]
        return make_plan(
            points,
            kernels=specs or [one_launch("k", [8, 16])],
            device=device,
            environment=environment,
            directions=["fwd"],
            **kwargs,
        )

    return plan_of


@pytest.fixture
def fleet(device, environment):
    def fleet(*executors: FleetMember) -> Fleet:
        for i, executor in enumerate(executors):
            mine = dataclasses.replace(device, evidence=(("uuid", f"GPU-{i}"),))
            executor.identity = executor.identity or Identity(device=mine, environment=environment)
        made.append(Fleet(executors))
        made[-1].identify()
        return made[-1]

    made: list[Fleet] = []
    yield fleet
    for one in made:
        one.close()


WHOLE_CASE = [
    ProgressKind.CASE_STARTED,
    ProgressKind.KERNEL_STARTED,
    (4, Stage.SEARCH),
    (8, Stage.SEARCH),
    (16, Stage.SEARCH),
    ProgressKind.FINALS_STARTED,
    (4, Stage.FINAL),
    (16, Stage.FINAL),
    (8, Stage.FINAL),
    ProgressKind.CASE_FINISHED,
]


def test_two_devices_share_the_cases_and_each_case_stays_in_order(fleet, plan_of):
    gate = threading.Event()
    members = FleetMember(gate=gate), FleetMember(gate=gate)
    both = fleet(*members)
    events = []
    for event in sweep(plan_of(6), both):
        events.append(event)
        started = [e for e in events if getattr(e, "kind", "") == ProgressKind.CASE_STARTED]
        if len(started) == 2:  # Both have a case before either may continue.
            gate.set()
    cases = by_case(events)
    assert len(cases) == 6
    assert all(case == WHOLE_CASE for case in cases.values())
    assert all(member.runs for member in members)
    for member in members:
        assert {len({r.signature for r in race.refs}) for race in member.races} == {1}
        assert {r.ref.signature for r in member.runs} == {race.refs[0].signature for race in member.races}
    last = events[-1]
    assert (last.kind, last.reason, last.done, last.total) == (
        ProgressKind.SWEEP_FINISHED,
        "finished",
        6 * CONFIGS,
        6 * CONFIGS,
    )
    dones = [event.done for event in events if isinstance(event, Progress)]
    assert dones == sorted(dones)


class TellingMember(FleetMember):
    """Enters a phase before each config."""

    def run(self, request):
        self.on_phase(Phase.COMPILE)
        try:
            return super().run(request)
        finally:
            self.on_phase(None)


def test_phases_and_cases_name_the_place_of_their_device(fleet, plan_of):
    gate = threading.Event()
    both = fleet(TellingMember(gate=gate), TellingMember(gate=gate))
    told, places, started = [], {}, 0
    for event in sweep(plan_of(4), both, on_phase=told.append):
        if isinstance(event, Progress) and event.case:
            places.setdefault(event.case.signature, set()).add(event.place)
            started += event.kind is ProgressKind.CASE_STARTED
        if started == 2:
            gate.set()
    assert {(one.place, one.phase) for one in told} == {(p, w) for p in (0, 1) for w in (Phase.COMPILE, None)}
    assert all(len(found) == 1 for found in places.values())
    assert set().union(*places.values()) == {0, 1}
    assert (event.devices, event.cases) == (("device 0", "device 1"), 4)


def test_trials_name_the_device_that_made_them(fleet, plan_of):
    gate = threading.Event()
    members = FleetMember(gate=gate), FleetMember(gate=gate)
    both, where = fleet(*members), defaultdict(set)
    for event in sweep(plan_of(4), both):
        if isinstance(event, Trial):
            where[event.signature].add(event.device.evidence)
        elif event.kind is ProgressKind.CASE_STARTED:
            gate.set()
    assert {len(evidence) for evidence in where.values()} == {1}
    for i, member in enumerate(members):
        for run in member.runs:
            assert where[run.ref.signature] == {(("uuid", f"GPU-{i}"),)}


def test_each_executor_has_one_thread_for_life(fleet, plan_of):
    members = FleetMember(), FleetMember()
    both = fleet(*members)
    list(sweep(plan_of(4), both))
    list(sweep(plan_of(4), both))
    both.close()
    threads = [member.threads for member in members]
    assert [len(one) for one in threads] == [1, 1]
    assert threads[0] != threads[1]
    assert threading.current_thread() not in threads[0] | threads[1]
    assert not any(thread.is_alive() for thread in threads[0] | threads[1])


def test_an_executor_waits_until_its_trial_was_taken(fleet, plan_of):
    """Executors wait for the database: the command has stored nearly all trials that were measured."""
    members = FleetMember(), FleetMember()
    events = sweep(plan_of(4), fleet(*members))
    for taken, event in enumerate(events):
        time.sleep(0.01)
        assert sum(len(member.runs) for member in members) <= taken + 2
        if isinstance(event, Progress) and event.kind is ProgressKind.SWEEP_FINISHED:
            break


@pytest.mark.parametrize("lost_at", [0, 1, 2, 3], ids=lambda n: f"after {n} configs")
def test_the_case_of_a_lost_device_is_finished_by_another(fleet, plan_of, lost_at):
    first, second = FleetMember(lost_at=lost_at), FleetMember(gate=threading.Event())
    both, events = fleet(first, second), []
    for event in sweep(plan_of(3), both):
        events.append(event)
        if getattr(event, "kind", "") == ProgressKind.CASE_RETURNED:
            assert "fell off the bus" in event.reason
            second.gate.set()
    assert len(first.runs) == lost_at
    assert not first.races
    counts = searched(events)
    assert len(counts) == 3 * CONFIGS
    assert set(counts.values()) == {1}
    finals = [t for t in trials_of(events) if t.stage is Stage.FINAL]
    assert Counter(t.signature for t in finals) == Counter({case.case.signature: 3 for case in plan_of(3).cases})
    assert {t.device.evidence for t in finals} == {(("uuid", "GPU-1"),)}
    # The other device proves no config twice, and still knows which the first one proved.
    assert [[r.config["size"] for r in race.refs] for race in second.races] == [[4, 16, 8]] * 3
    last = events[-1]
    assert (last.reason, last.done, last.total) == ("finished", 9, 9)


def test_parts_continue_where_they_were_lost(fleet, plan_of):
    times = {
        ("k", "a", 4): 40,
        ("k", "a", 8): 30,
        ("k", "b", 4): 40,
        ("k", "b", 16): 10,
        ("k", "", (4, 4)): 80,
        ("k", "", (8, 16)): 40,
    }
    spec = two_launches("k", [8, 99], [16])
    whole = searched(sweep(plan_of(1, spec), ReplayExecutor(times)))
    for lost_at in range(sum(whole.values()) + 1):
        first = FleetMember(times, lost_at=lost_at)
        second = FleetMember(times, gate=threading.Event())
        both, events = fleet(first, second), []
        for event in sweep(plan_of(2, spec), both):
            events.append(event)
            if getattr(event, "kind", "") == ProgressKind.CASE_RETURNED:
                second.gate.set()
        counts = searched(events)
        assert set(counts.values()) == {1}
        assert sum(counts.values()) == 2 * sum(whole.values())
        assert [[dict(r.config) for r in race.refs] for race in second.races] == [
            [{"a": {"size": 4}, "b": {"size": 4}}, {"a": {"size": 8}, "b": {"size": 16}}]
        ] * 2
        assert events[-1].done == events[-1].total == 2 * plan_of(1, spec).counts.todo


def test_a_wrong_untuned_config_is_not_tried_again_elsewhere(fleet, plan_of):
    times = {("k", "", 8): 70, ("k", "", 16): 50}
    first, second = FleetMember(times, lost_at=1), FleetMember(times, gate=threading.Event())
    both, events = fleet(first, second), []
    for event in sweep(plan_of(2), both):
        events.append(event)
        if getattr(event, "kind", "") == ProgressKind.CASE_RETURNED:
            second.gate.set()
    assert set(searched(events).values()) == {1}


def test_a_case_that_loses_two_devices_is_given_up_and_the_rest_is_done(fleet, plan_of, caplog):
    class Cursed(FleetMember):
        """Is lost at the first case only, on any device."""

        def run(self, request):
            if request.ref.signature == cursed:
                self.lost_at = 0
            return super().run(request)

    plan = plan_of(4)
    cursed = plan.cases[0].case.signature
    members = [Cursed(), Cursed(), Cursed()]
    events = list(sweep(plan, fleet(*members)))
    returned = [e for e in events if getattr(e, "kind", "") == ProgressKind.CASE_RETURNED]
    assert [e.case.signature for e in returned] == [cursed, cursed]
    assert {t.signature for t in trials_of(events)} == {c.case.signature for c in plan.cases[1:]}
    last = events[-1]
    assert (last.reason, last.done, last.total) == ("finished", 3 * CONFIGS, 4 * CONFIGS)
    assert "case0 fwd: the device is lost, given up" in caplog.text


@pytest.mark.parametrize("count", [1, 2, 3])
def test_no_device_left_is_an_error_and_what_was_yielded_stands(fleet, plan_of, count):
    members = [FleetMember(lost_at=1 + i) for i in range(count)]
    events = []
    with pytest.raises(ExecutorError, match="fell off the bus"):
        events.extend(iter_into(events, sweep(plan_of(20), fleet(*members))))
    # A case that one left may have had its finals on another before that was lost as well.
    searched = [trial for trial in trials_of(events) if trial.stage is Stage.SEARCH]
    assert len(searched) == sum(len(member.runs) for member in members)


def iter_into(events: list, source) -> list:
    for event in source:
        events.append(event)
    return []


def test_a_device_that_cannot_be_had_is_left_out(fleet, plan_of, caplog):
    broken, good = FleetMember(lost_at=-1), FleetMember()
    events = list(sweep(plan_of(2), fleet(broken, good)))
    assert events[-1].reason == "finished"
    assert len(good.runs) == 2 * CONFIGS
    assert "going on without one of 2 devices" in caplog.text


def test_no_device_to_be_had_is_an_error(fleet):
    with pytest.raises(ExecutorError, match="no driver"):
        fleet(FleetMember(lost_at=-1), FleetMember(lost_at=-1))


@pytest.mark.parametrize("how", ["device", "software"])
def test_different_devices_are_refused_by_name(fleet, device, environment, how):
    other = FleetMember()
    if how == "device":
        odd = Device(platform="cpu", family="aarch64", variant="cpu-aarch64", units=2)
        other.identity = Identity(device=odd, environment=environment)
        words = ["cpu-x86_64 (GPU-0)", "cpu-aarch64", "family 'x86_64' and 'aarch64'"]
    else:
        newer = Environment(jax="0.1", jaxlib="0.0")
        other.identity = Identity(device=device, environment=newer)
        words = ["equal software", "jax '0.0' and '0.1'"]
    with pytest.raises(UsageError) as caught:
        fleet(FleetMember(), other)
    assert all(word in str(caught.value) for word in words)


def test_stop_ends_all_and_a_plan_with_the_trials_continues(fleet, plan_of):
    stop, slow = threading.Event(), FleetMember(hangs=True)
    events = []
    for event in sweep(plan_of(4), fleet(FleetMember(), slow), stop=stop):
        events.append(event)
        if len(trials_of(events)) == 2:
            stop.set()
    assert events[-1].reason == "stopped"
    assert events[-1].kind is ProgressKind.SWEEP_FINISHED
    done = trials_of(events)
    assert len(done) == 2
    again = list(
        sweep(
            plan_of(
                4,
                measured=lambda kernel, way, signature, env: {
                    (t.part, t.config_digest): t.status for t in done if t.signature == signature
                },
                history=lambda kernel, way, signature, env: [t for t in done if t.signature == signature],
            ),
            fleet(FleetMember(), FleetMember()),
        )
    )
    assert set(searched([*done, *again]).values()) == {1}
    assert len(searched([*done, *again])) == 4 * CONFIGS


def test_a_spent_budget_ends_all(fleet, plan_of):
    events = list(sweep(plan_of(4), fleet(FleetMember(), FleetMember()), budget_s=0.0))
    assert trials_of(events) == []
    assert events[-1].reason == "budget"


def test_a_reader_that_leaves_interrupts_all(fleet, plan_of):
    members = FleetMember(), FleetMember(hangs=True)
    both = fleet(*members)
    events = sweep(plan_of(4), both)
    for event in events:
        if isinstance(event, Trial):
            break
    events.close()
    ran = len(members[0].runs)
    time.sleep(0.05)
    assert len(members[0].runs) == ran
    assert members[0].expected[-1] == ()


def test_an_unforeseen_error_in_one_thread_reaches_the_caller(fleet, plan_of):
    class Broken(FleetMember):
        def run(self, request):
            raise ZeroDivisionError("a mistake in an executor")

    with pytest.raises(ZeroDivisionError, match="a mistake"):
        list(sweep(plan_of(4), fleet(FleetMember(hangs=True), Broken())))


def test_closing_a_fleet_ends_what_hangs(fleet, plan_of):
    members = FleetMember(hangs=True), FleetMember(hangs=True)
    both = fleet(*members)
    events = sweep(plan_of(2), both)
    next(events)
    both.close()
    assert [member.closed for member in members] == [1, 1]


def test_one_executor_is_used_from_the_callers_thread(fleet, plan_of):
    alone = FleetMember()
    one = fleet(alone)
    events = list(sweep(plan_of(2), one))
    assert events[-1].reason == "finished"
    assert alone.threads == {threading.current_thread()}
