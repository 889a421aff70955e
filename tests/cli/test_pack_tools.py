"""The commands for a pack in hand, by their exit codes and what they print."""

import json
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.commands.pack.install import install_pack
from attn_tune.packs.reader import read_pack
from tests.cli.fakes import POINT, fill
from tests.runtime.packbuilder import pack_files, row, sig, write_folder, write_zip

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "attn_tune" / "packs" / "shipped"


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
    for name in ("ATTN_TUNE_TRUSTED_KEYS",):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def pack(lab, tmp_path):
    path = tmp_path / "mine.atpack"
    assert run("export", path, "--db", lab).exit_code == 0
    return path


def test_inspect_shows_the_contents_of_a_pack(pack):
    shown = run("pack", "inspect", pack, "--rows")
    assert shown.exit_code == 0
    text = shown.stdout
    assert "gate passed" in text
    assert POINT in text
    assert "chunk_k=" in text
    assert " us" in text
    assert "{" not in text
    assert "flash_attention/xla bwd, contract 1" in text
    data = json.loads(run("pack", "inspect", pack, "--json").stdout)
    assert data["gate"]["passed"] is True
    assert sum(d["rows"] for d in data["devices"]) == 2


def test_inspect_reads_the_packs_of_the_wheel():
    shown = run("pack", "inspect", ROOT / "attn_tune" / "packs" / "shipped" / "nvidia-h200", "--rows")
    assert shown.exit_code == 0
    assert "block_k=" in shown.stdout


def test_a_note_is_kept_shown_and_part_of_the_bytes(lab, tmp_path):
    packs = [tmp_path / name / "p.atpack" for name in ("plain", "noted", "again")]
    for path, note in zip(packs, ([], ["--note", "by hand"], ["--note", " by  hand "]), strict=True):
        assert run("export", path, "--db", lab, *note).exit_code == 0
    plain, noted, again = (path.read_bytes() for path in packs)
    assert b"note" not in plain
    assert noted == again != plain
    assert "  note by hand\n" in run("pack", "inspect", packs[1]).stdout
    assert json.loads(run("pack", "inspect", packs[1], "--json").stdout)["note"] == "by hand"
    assert json.loads(run("pack", "inspect", packs[0], "--json").stdout)["note"] == ""
    for note in (" ", "x" * 1001, "a\x07b"):
        refused = run("export", tmp_path / "x.atpack", "--db", lab, "--note", note)
        assert (refused.exit_code, "note" in refused.stderr) == (2, True)
    assert not (tmp_path / "x.atpack").exists()


def test_export_names_an_absolute_path_and_the_way_over_an_old_pack(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = run("export", "p.atpack", "--db", lab, "--wheel").stdout
    assert f"ATTN_TUNE_PACKS={tmp_path}/p.atpack" in shown
    assert f"use_pack('{tmp_path}/p.atpack')" in shown
    again = run("export", "p.atpack", "--db", lab)
    assert (again.exit_code, "--overwrite" in again.stderr) == (4, True)
    (tmp_path / "p.atpack").unlink()
    wheel = run("export", "p.atpack", "--db", lab, "--wheel")
    assert (wheel.exit_code, "--overwrite" in wheel.stderr) == (4, True)
    wheel = run("export", "p.atpack", "--db", lab, "--wheel", "--version", "1-rc")
    assert (wheel.exit_code, "a wheel's version" in wheel.stderr) == (2, True)
    assert not (tmp_path / "p.atpack").exists()


def test_verify_has_a_field_for_each_thing(pack, tmp_path):
    (one,) = json.loads(run("pack", "verify", pack, "--json").stdout)["packs"]
    digest = json.loads(run("pack", "inspect", pack, "--json").stdout)["digest"]
    assert (one["name"], one["version"], one["digest"], one["rows"]) == ("mine", "1", digest, 2)
    assert (one["signature"], one["signer"]) == ("none", None)
    text = run("pack", "verify", pack).stdout
    assert f"mine 1, 2 rows, {digest}: sound; not signed" in text
    assert "Pack(" not in text
    run("pack", "sign", pack, "--new-key", tmp_path / "k.pem")
    (one,) = json.loads(run("pack", "verify", pack, "--json").stdout)["packs"]
    assert one["signature"] == "untrusted"
    trusted = run("pack", "verify", pack, "--trusted-keys", tmp_path / "k.pem.pub", "--json")
    (one,) = json.loads(trusted.stdout)["packs"]
    assert (one["signature"], one["signer"]) == ("trusted", "k")
    run("pack", "sign", pack, "--new-key", tmp_path / "é.pem")
    assert "signed by é.pem" in run("pack", "verify", pack, "--trusted-keys", tmp_path / "é.pem.pub").stdout


def test_verify_of_several_packs_looks_at_all_though_one_is_not_there(pack):
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    result = run("pack", "verify", "nowhere", pack, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, [one["exit_code"] for one in found["packs"]]) == (5, [4, 5])


def test_verify_signs_and_trust(pack, tmp_path):
    key = tmp_path / "release.pem"
    assert "not signed" in run("pack", "verify", pack).stdout
    assert run("pack", "verify", pack, "--signed").exit_code == 5
    assert run("pack", "sign", pack, "--new-key", key).exit_code == 0
    assert key.stat().st_mode & 0o077 == 0
    assert "not trusted" in run("pack", "verify", pack).stdout
    trusted = run("pack", "verify", pack, "--signed", "--trusted-keys", f"{key}.pub")
    assert (trusted.exit_code, "signed by release" in trusted.stdout) == (0, True)
    assert run("pack", "sign", "--new-key", key).exit_code == 4, "a key is never overwritten"
    assert run("pack", "sign", pack).exit_code == 2
    assert run("pack", "inspect", pack).stdout.count("signed by") == 1


def test_verify_finds_a_flipped_byte(pack, tmp_path):
    data = bytearray(pack.read_bytes())
    data[data.index(b"median_ns") + 13] ^= 1
    bad = tmp_path / "bad.atpack"
    bad.write_bytes(data)
    result = run("pack", "verify", pack, bad)
    assert result.exit_code == 5
    assert "sound" in result.stdout
    assert json.loads(run("pack", "verify", bad, "--json").stdout)["packs"][0]["exit_code"] == 5


def test_diff_and_its_exit_code(pack, lab, tmp_path):
    other = tmp_path / "fwd"
    run("export", other, "--db", lab, "--direction", "fwd", "--version", "2")
    same = run("pack", "diff", pack, pack, "--exit-code")
    assert (same.exit_code, same.stdout.strip()) == (
        0,
        "mine 1 -> mine 1: 0 added, 0 removed, 0 changed, 0 decided alike on other evidence",
    )
    shown = run("pack", "diff", pack, other).stdout
    assert POINT in shown
    assert "#0 chunk_k=" in shown
    assert " us" in shown
    assert "before_ns" not in shown
    differs = run("pack", "diff", pack, other, "--exit-code", "--json")
    assert differs.exit_code == 1
    assert json.loads(differs.stdout)["counts"]["removed"] == 1


def test_diff_shows_a_row_whose_bits_were_seen_to_differ(tmp_path):
    proven, doubted = (
        write_folder(tmp_path / str(repeatable), pack_files([row(sig(64), repeatable=repeatable)]))
        for repeatable in (True, False)
    )
    result = run("pack", "diff", proven, doubted, "--exit-code")
    assert result.exit_code == 1
    assert "0 added, 0 removed, 1 changed" in result.stdout


def test_coverage_reaches_what_was_exported_and_lists_what_is_dead(pack, tmp_path, monkeypatch):
    assert "2 reached, 0 dead" in run("pack", "coverage", pack).stdout
    dead = write_folder(tmp_path / "dead", pack_files([row(sig(1024))]))
    result = run("pack", "coverage", dead, "--json")
    assert result.exit_code == 1
    [found] = json.loads(result.stdout)["rows"]
    assert "unknown op 'toy'" in found["reason"]
    monkeypatch.setenv("COLUMNS", "60")
    text = run("pack", "coverage", dead).stdout
    assert found["reason"] in " ".join(text.split())
    assert "…" not in text


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
    said = "gate not asked, though it had no objection: demo only"
    assert said in run("export", path, "--db", lab, "--no-gate", "demo only").stdout
    assert said in run("pack", "inspect", path).stdout
    refused = pack_files([row(sig(1024))], gate={"passed": False, "objections": 2, "reason": "demo only"})
    assert "gate NOT passed: demo only" in run("pack", "inspect", write_zip(tmp_path / "q.atpack", refused)).stdout


def test_import_dry_run_stores_nothing_and_merge_packs(pack, lab, tmp_path):
    db = tmp_path / "new.db"
    result = run("pack", "import", pack, "--db", db, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "2 problems added" in result.stdout
    assert not db.exists()
    assert POINT in result.stdout
    assert "chunk_k=" in result.stdout
    merged = run("pack", "merge", tmp_path / "all.atpack", pack, pack)
    assert "2 rows of 2 packs" in merged.stdout
    assert run("pack", "import", pack, "--db", db, "--on-conflict", "newest").exit_code == 2


def test_an_import_that_fails_makes_no_database(pack, tmp_path):
    db = tmp_path / "new" / "lab.db"
    assert run("pack", "import", pack, "--db", db, "--on-conflict", "newest").exit_code == 2
    assert run("pack", "import", tmp_path / "nope", "--db", db).exit_code == 4
    (tmp_path / "bad.atpack").write_text("no pack")
    assert run("pack", "import", tmp_path / "bad.atpack", "--db", db).exit_code == 5
    assert not db.parent.exists()


def test_rows_of_an_imported_pack_answer_best_and_report(pack, tmp_path):
    db = ["--db", tmp_path / "other.db"]
    assert run("pack", "import", pack, *db).exit_code == 0
    best = run("best", POINT, *db)
    assert best.exit_code == 0, best.stderr
    assert "Imported" in best.stdout
    assert "chunk_k=" in best.stdout
    data = json.loads(run("best", POINT, *db, "--json").stdout)
    assert data["decisions"] == []
    assert {row["direction"] for row in data["imported"]} == {"fwd", "bwd"}
    assert {row["device"] for row in data["imported"]} == {"cpu-x86_64"}
    assert {row["pack"] for row in data["imported"]} == {"mine"}
    report = run("report", *db)
    assert (report.exit_code, "Imported" in report.stdout) == (0, True)
    words = ["report", *db, "-s", "imported", "--json"]
    (row,) = json.loads(run(*words, "-d", "bwd", "--point", "llama3").stdout)["imported"]
    assert (row["kernel"], row["point"]) == ("xla", POINT)
    assert run(*words, "--kernel", "triton").exit_code == 3
    assert run(*words, "--device", "nvidia-h200").exit_code == 3


def test_import_without_options_is_for_the_users_jobs(pack, tmp_path):
    installed = run("pack", "import", pack, "--json")
    place = Path(json.loads(installed.stdout)["path"])
    assert place.read_bytes() == pack.read_bytes()
    assert place.parent == tmp_path / "home" / "attn-tune" / "packs"
    for words in (["--db", tmp_path / "x.db"], ["--dry-run"], ["--on-conflict", "keep"]):
        refused = run("pack", "import", pack, "--to", "user", *words)
        assert (refused.exit_code, "--to db" in refused.stderr) == (2, True)
    assert not (tmp_path / "x.db").exists()
    assert run("pack", "import", pack, "--to", "db").exit_code == 0
    assert run("best", POINT).exit_code == 0, "the default database"


def two_packs(tmp_path, form):
    """Two packs of one name and different rows: folders, or files."""
    for place, length in (("old", 64), ("new", 128)):
        files = pack_files([row(sig(length))])
        (tmp_path / place).mkdir()
        if form == "folder":
            yield write_folder(tmp_path / place / "mine", files)
        else:
            yield write_zip(tmp_path / place / "mine.atpack", files)


@pytest.mark.parametrize("form", ["folder", "file"])
def test_an_imported_pack_is_replaced_when_asked(tmp_path, form):
    old, new = two_packs(tmp_path, form)
    place = tmp_path / "home" / "attn-tune" / "packs" / old.name
    assert run("pack", "import", old).exit_code == 0
    refused = run("pack", "import", new)
    assert (refused.exit_code, "--replace" in refused.stderr) == (4, True)
    assert read_pack(place).digest == read_pack(old).digest
    done = run("pack", "import", new, "--replace")
    assert done.exit_code == 0, done.stderr
    assert read_pack(place).digest == read_pack(new).digest
    assert [child.name for child in place.parent.iterdir()] == [old.name]
    refused = run("pack", "import", old, "--replace", "--db", tmp_path / "lab.db")
    assert (refused.exit_code, "--on-conflict" in refused.stderr) == (2, True)


def test_an_import_names_the_packs_that_answer_the_same_and_the_first_of_them(tmp_path, monkeypatch):
    folder = tmp_path / "home" / "attn-tune" / "packs"
    packs = {"m": [64, 128], "a": [128, 256], "z": [64, 128], "other": [512]}
    for name, lengths in packs.items():
        write_folder(tmp_path / name, pack_files([row(sig(length)) for length in lengths], name=name))
    (folder / "broken").mkdir(parents=True)
    (folder / "broken" / "SHA256SUMS").write_text("")
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(tmp_path / "other"))
    assert run("pack", "import", tmp_path / "m").stderr == ""
    second = run("pack", "import", tmp_path / "a")
    assert second.exit_code == 0
    assert second.stderr.splitlines() == [
        f"1 problem of {folder / 'a'} has an answer in {folder / 'm'} too; {folder / 'a'} is asked first: "
        "packs of ATTN_TUNE_PACKS, then by file name"
    ]
    third = run("pack", "import", tmp_path / "z", "--json")
    assert json.loads(third.stdout) == {"path": str(folder / "z")}
    assert third.stderr.startswith(
        f"2 problems of {folder / 'z'} have answers in {folder / 'a'} and {folder / 'm'} too; {folder / 'a'} is asked"
    )
    replaced = run("pack", "import", tmp_path / "other")
    assert f"{tmp_path / 'other'} is asked first" in replaced.stderr


def test_the_working_directory_is_imported_by_its_name(tmp_path, monkeypatch):
    old, new = two_packs(tmp_path, "folder")
    place = tmp_path / "home" / "attn-tune" / "packs" / old.name
    for pack in (old, new):
        monkeypatch.chdir(pack)
        done = run("pack", "import", ".", "--replace")
        assert done.exit_code == 0, done.stderr
        assert read_pack(place).digest == read_pack(pack).digest


def test_a_broken_imported_pack_is_replaced_and_no_sound_one_by_a_broken_one(tmp_path):
    old, new = two_packs(tmp_path, "folder")
    place = tmp_path / "home" / "attn-tune" / "packs" / old.name
    assert run("pack", "import", old).exit_code == 0
    (place / "SHA256SUMS").write_text("")
    assert run("pack", "import", new, "--replace").exit_code == 0
    (old / "SHA256SUMS").write_text("")
    assert run("pack", "import", old, "--replace").exit_code == 5
    assert read_pack(place).digest == read_pack(new).digest


def test_an_imported_folder_is_never_absent_while_it_is_replaced(tmp_path, monkeypatch):
    """Also where the system refuses to exchange two names: then nothing is changed."""
    old, new = two_packs(tmp_path, "folder")
    place = tmp_path / "home" / "attn-tune" / "packs" / old.name
    assert run("pack", "import", old).exit_code == 0
    stop, seen = threading.Event(), set()

    def watch():
        while not stop.is_set():
            seen.add((place / "manifest.json").is_file())

    watcher = threading.Thread(target=watch)
    watcher.start()
    for pack in (new, old) * 10:
        install_pack(pack, replace=True)
    stop.set()
    watcher.join()
    assert seen == {True}
    monkeypatch.setattr("attn_tune.packs.plain_files._RENAME_EXCHANGE", 1 << 20)  # no such flag
    refused = run("pack", "import", new, "--replace")
    assert (refused.exit_code, "remove it, then import" in refused.stderr) == (4, True)
    assert read_pack(place).digest == read_pack(old).digest


def test_import_replaces_no_folder_that_is_no_pack(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    pack = write_folder(tmp_path / "mine", pack_files([row(sig(1024))]))
    notes = tmp_path / "data/attn-tune/packs/mine/notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("text")
    refused = run("pack", "import", pack, "--replace")
    assert (refused.exit_code, "is not a pack of this kind" in refused.stderr) == (4, True)
    assert notes.read_text() == "text"


def test_inspect_counts_what_the_rows_say_of_their_proof(tmp_path):
    said = [{"repeatable": False, "features": 7}, {"repeatable": True, "features": 5}, {}]
    rows = [row(sig(1024 * (i + 1)), **more) for i, more in enumerate(said)]
    path = write_folder(tmp_path / "pack", pack_files(rows))
    found = run("pack", "inspect", path)
    assert found.exit_code == 0
    line = next(line for line in found.stdout.splitlines() if "toy/alpha fwd" in line)
    assert "1 whose bits differ from run to run; 2 rows with at least 5 feature problems passed" in line
    (kernel,) = json.loads(run("pack", "inspect", path, "--json").stdout)["kernels"]
    assert (kernel["not_repeatable"], kernel["features"]) == (1, 5)
    plain = write_folder(tmp_path / "plain", pack_files([row(sig(1024))]))
    assert "bits" not in run("pack", "inspect", plain).stdout


def test_merge_overwrites_no_file_that_is_only_called_a_pack(lab, pack, tmp_path):
    notes = tmp_path / "notes.atpack"
    notes.write_text("not a pack")
    refused = run("pack", "merge", notes, pack, pack, "--overwrite", "--on-conflict", "keep")
    assert (refused.exit_code, "is not a pack of this kind" in refused.stderr) == (4, True)
    assert notes.read_text() == "not a pack"
    out = tmp_path / "out.atpack"
    for _ in range(2):
        assert run("pack", "merge", out, pack, pack, "--overwrite", "--on-conflict", "keep").exit_code == 0
