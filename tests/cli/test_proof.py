"""Unproven and doubtful rows in the output of the commands."""

import json

import pytest

from attn_tune.packs.reader import read_pack
from attn_tune.tuner.run.fleet.fleet import Fleet
from tests.cli.fakes import SIGNATURE, FakeExecutor, fill
from tests.cli.test_commands import FakeContext, run
from tests.ops.known import known_kernels


@pytest.fixture
def noisy_lab(tmp_path):
    """A lab that was filled beside another sweep."""
    path = tmp_path / "lab.db"
    fill(path, Fleet([FakeExecutor()], lambda: True), directions=("fwd",))
    return path


def test_export_lists_what_the_gate_objects_to(noisy_lab, tmp_path):
    pack = tmp_path / "p.atpack"
    refused = run("export", pack, "--db", noisy_lab, "--json")
    assert refused.exit_code == 1
    said = json.loads(refused.stdout)
    assert said["passed"] is False
    (objection,) = said["objections"]
    assert objection["signature"] == SIGNATURE
    assert (objection["kernel"], objection["doubt"]) == ("flash_attention/xla", "noisy")
    assert "--allow-noisy" in objection["reason"]
    assert "--allow-noisy" in refused.stderr
    assert not pack.exists()


def test_export_ships_a_noisy_row_on_request_and_reports_it(noisy_lab, tmp_path):
    pack = tmp_path / "p.atpack"
    result = run("export", pack, "--db", noisy_lab, "--allow-noisy", "--max-regret", "20")
    assert result.exit_code == 0, result.stderr
    assert "1 row let through on purpose: the final was disturbed" in result.stdout
    assert read_pack(pack).gate["accepted"] == {"noisy": 1}
    inspected = run("pack", "inspect", pack)
    assert "let through on purpose: 1 noisy" in inspected.stdout


def refuse_feature_problems(problem, direction, device):
    return None if (problem.q_len, problem.kv_len) == (128, 128) else "128 tokens only"


@pytest.mark.parametrize("allowed", [False, True])
def test_a_kernel_that_proves_nothing_needs_permission(monkeypatch, tmp_path, allowed):
    import dataclasses

    from attn_tune.kernels import registry

    spec = registry.get_kernel("flash_attention/xla")
    stubborn = dataclasses.replace(spec, unsupported=refuse_feature_problems)
    known = registry.kernels() | {spec.id: stubborn}
    known_kernels(monkeypatch, known)
    monkeypatch.setattr("attn_tune.tuner.run.executor.IsolatedExecutor", FakeContext)
    db = tmp_path / "lab.db"
    words = ("sweep", "-g", SIGNATURE, "-k", "xla", "-d", "fwd", "--db", db, "--json")
    result = run(*words, *(["--allow-unproven"] if allowed else []))
    decisions = json.loads(result.stdout)["decisions"]
    if not allowed:
        assert result.exit_code == 1
        assert decisions == []
        assert "ran no feature problem of the op and decided nothing" in result.stderr
        return
    assert result.exit_code == 0, result.stderr
    assert [d["features"] for d in decisions] == [0]
    refused = run("export", tmp_path / "p.atpack", "--db", db)
    assert refused.exit_code == 1
    assert "its config ran no feature problem (--allow-unproven ships it)" in refused.stderr
    # On a busy machine the gate may object to the times as well.
    leave = ("--allow-unproven", "--allow-noisy", "--max-regret", "1000")
    shipped = run("export", tmp_path / "p.atpack", "--db", db, *leave)
    assert shipped.exit_code == 0, shipped.stderr
    inspected = run("pack", "inspect", tmp_path / "p.atpack")
    assert "1 unproven: their configs ran no feature problem" in inspected.stdout
