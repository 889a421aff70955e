"""Many threads, forks, and what answers share."""

import dataclasses
import json
import os
import threading

import pytest

from attn_tune.runtime import locks, lookup_counters
from attn_tune.runtime.active import settings, sources
from attn_tune.runtime.active.layers import reload, use_pack
from attn_tune.runtime.lookup.answer import Rung
from attn_tune.runtime.lookup.dispatch import lookup
from tests.patience import PATIENCE_S
from tests.runtime.lookup.toy_op import HERE, pack
from tests.runtime.packbuilder import H200, OP, pack_files, row, sig, write_zip


def ask(t=1024):
    return lookup(OP, sig(t), device=H200)


def test_no_count_is_lost():
    def work():
        for _ in range(5000):
            lookup(OP, text, device=H200)

    text = sig(1024)
    with use_pack(pack(row(text, 64))):
        pass
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lookup_counters.stats().lookups[Rung.UNTUNED] == 8 * 5000


def test_lookups_during_reloads_answer_by_one_pack_or_the_other(monkeypatch, tmp_path):
    paths = [
        write_zip(
            tmp_path / f"{n}.atpack",
            pack_files([row(sig(t), n, env=HERE) for t in (1024, 9000)], name=f"p{n}"),
        )
        for n in (1, 2)
    ]
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(paths[0]))
    reload()
    stop, wrong = threading.Event(), []

    def work():
        while not stop.is_set():
            answer = ask()
            if (answer.source, answer.config["block"]) not in (("p1 2026.1", 1), ("p2 2026.1", 2)):
                wrong.append(answer)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(10):
        monkeypatch.setenv("ATTN_TUNE_PACKS", str(paths[n % 2]))
        reload()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert ask().config["block"] == 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_looks_up_although_its_parent_held_every_lock():
    locked = [settings._lock, sources._lock]
    for lock in locked:
        lock.__enter__()
    try:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                settings._current = None
                status = 0 if ask().is_miss else 2
            finally:
                os._exit(status)
    finally:
        for lock in locked:
            lock.__exit__(None, None, None)
    # Waits for a child that hangs no longer than the alarm that ends it.
    killer = threading.Timer(PATIENCE_S, os.kill, (child, 9))
    killer.start()
    _, status = os.waitpid(child, 0)
    killer.cancel()
    assert status == 0


def test_a_lock_is_a_lock():
    lock, total = locks.Lock(), [0]

    def work():
        for _ in range(2000):
            with lock:
                before = total[0]
                total[0] = before + 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert total == [8000]


def test_shared_answers_cannot_be_changed():
    config = ask().config
    for change in (
        lambda: config.update(block=1),
        lambda: config.__setitem__("block", 1),
        lambda: config.pop("block"),
        lambda: config.clear(),
    ):
        with pytest.raises(TypeError, match="shared"):
            change()
    assert json.loads(json.dumps(config)) == config == {"block": 8}
    assert dataclasses.asdict(ask())["config"] == config
    assert {**config, "block": 1} == {"block": 1}
