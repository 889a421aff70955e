"""Looking a row up: which packs are asked, in which order, and what becomes of what they say."""

import dataclasses
import json
import threading
import timeit
import warnings

import pytest

from attn_tune.packs.reader import pack_from_files
from attn_tune.runtime import lookup_counters, misses
from attn_tune.runtime.active import layers, settings, view
from attn_tune.runtime.active.layers import reload, use_pack
from attn_tune.runtime.lookup.answer import DeviceLevel, Rung, SourceKind
from attn_tune.runtime.lookup.dispatch import choose, explain, lookup
from attn_tune.schema import Grade, IntegrityError, NoDataError, StorageError, UsageError
from attn_tune.schema.errors import AttnTuneWarning
from tests.runtime.lookup.toy_op import HERE, pack, problem
from tests.runtime.packbuilder import H200, OP, pack_files, row, sig, write_folder, write_zip


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


def test_packs_nest_and_the_innermost_is_asked_first():
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


def test_blocks_that_end_in_another_order_than_they_began_take_out_their_own():
    def held(block):
        with use_pack(pack(row(sig(1024), block), name=f"block{block}")):
            yield

    def now():
        return lookup(OP, sig(1024), device=H200).config["block"]

    first, second = held(1), held(3)
    next(first), next(second)
    assert now() == 3
    first.close()
    assert now() == 3
    second.close()
    assert now() == 8
    # The same pack twice.
    first, second = held(1), held(1)
    next(first), next(second)
    first.close()
    assert now() == 1
    second.close()
    assert now() == 8


def test_user_packs_of_variable_and_folder_answer_and_a_broken_one_is_ignored(monkeypatch, tmp_path, caplog):
    def write(name, block, length=1024):
        files = pack_files([row(sig(length), block, env=HERE)], name=name)
        return write_zip(tmp_path / f"{name}.atpack", files)

    broken = write_folder(tmp_path / "broken", pack_files([row(sig(1024), 99)]))
    (broken / "manifest.json").write_bytes(b"{}")
    user, second = write("user", 1), write("second", 2, 4096)
    home = tmp_path / "data" / "attn-tune" / "packs"
    home.mkdir(parents=True)
    write("home", 3, 9000).rename(home / "home.atpack")
    monkeypatch.setenv("ATTN_TUNE_PACKS", f"{broken}:{user}:{second}:{tmp_path}/missing.atpack")
    reload()
    answers = [lookup(OP, sig(t), device=H200) for t in (1024, 4096, 9000, 10)]
    assert [a.config["block"] for a in answers] == [1, 2, 3, 8]
    assert [a.source_kind for a in answers] == [
        SourceKind.USER,
        SourceKind.USER,
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


@pytest.mark.parametrize("write", [write_folder, write_zip])
def test_a_pack_whose_rows_could_not_be_read_once_answers_after_a_reload(monkeypatch, tmp_path, write):
    path = write(tmp_path / "job.atpack", pack_files([row(sig(1024), 1, env=HERE)]))
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(path))

    def block():
        return lookup(OP, sig(1024), device=H200).config["block"]

    reload()
    # Its manifest is read here, and its rows when they are asked for.
    assert settings.current_settings().sources[0].pack is not None
    path.rename(tmp_path / "away")
    assert block() == 8
    (tmp_path / "away").rename(path)
    assert block() == 8
    assert reload()
    assert block() == 1
    assert not reload()


def test_the_working_directory_is_not_searched(monkeypatch, tmp_path):
    write_folder(tmp_path / ".attn-tune" / "packs" / "x", pack_files([row(sig(1024), 99)]))
    write_folder(tmp_path / "packs" / "y", pack_files([row(sig(1024), 99)]))
    monkeypatch.chdir(tmp_path)
    reload()
    assert lookup(OP, sig(1024), device=H200).is_miss


def test_a_relative_path_is_that_of_the_folder_in_which_the_settings_were_made(monkeypatch, tmp_path):
    write_zip(tmp_path / "x.atpack", pack_files([row(sig(1024), 99)]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTN_TUNE_PACKS", "x.atpack")
    reload()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert not lookup(OP, sig(1024), device=H200).is_miss


def test_miss_modes():
    with use_pack(pack(row(sig(8192), 1))):
        misses.set_miss_mode("warn")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in range(3):
                assert lookup(OP, sig(1024), device=H200).is_miss
            lookup(OP, sig(100), device=H200)
        assert [w.category for w in warned] == [AttnTuneWarning] * 2
        assert "t 1024 vs 8192" in str(warned[0].message)
        # The line that asked, not one of this package.
        assert {w.filename for w in warned} == {__file__}
        misses.set_miss_mode("strict")
        with pytest.raises(NoDataError, match="t 1024 vs 8192"):
            lookup(OP, sig(1024), device=H200)
        assert lookup(OP, sig(8192), device=H200).rung is Rung.EXACT
        explain(OP, sig(1024), device=H200)
    with pytest.raises(UsageError, match="strict"):
        misses.set_miss_mode("loud")


def test_the_miss_mode_of_the_environment_is_read_again(monkeypatch):
    assert lookup(OP, sig(1024), device=H200).is_miss
    monkeypatch.setenv(misses.ON_MISS, "strict")
    assert reload() is False
    with pytest.raises(NoDataError):
        lookup(OP, sig(1024), device=H200)
    monkeypatch.setenv(misses.ON_MISS, "strickt")
    with pytest.raises(UsageError, match=r"ATTN_TUNE_ON_MISS must be one of .*'strickt'"):
        reload()
    assert misses.miss_mode() == "strict"
    # What the program says goes before the environment.
    misses.set_miss_mode("record")
    monkeypatch.setenv(misses.ON_MISS, "untuned")
    reload()
    assert misses.miss_mode() == "record"


def test_a_misspelled_miss_mode_stops_the_first_lookup_even_of_a_stored_row(monkeypatch):
    monkeypatch.setenv(misses.ON_MISS, "strickt")
    with use_pack(pack(row(sig(1024), 1))), pytest.raises(UsageError, match="strickt"):
        lookup(OP, sig(1024), device=H200)


def test_stats_count_by_rung_within_bounds(monkeypatch):
    monkeypatch.setattr(misses, "MAX_KEYS", 3)
    with use_pack(pack(row(sig(1024), 1))):
        for t in (1024, 1024, 1000, 1025, 100_000, 100_000, 200_000, 300_000, 400_000):
            lookup(OP, sig(t), device=H200)
    found = lookup_counters.stats()
    assert found.lookups[Rung.EXACT] == 2
    assert found.lookups[Rung.BUCKET] == 1
    assert found.lookups[Rung.NEIGHBOUR] == 1
    assert found.lookups[Rung.UNTUNED] == 5
    assert (found.misses[0].count, "t=100000" in found.misses[0].signature) == (2, True)
    assert (len(found.misses), found.forgotten_misses) == (3, 1)


def test_stats_read_well_and_are_plain_data(monkeypatch):
    monkeypatch.setattr(misses, "SHOWN_MISSES", 1)
    assert str(lookup_counters.stats()) == "lookups: none\ndistinct misses: 0"
    with use_pack(pack(row(sig(1024), 1))):
        for t in (1024, 100_000, 100_000, 300_000):
            lookup(OP, sig(t), device=H200)
    found = lookup_counters.stats()
    assert repr(found) == str(found)
    assert str(found) == (
        f"lookups: 1 exact, 3 untuned\ndistinct misses: 2\n     2 x toy.fwd {sig(100_000)} on {H200}\n       and 1 more"
    )
    data = json.loads(json.dumps(found.to_dict()))
    assert data["lookups"]["untuned"] == 3
    assert [miss["count"] for miss in data["misses"]] == [2, 1]


def test_the_memo_is_bounded(monkeypatch):
    monkeypatch.setattr(view, "MEMO_LIMIT", 10)
    for t in range(1, 40):
        lookup(OP, sig(t), device=H200)
    assert len(layers.current_view().entries) <= 10


def test_threads_have_their_own_packs():
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
    monkeypatch.setattr(settings, "_current", None)
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
        print(f"\nfirst {cold * 1e3:.2f} ms, warm choose {warm * 1e6:.2f} us, by text {by_text * 1e6:.2f} us")
    assert warm < 1e-3


def test_use_pack_takes_the_name_of_a_pack_that_calls_find(tmp_path, monkeypatch):
    write_folder(tmp_path / "some-folder", pack_files([row(sig(1024), 7)], name="named"))
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(tmp_path))
    with use_pack("named") as used:
        assert used.name == "named"
    with use_pack("nvidia-h200") as used:
        assert used.name == "nvidia-h200"
    with pytest.raises(StorageError, match=r"no pack at namd.*did you mean 'named'"):
        use_pack("namd")
    with pytest.raises(UsageError, match="a pack is a folder"):
        use_pack("")
