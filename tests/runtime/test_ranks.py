"""Processes of one job: they agree, or all fail with the difference; nobody waits without an end."""

import threading
import time
import types

import pytest

from attn_tune.runtime import ranks
from attn_tune.runtime.statement import differences
from attn_tune.schema import DisagreementError, UsageError
from tests.runtime.jobs import run_job
from tests.runtime.packbuilder import pack_files, row, sig, write_zip


@pytest.mark.slow
def test_real_processes_with_one_stale_pack_all_fail_alike(tmp_path):
    """Real JAX processes; ``benchmarks/rank_disagreement.py`` does the same with eight."""
    new = write_zip(tmp_path / "new.atpack", pack_files([row(sig(64), 1)]))
    old = write_zip(tmp_path / "old.atpack", pack_files([row(sig(64), 2)]))
    base = {"XDG_DATA_HOME": str(tmp_path)}
    said, _ = run_job([{**base, "ATTN_TUNE_PACKS": str(p)} for p in (new, new, old)])
    assert [one["error"] for one in said] == ["DisagreementError"] * 3
    assert len({one["message"] for one in said}) == 1
    assert "process 2: pack 1 is user lab 2026.1 (decides b2:" in said[0]["message"]
    assert "processes 0, 1: user lab 2026.1 (decides b2:" in said[0]["message"]
    last = max(one["started"] for one in said)
    # Well under a second on cores that are free; what must not happen is the deadline.
    assert max(one["ended"] for one in said) - last < 10


class Store:
    """The key-value store of a job, as jaxlib's client offers it, for threads instead of processes."""

    def __init__(self):
        self.data, self.changed = {}, threading.Condition()

    def key_value_set(self, key, value, allow_overwrite=False):
        with self.changed:
            assert allow_overwrite or key not in self.data
            self.data[key] = value
            self.changed.notify_all()

    def key_value_dir_get(self, prefix):
        with self.changed:
            return [(k, v) for k, v in self.data.items() if k.startswith(prefix)]

    def blocking_key_value_get(self, key, timeout_ms):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.data, timeout_ms / 1000):
                raise RuntimeError(f"DEADLINE_EXCEEDED: {key}")
            return self.data[key]


def exchange(said, deadline_s=5.0, delays=None, store=None):
    """What each process makes of it: verdicts by process; a process whose statement is None does not take part."""
    store = store or Store()
    found = {}

    def take_part(me):
        time.sleep((delays or {}).get(me, 0))
        state = types.SimpleNamespace(client=store, process_id=me, num_processes=len(said))
        found[me] = ranks._Exchange(state, "topic", deadline_s).verdict(said[me])

    threads = [
        threading.Thread(target=take_part, args=(me,)) for me in range(len(said)) if said[me]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.mark.parametrize("odd", [0, 3, 15])
def test_whoever_differs_all_are_told_the_same_in_time(odd):
    said = [{"pack 1": "a"} for _ in range(16)]
    said[odd] = {"pack 1": "b", "pin 1": "x"}
    start = time.monotonic()
    found = exchange(said)
    assert time.monotonic() - start < 1.0
    assert len(found) == 16
    lines = {tuple(verdict["differences"]) for verdict in found.values()}
    assert len(lines) == 1
    first, second = lines.pop()
    assert first.startswith(f"process {odd}: pack 1 is b; processes ")
    assert second.startswith(f"process {odd}: pin 1 is x; processes ")


def test_those_who_agree_go_on():
    found = exchange([{"pack 1": "a"}] * 4, delays={2: 0.2})
    assert all(
        v == {"absent": [], "present": [0, 1, 2, 3], "differences": []} for v in found.values()
    )


@pytest.mark.parametrize("absent", [0, 2])
def test_an_absent_process_costs_the_deadline_and_no_more(absent):
    said = [{"pack 1": "a"} for _ in range(3)]
    said[absent] = None
    start = time.monotonic()
    found = exchange(said, deadline_s=0.3)
    assert 0.25 < time.monotonic() - start < 3
    assert all(v["absent"] == [absent] and not v["differences"] for v in found.values())


def test_a_latecomer_compares_itself_with_the_first():
    store = Store()
    exchange([{"pack 1": "a"}, {"pack 1": "a"}, None], deadline_s=0.2, store=store)
    late = exchange([None, None, {"pack 1": "b"}], deadline_s=0.2, store=store)
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
def job(monkeypatch):
    """This process as number 1 of 2, and its store."""
    store = Store()
    state = types.SimpleNamespace(client=store, process_id=1, num_processes=2)
    module = types.SimpleNamespace(global_state=state)
    monkeypatch.setitem(ranks.sys.modules, "jax._src.distributed", module)
    return state


def view():
    from attn_tune.runtime.overlay import Overlays, View
    from attn_tune.runtime.snapshot import Snapshot

    return View(Snapshot(()), Overlays(()))


def test_an_error_stays(job, monkeypatch):
    asked = []

    def verdict(self, said):
        asked.append(said)
        return {
            "absent": [],
            "present": [0, 1],
            "differences": ["process 0: pack 1 is b; process 1: a"],
        }

    monkeypatch.setattr(ranks._Exchange, "verdict", verdict)
    mine = view()
    for _ in range(3):
        with pytest.raises(DisagreementError, match="process 0: pack 1 is b"):
            ranks.check(mine)
    assert len(asked) == 1


def test_after_a_reload_all_are_asked_again_changed_or_not(job, monkeypatch):
    asked = []

    def verdict(self, said):
        asked.append(self.prefix)
        return {"absent": [], "present": [0, 1], "differences": []}

    monkeypatch.setattr(ranks._Exchange, "verdict", verdict)
    mine = view()
    for _ in range(2):
        ranks.check(mine)
        ranks.check(mine)
        ranks.next_round()
    assert len(set(asked)) == len(asked) == 2


def test_a_store_that_is_gone_is_a_warning(job, monkeypatch, caplog):
    def gone(*args, **more):
        raise RuntimeError("UNAVAILABLE: socket closed")

    monkeypatch.setattr(job.client, "key_value_set", gone)
    ranks.check(view())
    assert "UNAVAILABLE" in caplog.text


def test_the_deadline(job, monkeypatch, caplog):
    monkeypatch.setenv("ATTN_TUNE_RANKS_DEADLINE", "0")
    ranks.check(view())
    assert not job.client.data
    monkeypatch.setenv("ATTN_TUNE_RANKS_DEADLINE", "0.1")
    ranks.check(view())
    assert "no word of packs from processes [0] within 0.1 s" in caplog.text
    monkeypatch.setenv("ATTN_TUNE_RANKS_DEADLINE", "soon")
    with pytest.raises(UsageError, match="soon"):
        ranks.check(view())
