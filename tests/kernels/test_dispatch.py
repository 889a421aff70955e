"""Choosing a kernel and a config: what is asked for, what is tuned, what is left."""

import asyncio
import dataclasses
import threading
import timeit
from dataclasses import dataclass

import pytest

from attn_tune.kernels import registry
from attn_tune.kernels.dispatch import choose, explain, lookup
from attn_tune.kernels.spec import KernelSpec, Op, Search
from attn_tune.runtime import misses, overlay, snapshot
from attn_tune.runtime.answer import DeviceLevel, Rung, SourceKind
from attn_tune.runtime.environments import current_environment
from attn_tune.runtime.overlay import reload, use_pack
from attn_tune.runtime.packs import pack_from_files
from attn_tune.schema import (
    Grade,
    IntegrityError,
    NoDataError,
    Signature,
    UnsupportedError,
    UsageError,
)
from tests.runtime.packbuilder import (
    FIELDS,
    H200,
    OP,
    pack_files,
    row,
    sig,
    write_folder,
    write_zip,
)

SOURCE = ("attn_tune.schema.errors",)


@dataclass(frozen=True, kw_only=True)
class Config:
    block: int = 8


@dataclass(frozen=True, kw_only=True)
class OtherConfig:
    block: int = 4


def kernel(name, config=Config, directions=("fwd", "bwd"), **more):
    search = Search(
        config=config,
        heuristic=lambda problem, device: config(),
        candidates={"": lambda problem, device: [config()]},
        infeasible=lambda problem, device, c: (
            f"block {c.block} does not fit" if c.block > 1000 else None
        ),
        call="",
        outputs={"": ("out",)},
    )
    return KernelSpec(
        op=OP,
        name=name,
        backend="xla",
        searches=dict.fromkeys(directions, search),
        modules=SOURCE,
        **{"unsupported": lambda problem, direction, device: None, **more},
    )


def no_float16(problem, direction, device):
    return "it has no float16" if problem["dtype"] == "float16" else None


class Problem(dict):
    """A problem that can be asked about twice: hashable by its items."""

    def __hash__(self):
        return hash(tuple(sorted(self.items(), key=str)))


TOY = Op(
    name=OP,
    version=1,
    directions=("fwd", "bwd"),
    fields=FIELDS,
    to_signature=lambda p: Signature.build(OP, 1, FIELDS, p),
    from_signature=lambda s: Problem(s.values),
    flops=lambda p, d: 1,
    bytes_moved=lambda p, d: 1,
    inputs="",
    reference="",
    baseline="",
)
KERNELS = (
    kernel("alpha", unsupported=no_float16, priority={"cuda": 1}),
    kernel("beta", OtherConfig, directions=("fwd",)),
    kernel("absent", requires=("no_such_module_anywhere",), priority={"cuda": 9, "cpu": 9}),
)
HERE = dataclasses.replace(
    current_environment(), source_hash=KERNELS[0].environment(current_environment()).source_hash
)


@pytest.fixture(autouse=True)
def toy(monkeypatch, tmp_path):
    """A registry of one toy op, and no packs but those a test puts there."""
    monkeypatch.setattr(registry, "ops", lambda: {OP: TOY})
    monkeypatch.setattr(registry, "kernels", lambda: {k.id: k for k in KERNELS})
    for name in ("ATTN_TUNE_PACKS", "ATTN_TUNE_PROJECT_PACK", "ATTN_TUNE_DEVICE_AS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(snapshot, "_current", None)
    monkeypatch.setattr(misses, "_mode", misses.MissMode.HEURISTIC)
    misses.reset_stats()


def pack(*rows, name="lab"):
    return pack_from_files(pack_files([{**r, "env": HERE} for r in rows], name=name))


def problem(text):
    return Problem(Signature.parse(text, FIELDS).values)


def test_the_heuristic_of_the_platforms_preferred_kernel_that_can():
    choice = choose(OP, "fwd", problem(sig(1024)), device=H200)
    assert (choice.spec.name, choice.config) == ("alpha", Config())
    assert (choice.answer.rung, choice.answer.config) == (Rung.HEURISTIC, {"block": 8})
    without = choose(OP, "fwd", problem(sig(1024, dtype="float16")), device=H200)
    assert without.spec.name == "beta"
    assert choose(OP, "fwd", problem(sig(1024)), device=H200, kernel="toy/beta").spec.name == "beta"
    # Without a preference the name decides.
    assert choose(OP, "fwd", problem(sig(1024))).spec.name == "alpha"


def test_nothing_supports_lists_every_reason():
    with pytest.raises(UnsupportedError) as caught:
        choose(OP, "bwd", problem(sig(1024, dtype="float16")), device=H200)
    for words in ("it has no float16", "it has no bwd", "no_such_module_anywhere", sig(1024)[:15]):
        assert words in str(caught.value)
    with pytest.raises(UnsupportedError, match="no_such_module_anywhere"):
        choose(OP, "fwd", problem(sig(1024)), device=H200, kernel="absent")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"op": "toi"}, "did you mean 'toy'"),
        ({"direction": "back"}, "unknown direction 'back'"),
        ({"kernel": "alhpa"}, "did you mean 'alpha'"),
        ({"problem": "toy/v2 b=1 t=1 h=1 dtype=x"}, "toy/v1"),
        ({"problem": "toy/v1 b=1"}, "needs the field"),
    ],
)
def test_a_wrong_name_is_a_usage_error_with_a_way_out(arguments, words):
    asked = {"op": OP, "direction": "fwd", "problem": sig(1024), "device": H200, **arguments}
    with pytest.raises(UsageError, match=words):
        choose(asked.pop("op"), asked.pop("direction"), asked.pop("problem"), **asked)


def test_explicit_configs_are_checked_and_used():
    asked = problem(sig(1024))
    choice = choose(OP, "fwd", asked, device=H200, config=OtherConfig(block=2))
    assert (choice.spec.name, choice.config.block) == ("beta", 2)
    assert choice.answer.rung is Rung.EXPLICIT
    mapped = choose(OP, "fwd", asked, device=H200, kernel="alpha", config={"block": 16})
    assert mapped.config == Config(block=16)
    with pytest.raises(UnsupportedError, match="block 2000 does not fit"):
        choose(OP, "fwd", asked, device=H200, kernel="alpha", config={"block": 2000})
    with pytest.raises(UnsupportedError, match="no float16"):
        choose(
            OP,
            "fwd",
            problem(sig(1, dtype="float16")),
            device=H200,
            kernel="alpha",
            config=Config(),
        )
    with pytest.raises(UsageError, match="no knob 'blok'"):
        choose(OP, "fwd", asked, device=H200, kernel="alpha", config={"blok": 16})
    with pytest.raises(UsageError, match="kernel="):
        choose(OP, "fwd", asked, device=H200, config={"block": 16})
    with pytest.raises(UsageError, match="is a Config, got OtherConfig"):
        choose(OP, "fwd", asked, device=H200, kernel="alpha", config=OtherConfig())
    # Two kernels share this class: the caller has to say which.
    with pytest.raises(UsageError, match="absent, alpha"):
        choose(OP, "fwd", asked, device=H200, config=Config())


def test_a_tuned_row_answers_with_its_provenance():
    with use_pack(pack(row(sig(1024), 64))) as active:
        choice = choose(OP, "fwd", problem(sig(1024)), device=H200)
        answer = choice.answer
    assert choice.config == Config(block=64)
    assert (answer.rung, answer.level, answer.grade) == (
        Rung.EXACT,
        DeviceLevel.EXACT,
        Grade.VERIFIED,
    )
    assert (answer.source, answer.source_kind) == ("lab 2026.1", SourceKind.OVERLAY)
    assert (answer.pack_digest, answer.regret_ppm) == (active.digest, 4000)
    assert lookup(OP, sig(1024), device=H200).is_miss


def test_rows_that_no_longer_fit_are_skipped_with_the_reason():
    rows = [
        row(sig(1024), config={"blok": 1}),
        row(sig(1024), 2000, kernel="beta", rank=1),
        row(sig(1024), 3, kernel="gone", rank=2),
        row(sig(1024), 4, kernel="absent", rank=3),
        row(sig(1000), 5),
    ]
    with use_pack(pack(*rows)):
        answer = lookup(OP, sig(1024), device=H200)
        text = str(explain(OP, sig(1024), device=H200))
    assert (answer.rung, answer.config) == (Rung.BUCKET, {"block": 5})
    reasons = [r.reason for r in answer.rejected]
    for words in (
        "no knob 'blok'",
        "block 2000 does not fit",
        "toy/gone is not installed",
        "no_such",
    ):
        assert sum(words in r for r in reasons) == 1
        assert words in text


def test_a_stale_row_is_used_and_says_so():
    old = dataclasses.replace(HERE, source_hash="b2:00")
    files = pack_files([row(sig(1024), 64, env=old)])
    with use_pack(pack_from_files(files)):
        assert lookup(OP, sig(1024), device=H200).grade is Grade.STALE
    with use_pack(pack_from_files(pack_files([row(sig(1024), 64, env=HERE)], contract=7))):
        answer = lookup(OP, sig(1024), device=H200)
    assert answer.is_miss
    assert "contract" in answer.rejected[0].reason


def test_overlays_nest_and_the_innermost_is_asked_first():
    outer = pack(row(sig(1024), 1), row(sig(4096), 2), name="outer")
    inner = pack(row(sig(1024), 3), name="inner")

    def blocks():
        return [lookup(OP, sig(t), device=H200).config["block"] for t in (1024, 4096)]

    with use_pack(outer):
        assert blocks() == [1, 2]
        with use_pack(inner):
            assert blocks() == [3, 2]
        assert blocks() == [1, 2]
        with pytest.raises(ZeroDivisionError), use_pack(inner):
            raise ZeroDivisionError
        assert blocks() == [1, 2]
    assert blocks() == [8, 8]


def test_user_packs_project_pack_and_the_broken_one(monkeypatch, tmp_path, caplog):
    def write(name, block, length=1024):
        files = pack_files([row(sig(length), block, env=HERE)], name=name)
        return write_zip(tmp_path / f"{name}.atpack", files)

    broken = write_folder(tmp_path / "broken", pack_files([row(sig(1024), 99)]))
    (broken / "manifest.json").write_bytes(b"{}")
    user, project = write("user", 1), write("project", 2, 4096)
    home = tmp_path / "data" / "attn-tune" / "packs"
    home.mkdir(parents=True)
    write("home", 3, 9000).rename(home / "home.atpack")
    monkeypatch.setenv("ATTN_TUNE_PACKS", f"{broken}:{user}:{tmp_path}/missing.atpack")
    monkeypatch.setenv("ATTN_TUNE_PROJECT_PACK", str(project))
    reload()
    answers = [lookup(OP, sig(t), device=H200) for t in (1024, 4096, 9000, 10)]
    assert [a.config["block"] for a in answers] == [1, 2, 3, 8]
    assert [a.source_kind for a in answers] == [
        SourceKind.USER,
        SourceKind.PROJECT,
        SourceKind.USER,
        None,
    ]
    lookup(OP, sig(77), device=H200)
    warned = [r.getMessage() for r in caplog.records if "ignored" in r.getMessage()]
    assert len(warned) == 2
    assert any("checksum" in w for w in warned)
    assert any("missing.atpack" in w for w in warned)
    assert "ignored" in str(explain(OP, sig(1024), device=H200))
    with pytest.raises(IntegrityError, match="checksum"):
        use_pack(broken)


def test_nothing_is_searched_for_in_the_working_directory(monkeypatch, tmp_path):
    write_folder(tmp_path / ".attn-tune" / "packs" / "x", pack_files([row(sig(1024), 99)]))
    write_folder(tmp_path / "packs" / "y", pack_files([row(sig(1024), 99)]))
    monkeypatch.chdir(tmp_path)
    reload()
    assert lookup(OP, sig(1024), device=H200).is_miss


def test_miss_modes(caplog):
    with use_pack(pack(row(sig(8192), 1))):
        misses.set_miss_mode("warn")
        for _ in range(3):
            assert lookup(OP, sig(1024), device=H200).is_miss
        lookup(OP, sig(100), device=H200)
        warned = [r.getMessage() for r in caplog.records]
        assert len(warned) == 2
        assert "t 1024 vs 8192" in warned[0]
        misses.set_miss_mode("strict")
        with pytest.raises(NoDataError, match="t 1024 vs 8192"):
            lookup(OP, sig(1024), device=H200)
        assert lookup(OP, sig(8192), device=H200).rung is Rung.EXACT
        explain(OP, sig(1024), device=H200)
    with pytest.raises(UsageError, match="strict"):
        misses.set_miss_mode("loud")


def test_stats_count_by_rung_within_bounds(monkeypatch):
    monkeypatch.setattr(misses, "MAX_KEYS", 3)
    with use_pack(pack(row(sig(1024), 1))):
        for t in (1024, 1024, 1000, 1025, 100_000, 100_000, 200_000, 300_000, 400_000):
            lookup(OP, sig(t), device=H200)
    found = misses.stats()
    assert found.lookups[Rung.EXACT] == 2
    assert found.lookups[Rung.BUCKET] == 1
    assert found.lookups[Rung.NEIGHBOUR] == 1
    assert found.lookups[Rung.HEURISTIC] == 5
    assert (found.misses[0].count, "t=100000" in found.misses[0].signature) == (2, True)
    assert (len(found.misses), found.forgotten_misses) == (3, 1)


def test_the_memo_is_bounded(monkeypatch):
    monkeypatch.setattr(snapshot, "MEMO_LIMIT", 10)
    for t in range(1, 40):
        lookup(OP, sig(t), device=H200)
    assert len(snapshot.current_snapshot().memo(()).entries) <= 10


def test_threads_have_their_own_overlays():
    packs = [pack(row(sig(1024), 100 + i), name=f"p{i}") for i in range(4)]
    barrier = threading.Barrier(len(packs))
    seen = {}

    def work(i):
        before = lookup(OP, sig(1024), device=H200).config["block"]
        with use_pack(packs[i]):
            barrier.wait()
            inside = {lookup(OP, sig(1024), device=H200).config["block"] for _ in range(50)}
            barrier.wait()
        seen[i] = (before, inside, lookup(OP, sig(1024), device=H200).config["block"])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(packs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {i: (8, {100 + i}, 8) for i in range(len(packs))}


def test_a_cold_start_under_many_threads_answers_alike(monkeypatch, tmp_path):
    rows = [row(sig(t), t % 1000, env=HERE) for t in range(1000, 1400)]
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(write_zip(tmp_path / "x.atpack", pack_files(rows))))
    monkeypatch.setattr(snapshot, "_current", None)
    barrier = threading.Barrier(8)
    seen = []

    def work():
        barrier.wait()
        seen.append([lookup(OP, sig(t), device=H200).config["block"] for t in range(1000, 1400, 7)])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [[t % 1000 for t in range(1000, 1400, 7)]] * 8


def traced_block():
    """A jitted function that looks up while it is traced, and the list of what each trace saw."""
    import jax

    overlay.jit_keys()
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
    # none, first, second over first: the equal pack read anew is the same pack.
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
    assert seen[:2] == [8, 5]
    assert len(seen) <= 3


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

    overlay.jit_keys()

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
        # The holder's key is still on this thread; whatever this traces must be what that key means.
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


GOLDEN = """\
toy.fwd  toy/v1 b=1 t=6144 h=64 dtype=bfloat16
device nvidia-h200  (sm_90, 132 units, 232448 B on chip, 700 W; {digest})
 1 use_pack empty 2026.1                no rows of toy.fwd for sm_90
 2 use_pack lab 2026.1, device exact    bucket: alpha block=2000  rejected: block 2000 does not fit
 3 use_pack lab 2026.1, device exact    miss: nearest row differs in t 6144 vs 8000
 4 use_pack lab 2026.1, device variant  neighbour: alpha block=64  CHOSEN (verified, winner, \
1.50x away: toy/v1 b=1 t=4096 h=64 dtype=bfloat16, device differs in power_watts 700 vs 500, \
regret at most 0.4 % where measured, 1.50x the heuristic)
 5 heuristic                            alpha block=8
 6 kernel toy/absent                    unsupported: the module 'no_such_module_anywhere' is not installed"""


def test_explain_reads_like_this():
    capped = dataclasses.replace(H200, power_watts=500)
    lab = pack(row(sig(8000), 2000), row(sig(4096), 64, device=capped))
    b200 = dataclasses.replace(H200, family="sm_100", variant="nvidia-b200")
    empty = pack(row(sig(1), 1, device=b200), name="empty")
    with use_pack(lab), use_pack(empty):
        found = explain(OP, sig(6144), device=H200)
    assert str(found) == GOLDEN.format(digest=H200.digest)
    assert found.answer.row_signature == sig(4096)
    assert found.heuristic.config == {"block": 8}


def test_explain_when_nothing_can_run():
    found = explain(OP, sig(1, dtype="float16"), "bwd", device=H200)
    assert found.answer is None
    assert "nothing can run" in str(found)
    assert len(found.kernels) == 3


def test_the_device_and_platform_follow_the_override(monkeypatch):
    monkeypatch.setenv("ATTN_TUNE_DEVICE_AS", "nvidia-h200")
    reload()
    # Not the exact device: the table's figures are not the board's.
    with use_pack(pack(row(sig(1024), 64))):
        answer = lookup(OP, sig(1024))
    assert (answer.device, answer.level) == ("nvidia-h200", DeviceLevel.VARIANT)


def test_a_warm_lookup_is_a_dictionary_look_up(capsys):
    """Prints its figures; asserts only what a slow machine cannot miss."""
    asked = problem(sig(1024))
    with use_pack(pack(row(sig(1024), 1))):
        cold = timeit.timeit(lambda: choose(OP, "fwd", asked, device=H200), number=1)
        warm = min(timeit.repeat(lambda: choose(OP, "fwd", asked, device=H200), number=2000)) / 2000
        text = sig(1024)
        by_text = min(timeit.repeat(lambda: lookup(OP, text), number=2000)) / 2000
    with capsys.disabled():
        print(
            f"\nfirst {cold * 1e3:.2f} ms, warm choose {warm * 1e6:.2f} us, by text {by_text * 1e6:.2f} us"
        )
    assert warm < 1e-3
