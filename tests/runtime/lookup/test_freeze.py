"""Frozen answers: a file that alone may answer, and jobs that take their answers from it."""

import dataclasses
import json
from pathlib import Path

import pytest

from attn_tune.kernels.spec import KernelSpec
from attn_tune.packs.override_files import read_overrides
from attn_tune.runtime.active import settings
from attn_tune.runtime.active.layers import current_view, reload, use_overrides, use_pack
from attn_tune.runtime.lookup.answer import Rung, SourceKind
from attn_tune.runtime.lookup.dispatch import choose, explain, lookup
from attn_tune.runtime.overrides.entries import use_config
from attn_tune.runtime.overrides.freeze import freeze
from attn_tune.runtime.rank_statement import statement_of
from attn_tune.schema import IntegrityError, LockfileError, NoDataError, StorageError, UsageError
from tests.runtime.lookup.toy_op import HERE, Config, pack, problem
from tests.runtime.packbuilder import H200, OP, pack_files, row, sig, with_list, write_zip

ROWS = (row(sig(1024), 64), row(sig(1024), 4, kernel="beta", rank=1))


def ask(*lengths, **more):
    return [lookup(OP, sig(t), device=H200, **more).config["block"] for t in lengths]


@pytest.fixture
def frozen(tmp_path):
    """The file of a job with a pack: an exact answer, a neighbour, a miss, a question that names a kernel."""
    with use_pack(pack(*ROWS)):
        assert [*ask(1024, 1500, 9000), *ask(1024, kernel="beta")] == [64, 64, 8, 4]
    return freeze(tmp_path / "job.json")


def test_a_job_with_a_frozen_file_gets_the_same_and_asks_nothing_else(frozen, monkeypatch, tmp_path):
    better = pack_files([row(sig(1024), 99, env=HERE), row(sig(9000), 98, env=HERE)])
    bad = with_list(better, [{"kernel": "alpha", "reason": "a pack that somebody installs"}])
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(write_zip(tmp_path / "better.atpack", bad)))
    monkeypatch.setenv("ATTN_TUNE_OVERRIDES", frozen.path)
    monkeypatch.setattr(settings, "_current", None)
    with use_pack(pack(row(sig(1024), 97))), use_config(OP, "alpha", {"block": 96}):
        assert [*ask(1024, 1500, 9000), *ask(1024, kernel="beta")] == [64, 64, 8, 4]
    answer = lookup(OP, sig(1024), device=H200)
    assert (answer.rung, answer.source, answer.source_kind) == (
        Rung.OVERRIDE,
        "lab 2026.1",
        SourceKind.OVERRIDE,
    )
    assert not lookup(OP, sig(9000), device=H200).is_miss
    assert settings.current_settings().sources[0]._pack is None
    # A board with another power limit replays too; a config in the code is the code's.
    capped = dataclasses.replace(H200, power_watts=500)
    assert lookup(OP, sig(1024), device=capped).config == {"block": 64}
    mine = {"device": H200, "config": Config(block=2), "kernel": "alpha"}
    assert choose(OP, "fwd", problem(sig(1024)), **mine).config.block == 2
    found = explain(OP, sig(1024), device=H200)
    assert (found.only_by, found.only_ended_by) == (frozen.path, "unset ATTN_TUNE_OVERRIDES")
    assert "exact when it was frozen" in str(found)
    assert [name for name in statement_of(current_view()) if "pack" in name] == []


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
    question = {"problem": sig(1024), "device": H200, **asked}
    with use_overrides(frozen.path), pytest.raises(LockfileError, match=words):
        lookup(OP, question.pop("problem"), **question)
    assert ask(1024) == [8]


def test_a_kernel_that_changed_is_an_error(frozen, monkeypatch):
    monkeypatch.setattr(KernelSpec, "source_hash", property(lambda spec: "b2:other"))
    with use_overrides(frozen.path):
        with pytest.raises(LockfileError, match="source of toy/alpha has changed"):
            lookup(OP, sig(1024), device=H200)
        assert "no longer holds here" in str(explain(OP, sig(1024), device=H200))


def test_a_frozen_config_that_another_file_forbids_is_an_error(frozen, monkeypatch, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text('{"format": 1, "never": [{"config": {"block": 64}, "reason": "wrong dq"}]}')
    monkeypatch.setenv("ATTN_TUNE_OVERRIDES", f"{frozen.path}:{path}")
    reload()
    with pytest.raises(LockfileError, match=r"wrong dq \(.*bad\.json\)"):
        lookup(OP, sig(1024), device=H200)
    assert ask(9000) == [8]
    assert {name.split()[0] for name in statement_of(current_view())} >= {"only", "never"}


def test_a_file_written_by_hand_may_be_only_too(tmp_path):
    entry = {"op": OP, "direction": "fwd", "kernel": "alpha", "config": {"block": 5}}
    path = tmp_path / "hand.json"
    path.write_text(json.dumps({"format": 1, "only": True, "use": [entry]}))
    with use_overrides(path), use_pack(pack(*ROWS)):
        assert ask(1024, 7) == [5, 5]
        with pytest.raises(LockfileError, match="direction bwd vs fwd"):
            lookup(OP, sig(7), "bwd", device=H200)


def test_equal_jobs_freeze_to_equal_bytes(frozen, tmp_path):
    other = freeze(tmp_path / "again.json")
    assert Path(other.path).read_bytes() == Path(frozen.path).read_bytes()
    assert len(read_overrides(frozen.path).entries) == 4
    assert frozen.frozen["environment"]["jax"]


def test_no_answer_or_several_or_no_folder_cannot_be_frozen(monkeypatch, tmp_path):
    with pytest.raises(NoDataError, match="nothing to freeze"):
        freeze(tmp_path / "x.json")
    ask(1024)
    with use_pack(pack(row(sig(1024), 64))):
        ask(1024)
    with pytest.raises(UsageError, match="several answers"):
        freeze(tmp_path / "x.json")
    assert not list(tmp_path.glob("*.json"))
    monkeypatch.setattr(settings, "_current", None)
    ask(1024)
    with pytest.raises(StorageError, match="cannot be written"):
        freeze(tmp_path / "no" / "x.json")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["use"][0]["config"].update(block=63), "freeze the job again, or delete 'froz"),
        (lambda d: d["use"].pop(), "digest"),
        (lambda d: d["use"][0].update(colour="green"), "unknown field 'colour'"),
        (lambda d: d["use"][0]["frozen"].update(contract="1"), "contract must be int"),
    ],
)
def test_a_frozen_file_that_was_edited_is_refused(frozen, change, words):
    path = Path(frozen.path)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(IntegrityError, match=words):
        use_overrides(path)


def test_every_truncation_of_a_frozen_file_is_refused(frozen, tmp_path):
    whole = Path(frozen.path).read_bytes().rstrip()
    cut = tmp_path / "cut.json"
    for size in range(0, len(whole), 41):
        cut.write_bytes(whole[:size])
        with pytest.raises(IntegrityError):
            read_overrides(cut)


def test_a_frozen_file_is_shown_in_a_line(frozen):
    assert repr(frozen) == f"<OverridesFile {frozen.path}: 4 use, 0 never, only, frozen>"
