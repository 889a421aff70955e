"""A job's answers on paper, and a job that takes them from there."""

import dataclasses
import json
from pathlib import Path

import pytest

from attn_tune.kernels.dispatch import choose, explain, lookup
from attn_tune.kernels.locked import freeze
from attn_tune.kernels.pinning import pin
from attn_tune.kernels.spec import KernelSpec
from attn_tune.runtime import snapshot
from attn_tune.runtime.answer import Rung, SourceKind
from attn_tune.runtime.lockfile import read_lockfile
from attn_tune.runtime.overlay import use_lockfile, use_pack
from attn_tune.schema import IntegrityError, LockfileError, NoDataError, StorageError, UsageError
from tests.kernels.dispatch.toy_op import HERE, Config, pack, problem
from tests.runtime.packbuilder import H200, OP, pack_files, row, sig, write_zip


def ask(*lengths, **more):
    return [lookup(OP, sig(t), device=H200, **more).config["block"] for t in lengths]


@pytest.fixture
def frozen(tmp_path):
    """The lockfile of a job with a pack: an exact answer, a neighbour, a miss, a restricted question."""
    with use_pack(pack(row(sig(1024), 64), row(sig(1024), 4, kernel="beta", rank=1))):
        assert [*ask(1024, 1500, 9000), *ask(1024, kernel="beta")] == [64, 64, 8, 4]
    return freeze(tmp_path / "job.lock")


def test_a_job_with_a_lockfile_gets_the_same_and_asks_nothing_else(frozen, monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_TUNE_LOCKFILE", frozen.path)
    better = pack_files([row(sig(1024), 99, env=HERE), row(sig(9000), 98, env=HERE)])
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(write_zip(tmp_path / "better.atpack", better)))
    monkeypatch.setattr(snapshot, "_current", None)
    with use_pack(pack(row(sig(1024), 97))), pin(OP, "alpha", {"block": 96}):
        assert [*ask(1024, 1500, 9000), *ask(1024, kernel="beta")] == [64, 64, 8, 4]
    answer = lookup(OP, sig(1024), device=H200)
    assert (answer.rung, answer.source, answer.source_kind) == (
        Rung.LOCKED,
        "lab 2026.1",
        SourceKind.LOCKFILE,
    )
    assert not lookup(OP, sig(9000), device=H200).is_miss
    assert snapshot.current_snapshot().sources[0]._pack is None
    # What the caller says in the code is the code's.
    mine = choose(
        OP, "fwd", problem(sig(1024)), device=H200, config=Config(block=2), kernel="alpha"
    )
    assert mine.config.block == 2


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"problem": sig(1025)}, "t 1025 vs 1024"),
        ({"direction": "bwd"}, "direction bwd vs fwd"),
        ({"kernel": "alpha"}, "kernel alpha vs any"),
        ({"device": dataclasses.replace(H200, variant="nvidia-h100-nvl")}, "nvidia-h100-nvl"),
    ],
)
def test_a_question_that_was_not_frozen_is_an_error_with_the_difference(frozen, asked, words):
    use_lockfile(frozen.path)
    question = {"problem": sig(1024), "device": H200, **asked}
    with pytest.raises(LockfileError, match=words):
        lookup(OP, question.pop("problem"), **question)


def test_a_board_with_another_power_limit_replays_too(frozen):
    use_lockfile(frozen.path)
    capped = dataclasses.replace(H200, power_watts=500)
    assert lookup(OP, sig(1024), device=capped).config == {"block": 64}


def test_a_kernel_that_changed_is_an_error(frozen, monkeypatch):
    use_lockfile(frozen.path)
    monkeypatch.setattr(KernelSpec, "source_hash", "b2:other")
    with pytest.raises(LockfileError, match="source of toy/alpha has changed"):
        lookup(OP, sig(1024), device=H200)
    assert "no longer holds here" in str(explain(OP, sig(1024), device=H200))


def test_a_config_in_quarantine_is_an_error(frozen, monkeypatch, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text('{"format": 1, "entries": [{"config": {"block": 64}, "reason": "wrong dq"}]}')
    monkeypatch.setenv("ATTN_TUNE_QUARANTINE", str(path))
    use_lockfile(frozen.path)
    with pytest.raises(LockfileError, match="wrong dq"):
        lookup(OP, sig(1024), device=H200)
    assert ask(9000) == [8]


def test_leaving_the_lockfile(frozen):
    use_lockfile(frozen.path)
    assert ask(1024) == [64]
    assert "lockfile" in str(explain(OP, sig(1024), device=H200))
    use_lockfile(None)
    assert ask(1024) == [8]


def test_equal_jobs_freeze_to_equal_bytes(frozen, tmp_path):
    other = freeze(tmp_path / "again.lock")
    assert Path(other.path).read_bytes() == Path(frozen.path).read_bytes()
    assert len(read_lockfile(frozen.path).entries) == 4


def test_what_cannot_be_frozen(monkeypatch, tmp_path):
    with pytest.raises(NoDataError, match="nothing to freeze"):
        freeze(tmp_path / "x.lock")
    ask(1024)
    with use_pack(pack(row(sig(1024), 64))):
        ask(1024)
    with pytest.raises(UsageError, match="several answers"):
        freeze(tmp_path / "x.lock")
    assert not list(tmp_path.glob("*.lock"))
    monkeypatch.setattr(snapshot, "_current", None)
    ask(1024)
    with pytest.raises(StorageError, match="cannot write"):
        freeze(tmp_path / "no" / "x.lock")


def broken(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["entries"][0]["config"].update(block=63), "digest"),
        (lambda d: d["entries"].pop(), "digest"),
        (lambda d: d["entries"][0].update(colour="green"), "known fields"),
        (lambda d: d["entries"][0].update(contract="1"), "'contract'"),
        (lambda d: d.update(format=2), "format 1"),
        (lambda d: d.pop("entries"), "entries"),
    ],
)
def test_a_lockfile_that_was_changed_is_refused(frozen, tmp_path, change, words):
    path = tmp_path / "job.lock"
    broken(path, change)
    with pytest.raises(IntegrityError, match=words):
        use_lockfile(path)
    # What was in force stays.
    assert ask(1024) == [8]


def test_every_truncation_is_refused(frozen, tmp_path):
    whole = (tmp_path / "job.lock").read_bytes().rstrip()
    cut = tmp_path / "cut.lock"
    for size in range(0, len(whole), 41):
        cut.write_bytes(whole[:size])
        with pytest.raises(IntegrityError):
            read_lockfile(cut)


def test_a_job_that_must_run_with_a_lockfile_does_not_run_without(monkeypatch, tmp_path):
    monkeypatch.setenv("ATTN_TUNE_LOCKFILE", str(tmp_path / "gone.lock"))
    for _ in range(2):
        monkeypatch.setattr(snapshot, "_current", None)
        with pytest.raises(StorageError, match=r"gone\.lock"):
            ask(1024)
