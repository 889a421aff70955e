"""Lookups inside traces: a function is traced again when its packs change, and only then."""

import asyncio
import threading

from attn_tune.packs.reader import pack_from_files
from attn_tune.runtime.active import layers
from attn_tune.runtime.active.layers import reload, use_pack
from attn_tune.runtime.lookup.dispatch import lookup
from tests.runtime.lookup.toy_op import HERE, pack
from tests.runtime.packbuilder import H200, OP, pack_files, row, sig, write_zip


def traced_block():
    """A jitted function that looks up while it is traced, and the list of what each trace saw."""
    import jax

    layers.jit_keys()
    seen = []

    @jax.jit
    def f(x):
        seen.append(lookup(OP, sig(1024), device=H200).config["block"])
        return x + seen[-1]

    return f, seen


def test_jit_retraces_once_per_pack_and_never_for_one_it_has_seen():
    f, seen = traced_block()
    first, again = pack(row(sig(1024), 1)), pack(row(sig(1024), 1))
    second = pack(row(sig(1024), 2))
    assert [int(f(0)), int(f(0))] == [8, 8]
    for _ in range(3):
        with use_pack(first):
            assert int(f(0)) == 1
            with use_pack(second):
                assert int(f(0)) == 2
            assert int(f(0)) == 1
        with use_pack(again):
            assert int(f(0)) == 1
        assert int(f(0)) == 8
    # none, first, second over first: the equal pack read again is the same pack.
    assert seen == [8, 1, 2]


def test_jit_retraces_when_the_packs_of_the_process_change(monkeypatch, tmp_path):
    f, seen = traced_block()
    assert int(f(0)) == 8
    assert reload() is False
    assert int(f(0)) == 8
    files = pack_files([row(sig(1024), 5, env=HERE)])
    path = write_zip(tmp_path / "new.atpack", files)
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(path))
    assert reload() is True
    assert [int(f(0)), int(f(0))] == [5, 5]
    monkeypatch.delenv("ATTN_TUNE_PACKS")
    assert reload() is True
    assert int(f(0)) == 8
    assert reload() is False
    assert int(f(0)) == 8
    # One trace a change, and none without one.
    assert seen == [8, 5, 8]


def test_a_change_of_the_process_packs_reaches_functions_under_an_overlay(monkeypatch, tmp_path):
    f, seen = traced_block()
    files = pack_files([row(sig(1024), 5, env=HERE)])
    path = write_zip(tmp_path / "new.atpack", files)
    with use_pack(pack(row(sig(9999), 1))):
        assert int(f(0)) == 8
        monkeypatch.setenv("ATTN_TUNE_PACKS", str(path))
        assert reload() is True
        assert int(f(0)) == 5
    monkeypatch.delenv("ATTN_TUNE_PACKS")
    reload()
    assert seen == [8, 5]


def test_threads_that_jit_get_their_own_packs():
    f, seen = traced_block()
    packs = [pack(row(sig(1024), 100 + i), name=f"p{i}") for i in range(3)]
    barrier = threading.Barrier(len(packs))
    results = {}

    def work(i):
        with use_pack(packs[i]):
            barrier.wait()
            results[i] = {int(f(0)) for _ in range(5)}

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(packs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: {100 + i} for i in range(len(packs))}
    assert sorted(seen) == [100, 101, 102]


def test_both_directions_of_a_custom_gradient_follow_the_pack():
    import jax

    layers.jit_keys()

    def block(direction):
        return lookup(OP, sig(1024), direction, device=H200).config["block"]

    @jax.custom_vjp
    def op(x):
        return x * block("fwd")

    op.defvjp(lambda x: (op(x), None), lambda _, g: (g * block("bwd"),))
    both = jax.jit(jax.value_and_grad(op))
    tuned = pack_from_files(
        pack_files(
            {
                "fwd": [row(sig(1024), 3, env=HERE)],
                "bwd": [row(sig(1024), 5, env=HERE)],
            }
        )
    )
    assert [float(v) for v in both(1.0)] == [8.0, 8.0]
    with use_pack(tuned):
        assert [float(v) for v in both(1.0)] == [3.0, 5.0]
    assert [float(v) for v in both(1.0)] == [8.0, 8.0]


def test_asyncio_tasks_keep_their_own_overlays_and_leave_no_trace():
    f, seen = traced_block()
    packs = {i: pack(row(sig(1024), i), name=f"p{i}") for i in (1, 2)}
    f(0)

    async def task(i, gate, other):
        with use_pack(packs[i]):
            gate.set()
            await other.wait()
            # Interleaved with the other task here: eager lookups are right, and put the jit key right.
            block = lookup(OP, sig(1024), device=H200).config["block"]
            jitted = int(f(0))
            await asyncio.sleep(0)
        return block, jitted

    async def main():
        a, b = asyncio.Event(), asyncio.Event()
        return await asyncio.gather(task(1, a, b), task(2, b, a))

    assert asyncio.run(main()) == [(1, 1), (2, 2)]
    assert lookup(OP, sig(1024), device=H200).config["block"] == 8
    assert int(f(0)) == 8
    assert sorted(seen) == [1, 2, 8]


def test_a_task_with_an_equal_pack_of_its_own_is_not_a_stranger(caplog):
    f, seen = traced_block()

    async def task(mine, barrier):
        with use_pack(mine):
            await barrier.wait()
            found = int(f(0))
            await barrier.wait()
        return found

    async def main():
        barrier = asyncio.Barrier(2)
        equal = [pack(row(sig(1024), 1)) for _ in range(2)]
        return await asyncio.gather(*(task(mine, barrier) for mine in equal))

    assert asyncio.run(main()) == [1, 1]
    assert seen == [1]
    assert not [r for r in caplog.records if "asyncio" in r.getMessage()]


def test_a_trace_holds_what_its_key_says_even_under_interleaved_tasks(caplog):
    f, _ = traced_block()
    held, other = pack(row(sig(1024), 1)), pack(row(sig(1024), 2))

    async def holder(gate, release):
        with use_pack(held):
            gate.set()
            await release.wait()

    async def main():
        gate, release = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(holder(gate, release))
        await gate.wait()
        # The holder's key is still on this thread; what this traces must be what that key means.
        inside = int(f(0))
        release.set()
        await task
        return inside

    asyncio.run(main())
    with use_pack(held):
        assert int(f(0)) == 1
    with use_pack(other):
        assert int(f(0)) == 2
    assert int(f(0)) == 8
