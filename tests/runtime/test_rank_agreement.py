"""Processes of one job: they agree, or all fail with the difference; none waits without an end."""

import threading
import types

import pytest

from attn_tune.runtime import rank_agreement, rank_statement
from attn_tune.runtime.active.settings import Settings, current_settings
from attn_tune.runtime.active.view import View
from attn_tune.runtime.rank_statement import device_statement, differences
from attn_tune.schema import Device, DisagreementError, UsageError
from tests.patience import PATIENCE_S
from tests.runtime.jobs import run_job
from tests.runtime.packbuilder import pack_files, row, sig, write_zip


@pytest.mark.slow
def test_real_processes_with_one_stale_pack_all_fail_alike(tmp_path):
    """Real JAX processes; ``benchmarks/rank_disagreement.py`` does the same with eight."""
    new = write_zip(tmp_path / "new.atpack", pack_files([row(sig(64), 1)]))
    old = write_zip(tmp_path / "old.atpack", pack_files([row(sig(64), 2)]))
    base = {"XDG_DATA_HOME": str(tmp_path)}
    environments = [{**base, "ATTN_TUNE_PACKS": str(p)} for p in (new, new, old)]
    said, _ = run_job(environments, limit_s=3 * PATIENCE_S, grace_s=PATIENCE_S)
    assert [one["error"] for one in said] == ["DisagreementError"] * 3
    assert len({one["message"] for one in said}) == 1
    assert "process 2: pack 1 is user lab 2026.1 (decides b2:" in said[0]["message"]
    assert "processes 0, 1: user lab 2026.1 (decides b2:" in said[0]["message"]
    last = max(one["started"] for one in said)
    # Well under a second on cores that are free; what must not happen is the deadline.
    assert max(one["ended"] for one in said) - last < PATIENCE_S / 2


class Clock:
    """Time that each thread counts for itself: ``monotonic`` and ``sleep`` of the module ``time``."""

    def __init__(self):
        self._of_thread = threading.local()

    def monotonic(self) -> float:
        return getattr(self._of_thread, "now", 0.0)

    def sleep(self, seconds: float) -> None:
        self._of_thread.now = self.monotonic() + seconds
        assert self._of_thread.now < PATIENCE_S, "it waits for ever"


class Store:
    """The key-value store of a job, as jaxlib's client offers it, for threads instead of processes.

    With a ``clock`` a wait takes time on it alone. It is in vain where the process that must write the key does not
    ``come``; every process that comes is waited for, however long it takes.
    """

    def __init__(self, clock=None):
        self.data, self.changed = {}, threading.Condition()
        self.clock, self.come = clock, set()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self.changed:
            assert allow_overwrite or key not in self.data
            self.data[key] = value
            self.changed.notify_all()

    def key_value_dir_get(self, prefix):
        with self.changed:
            if self.clock:
                keys = {f"{prefix}{me}" for me in self.come}
                assert self.changed.wait_for(lambda: keys <= self.data.keys(), PATIENCE_S)
            return [(k, v) for k, v in self.data.items() if k.startswith(prefix)]

    def blocking_key_value_get(self, key, timeout_ms):
        with self.changed:
            in_vain = self.clock and key.endswith("/verdict") and 0 not in self.come
            patience_s = 0 if in_vain else PATIENCE_S if self.clock else timeout_ms / 1000
            if not self.changed.wait_for(lambda: key in self.data, patience_s):
                if self.clock:
                    self.clock.sleep(timeout_ms / 1000)
                raise RuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.data[key]


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(rank_agreement, "time", clock)
    return clock


def exchange(said, deadline_s=PATIENCE_S / 2, store=None, last=None):
    """The verdict of each process, by process; a process whose statement is None does not take part.

    The process ``last`` says nothing before the others have. ``waited_s`` is added to each verdict.
    """
    store = store or Store()
    here = {me for me in range(len(said)) if said[me]}
    store.come |= here
    found = {}

    def others_have_spoken():
        return sum("/say/" in key for key in store.data) == len(here) - 1

    def take_part(me):
        if me == last:
            with store.changed:
                assert store.changed.wait_for(others_have_spoken, PATIENCE_S)
        start = rank_agreement.time.monotonic()
        state = types.SimpleNamespace(client=store, process_id=me, num_processes=len(said))
        verdict = rank_agreement._Exchange(state, "topic", deadline_s).verdict(said[me])
        found[me] = {**verdict, "waited_s": rank_agreement.time.monotonic() - start}

    threads = [threading.Thread(target=take_part, args=(me,)) for me in here]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("odd", [0, 3, 15])
def test_all_processes_get_the_same_differences_in_time(odd, monkeypatch):
    monkeypatch.setattr(rank_agreement, "GRACE_S", PATIENCE_S)
    said = [{"pack 1": "a"} for _ in range(16)]
    said[odd] = {"pack 1": "b", "use 3f2a9c01": "x"}
    found = exchange(said)
    assert all(verdict["waited_s"] < PATIENCE_S / 4 for verdict in found.values())
    assert len(found) == 16
    lines = {tuple(verdict["differences"]) for verdict in found.values()}
    assert len(lines) == 1
    first, second = lines.pop()
    assert first.startswith(f"process {odd}: pack 1 is b; processes ")
    assert second.startswith(f"process {odd}: use 3f2a9c01 is x; processes ")


def test_processes_that_agree_continue():
    found = exchange([{"pack 1": "a"}] * 4, last=2)
    for verdict in found.values():
        assert verdict.pop("waited_s") < PATIENCE_S / 4
        assert verdict == {"absent": [], "present": [0, 1, 2, 3], "differences": []}


@pytest.mark.parametrize("absent", [0, 2])
def test_an_absent_process_costs_the_deadline_and_no_more(absent, clock):
    said = [{"pack 1": "a"} for _ in range(3)]
    said[absent] = None
    found = exchange(said, deadline_s=30.0, store=Store(clock))
    assert len(found) == 2
    assert all(v["absent"] == [absent] and not v["differences"] for v in found.values())
    # Process 0 waits for the others, and they for its verdict.
    deadline_s = {0: 30.0 + rank_agreement.VERDICT_S, 2: 30.0}[absent]
    assert max(v["waited_s"] for v in found.values()) == pytest.approx(deadline_s)


def test_once_somebody_differs_an_absent_process_costs_the_grace_alone(clock):
    found = exchange([{"pack 1": "a"}, {"pack 1": "b"}, None], store=Store(clock))
    assert found[0]["differences"] == ["process 1: pack 1 is b; process 0: a"]
    assert found[0]["waited_s"] == pytest.approx(rank_agreement.GRACE_S)


def test_a_latecomer_compares_itself_with_the_first(clock):
    store = Store(clock)
    exchange([{"pack 1": "a"}, {"pack 1": "a"}, None], store=store)
    late = exchange([None, None, {"pack 1": "b"}], store=store)
    assert late[2]["differences"] == ["process 2: pack 1 is b; process 0: a"]
    assert not exchange([None, None, {"pack 1": "a"}], store=store)[2]["differences"]


def test_the_message_names_the_camps():
    said = {i: {"a": "1"} for i in range(12)} | {3: {"a": "2"}, 5: {"a": "2"}, 7: {"b": "3"}}
    assert differences(said) == [
        "processes 3, 5: a is 2; processes 0, 1, 2, 4, 6, 8, 9, 10 and 1 more: 1",
        "process 7: a is none; processes 0, 1, 2, 4, 6, 8, 9, 10 and 1 more: 1",
        "process 7: b is 3; processes 0, 1, 2, 4, 6, 8, 9, 10 and 1 more: none",
    ]


@pytest.fixture
def job(monkeypatch, clock):
    """This process as number 1 of 2, and its store. The other one never comes."""
    store = Store(clock)
    state = types.SimpleNamespace(client=store, process_id=1, num_processes=2)
    module = types.SimpleNamespace(global_state=state)
    monkeypatch.setitem(rank_agreement.sys.modules, "jax._src.distributed", module)
    return state


def view():
    return View(Settings())


H200 = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)


def test_a_process_that_lacks_a_library_of_a_packs_kernel_says_otherwise(monkeypatch):
    shipped = View(current_settings())
    here = device_statement(shipped, H200)
    assert here["module cutlass"] == here["library fa4-jax"] == "not installed"
    monkeypatch.setattr(rank_statement, "is_installed", lambda module: True)
    monkeypatch.setattr(rank_statement.environments, "distribution_version", lambda name: "0.1.0")
    there = device_statement(shipped, H200)
    assert [line.split(";")[0] for line in differences({0: here, 1: here, 2: there})] == [
        "process 2: library fa4-jax is 0.1.0",
        "process 2: library nvidia-cutlass-dsl is 0.1.0",
        "process 2: module cutlass is installed",
        "process 2: module fa4_jax is installed",
    ]


def test_libraries_that_no_kernel_of_the_platform_needs_are_no_difference(monkeypatch):
    cpu = Device(platform="cpu", family="x86_64", variant="cpu-x86_64", units=2)
    shipped = View(current_settings())
    here = device_statement(shipped, cpu)
    monkeypatch.setattr(rank_statement, "is_installed", lambda module: False)
    assert device_statement(shipped, cpu) == here
    assert not any(name.startswith(("module", "library")) for name in here)


def test_an_error_stays(job, monkeypatch):
    asked = []

    def verdict(self, said):
        asked.append(said)
        return {
            "absent": [],
            "present": [0, 1],
            "differences": ["process 0: pack 1 is b; process 1: a"],
        }

    monkeypatch.setattr(rank_agreement._Exchange, "verdict", verdict)
    mine = view()
    for _ in range(3):
        with pytest.raises(DisagreementError, match="process 0: pack 1 is b"):
            rank_agreement.check(mine)
    assert len(asked) == 1


def test_after_a_reload_all_are_asked_again_changed_or_not(job, monkeypatch):
    asked = []

    def verdict(self, said):
        asked.append(self.prefix)
        return {"absent": [], "present": [0, 1], "differences": []}

    monkeypatch.setattr(rank_agreement._Exchange, "verdict", verdict)
    mine = view()
    for _ in range(2):
        rank_agreement.check(mine)
        rank_agreement.check(mine)
        rank_agreement.next_round()
    assert len(set(asked)) == len(asked) == 2


def test_a_store_that_is_gone_is_a_warning(job, monkeypatch, caplog):
    def gone(*args, **more):
        raise RuntimeError("UNAVAILABLE: socket closed")

    monkeypatch.setattr(job.client, "key_value_set", gone)
    rank_agreement.check(view())
    assert "UNAVAILABLE" in caplog.text


def test_the_deadline(job, monkeypatch, caplog):
    monkeypatch.setattr(rank_agreement, "_deadline_s", 30.0)
    rank_agreement.set_rank_deadline(0)
    rank_agreement.check(view())
    assert not job.client.data
    rank_agreement.set_rank_deadline(0.1)
    rank_agreement.check(view())
    assert "no word of packs from processes [0] within 0.1 s" in caplog.text
    with pytest.raises(UsageError, match="-1"):
        rank_agreement.set_rank_deadline(-1)
