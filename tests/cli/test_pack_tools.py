"""The commands for a pack in hand, by their exit codes and what they print."""

import json

import pytest
from typer.testing import CliRunner

from attn_tune.cli.app import app
from tests.cli.fakes import fill
from tests.runtime.packbuilder import pack_files, row, sig, write_folder


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    path = tmp_path_factory.mktemp("lab") / "lab.db"
    fill(path)
    return path


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("ATTN_TUNE_REQUIRE_SIGNED", "ATTN_TUNE_TRUSTED_KEYS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pack(lab, tmp_path):
    path = tmp_path / "mine.atpack"
    assert run("export", path, "--db", lab).exit_code == 0
    return path


def test_inspect_says_what_is_in_it(pack):
    text = run("inspect", pack, "--rows").stdout
    assert "gate passed" in text
    assert "flash_attention/xla bwd, contract 1" in text
    data = json.loads(run("inspect", pack, "--json").stdout)
    assert data["gate"]["passed"] is True
    assert sum(d["rows"] for d in data["devices"]) == 2


def test_verify_signs_and_trust(pack, tmp_path):
    key = tmp_path / "release.pem"
    assert "not signed" in run("verify", pack).stdout
    assert run("verify", pack, "--signed").exit_code == 5
    assert run("sign", pack, "--new-key", key).exit_code == 0
    assert key.stat().st_mode & 0o077 == 0
    assert "not trusted" in run("verify", pack).stdout
    trusted = run("verify", pack, "--signed", "--trusted-keys", f"{key}.pub")
    assert (trusted.exit_code, "signed by release" in trusted.stdout) == (0, True)
    assert run("sign", "--new-key", key).exit_code == 4, "a key is never overwritten"
    assert run("sign", pack).exit_code == 2
    assert run("inspect", pack).stdout.count("signed by") == 1


def test_verify_finds_a_flipped_byte(pack, tmp_path):
    data = bytearray(pack.read_bytes())
    data[data.index(b"median_ns") + 13] ^= 1
    bad = tmp_path / "bad.atpack"
    bad.write_bytes(data)
    result = run("verify", pack, bad)
    assert result.exit_code == 5
    assert "sound" in result.stdout
    assert json.loads(run("verify", bad, "--json").stdout)["packs"][0]["exit_code"] == 5


def test_diff_and_its_exit_code(pack, lab, tmp_path):
    other = tmp_path / "fwd"
    run("export", other, "--db", lab, "--direction", "fwd", "--version", "2")
    same = run("diff", pack, pack, "--exit-code")
    assert (same.exit_code, same.stdout.strip()) == (
        0,
        "mine 1 -> mine 1: 0 added, 0 removed, 0 changed, 0 evidence",
    )
    differs = run("diff", pack, other, "--exit-code", "--json")
    assert differs.exit_code == 1
    assert json.loads(differs.stdout)["counts"]["removed"] == 1


def test_coverage_reaches_what_was_exported_and_lists_what_is_dead(pack, tmp_path):
    assert "2 reached, 0 dead" in run("coverage", pack).stdout
    dead = write_folder(tmp_path / "dead", pack_files([row(sig(1024))]))
    result = run("coverage", dead, "--json")
    assert result.exit_code == 1
    [found] = json.loads(result.stdout)["rows"]
    assert "unknown op 'toy'" in found["reason"]


def test_export_selects_by_grid_and_rule_and_builds_a_wheel(lab, tmp_path):
    path = tmp_path / "out" / "p.atpack"
    grid = [
        "--grid",
        "flash_attention/v1 b=1 t=256 s=256 n=4 k=1 h=128 v=128 dtype=bfloat16 causal=1",
    ]
    assert run("export", path, "--db", lab, *grid).exit_code == 3
    written = run("export", path, "--db", lab, "--winners", "--wheel", "--json")
    assert json.loads(written.stdout)["wheel"].endswith("attn_tune_pack_p-1-py3-none-any.whl")
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "attn_tune_pack_p-1-py3-none-any.whl",
        "p.atpack",
    ]


def test_export_without_the_gate_keeps_the_reason(lab, tmp_path):
    path = tmp_path / "p.atpack"
    assert run("export", path, "--db", lab, "--no-gate", "demo only").exit_code == 0
    assert "gate NOT passed: demo only" in run("inspect", path).stdout


def test_import_dry_run_stores_nothing_and_merge_packs(pack, lab, tmp_path):
    db = tmp_path / "new.db"
    result = run("import", pack, "--db", db, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "2 problems added" in result.stdout
    assert not db.exists()
    merged = run("merge-packs", tmp_path / "all.atpack", pack, pack)
    assert "2 rows of 2 packs" in merged.stdout
    assert run("import", pack, "--db", db, "--on-conflict", "newest").exit_code == 2


def test_inspect_counts_what_the_rows_say_of_their_proof(tmp_path):
    said = [{"repeatable": False, "features": 7}, {"repeatable": True, "features": 5}, {}]
    rows = [row(sig(1024 * (i + 1)), **more) for i, more in enumerate(said)]
    path = write_folder(tmp_path / "pack", pack_files(rows))
    found = run("inspect", path)
    assert found.exit_code == 0
    line = next(line for line in found.stdout.splitlines() if "toy/alpha fwd" in line)
    assert "1 whose bits differ from run to run; at least 5 feature problems passed" in line
    (kernel,) = json.loads(run("inspect", path, "--json").stdout)["kernels"]
    assert (kernel["not_repeatable"], kernel["features"]) == (1, 5)
    plain = write_folder(tmp_path / "plain", pack_files([row(sig(1024))]))
    assert "bits" not in run("inspect", plain).stdout
