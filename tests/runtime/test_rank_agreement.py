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
        self.clock, self.come, self.here = clock, set(), set()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self.changed:
            assert allow_overwrite or key not in self.data
            self.data[key] = value
            self.changed.notify_all()

    def key_value_dir_get(self, prefix):
        with self.changed:
            if self.clock:
                awaited = self.here if "/read/" in prefix else self.come
                assert self.changed.wait_for(lambda: awaited <= self.heard(prefix), PATIENCE_S)
            return [(k, v) for k, v in self.data.items() if k.startswith(prefix)]

    def heard(self, prefix):
        """The processes that have read a verdict, or published a statement."""
        wanted = prefix if "/read/" in prefix else "/at/"
        return {int(key.rpartition("/")[2]) for key in self.data if wanted in key}

    def blocking_key_value_get(self, key, timeout_ms):
        with self.changed:
            in_vain = self.clock and "/verdict/" in key and 0 not in self.come
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


def exchange(said, deadline_s=PATIENCE_S / 2, store=None, last=None, blocks=()):
    """The verdict of each process, by process; a process whose statement is None does not take part.

    The process ``last`` says nothing before the others have. ``waited_s`` is added to each verdict.
    """
    store = store or Store()
    here = {me for me in range(len(said)) if said[me]}
    store.come |= here
    store.here = here
    found = {}

    def spoken():
        return sum("/said/" in key for key in store.data)

    before = spoken()

    def take_part(me):
        if me == last:
            with store.changed:
                assert store.changed.wait_for(lambda: spoken() - before == len(here) - 1, PATIENCE_S)
        start = rank_agreement.time.monotonic()
        state = types.SimpleNamespace(client=store, process_id=me, num_processes=len(said))
        one = rank_agreement._Exchange(state, "topic", blocks, said[me], deadline_s)
        one.publish()
        verdict = one.verdict()
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
        assert (verdict["absent"], verdict["present"], verdict["differences"]) == ([], [0, 1, 2, 3], [])


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
    same = exchange([None, None, {"pack 1": "a"}], store=store)[2]
    assert not same["differences"]
    assert not same["absent"]


def test_statements_of_one_name_meet_by_their_content_however_late():
    store = Store()
    for content in ("a", "b", "c"):
        # The last process has not yet read the verdict on the statement before, or has.
        found = exchange([{"use": content}] * 3, store=store, last=2, blocks=("use_config xla",))
        assert not any(verdict["differences"] or verdict["absent"] for verdict in found.values())


def test_the_second_statement_of_one_name_is_compared_like_the_first(monkeypatch):
    monkeypatch.setattr(rank_agreement, "GRACE_S", PATIENCE_S / 20)
    store = Store()
    exchange([{"use": "a"}] * 2, store=store, blocks=("use_config xla",))
    found = exchange([{"use": "b"}, {"use": "c"}], store=store, blocks=("use_config xla",))
    assert [found[me]["differences"] for me in (0, 1)] == [["process 1: use is c; process 0: b"]] * 2


def test_processes_compare_one_another_where_the_first_is_late_and_it_hears_of_them(clock):
    store = Store(clock)
    early = exchange([None, {"pack 1": "a"}, {"pack 1": "b"}], store=store)
    assert {tuple(verdict["differences"]) for verdict in early.values()} == {("process 2: pack 1 is b; process 1: a",)}
    late = exchange([{"pack 1": "a"}, None, None], deadline_s=30.0, store=store)
    assert late[0]["differences"] == ["process 2: pack 1 is b; processes 0, 1: a"]


def test_a_process_of_another_program_in_blocks_of_its_own_is_no_disagreement(clock):
    store = Store(clock)
    state = types.SimpleNamespace(client=store, process_id=1, num_processes=2)
    rank_agreement._Exchange(state, "topic", ("mine",), {"use": "b"}, 1.0).publish()
    found = exchange([{"use": "a"}, None], deadline_s=30.0, store=store, blocks=("yours",))
    assert (found[0]["differences"], found[0]["absent"], found[0]["apart"]) == ([], [1], [1])


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
    monkeypatch.setattr(rank_agreement, "_has_waited", False)
    monkeypatch.setattr(rank_agreement, "_unusable", set())
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

    def verdict(self):
        asked.append(self.statement)
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

    def verdict(self):
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


def test_a_process_that_cannot_read_its_settings_tells_the_others_once(job):
    rank_agreement.report_unusable(UsageError("ATTN_TUNE_X is odd"))
    said = dict(job.client.data)
    assert [value for key, value in said.items() if "/text/" in key] == ['{"settings":"ATTN_TUNE_X is odd"}']
    rank_agreement.report_unusable(UsageError("ATTN_TUNE_X is odd"))
    assert job.client.data == said


def test_unusable_settings_are_the_whole_difference():
    said = {0: {"attn-tune": "1", "on a miss": "answer"}, 1: {rank_statement.UNUSABLE: "odd"}}
    assert differences(said) == ["process 1: settings is odd; process 0: none"]


def test_an_absent_process_is_waited_for_once(job, clock, caplog):
    rank_agreement.next_round()
    waited = []
    for view_of_one in (view(), view()):
        start = clock.monotonic()
        rank_agreement.check(view_of_one)
        waited.append(clock.monotonic() - start)
    first, second = (rank_agreement._deadline_s, rank_agreement.LATER_S)
    assert waited == pytest.approx([first + rank_agreement.VERDICT_S, second + rank_agreement.VERDICT_S])
    assert caplog.text.count("no word of packs") == 1


def test_installed_packages_of_kernels_are_compared(monkeypatch):
    point = types.SimpleNamespace(dist=types.SimpleNamespace(name="other-kernels", version="2.0"))
    monkeypatch.setattr(rank_statement, "entry_points", lambda group: (point,))
    assert rank_statement.statement_of(view())["package other-kernels"] == "2.0"
