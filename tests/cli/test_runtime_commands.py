"""``quarantine``, ``pin``, ``freeze`` and ``check-lockfile`` from the outside."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.runtime import misses, snapshot
from attn_tune.runtime.overlay import use_pack
from tests.cli.fakes import SIGNATURE, FakeExecutor, fill

POINT = "llama3-8b/4x4k"
ADD = ["override", "quarantine", "add", "flash_attention/xla", "--reason", "wrong  dq", "--config"]


def run(*words):
    # Each command is a process of its own: nothing that an earlier one read is in force.
    snapshot._current = misses._mode = None
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("QUARANTINE", "PINS", "PACKS", "LOCKFILE", "ON_MISS"):
        monkeypatch.delenv(f"ATTN_TUNE_{name}", raising=False)
    monkeypatch.setattr(snapshot, "_current", None)
    monkeypatch.setattr(misses, "_mode", None)
    monkeypatch.setattr(snapshot, "_lockfile_path", None)
    return tmp_path


def listed(*words):
    return json.loads(run("override", "quarantine", "list", "--json", *words).stdout)["entries"]


def test_what_is_put_in_quarantine_is_found_without_a_variable_and_taken_out(home):
    assert run(*ADD, "chunk_q=64").exit_code == 0
    (entry,) = listed()
    assert entry["config"] == {"chunk_q": 64}
    assert (entry["kernel"], entry["reason"]) == ("xla", "wrong dq")
    assert entry["list"] == str(home / "home" / "attn-tune" / "quarantine.json")
    assert "chunk_q=64" in run("override", "quarantine", "list").stdout
    # Once, with the newest reason.
    run(*ADD, "chunk_q=64", "--reason", "hangs")
    assert [e["reason"] for e in listed()] == ["hangs"]
    missing = run("override", "quarantine", "remove", "00000000")
    assert (missing.exit_code, listed()[0]["id"] in missing.stderr) == (3, True)
    assert run("override", "quarantine", "remove", listed()[0]["id"]).exit_code == 0
    assert "Nothing" in run("override", "quarantine", "list").stdout


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["flash_attention/xlb", "--reason", "x"], "xla"),
        (["flash_attention/xla", "--reason", " "], "reason"),
        (["flash_attention/xla", "--reason", "x", "-c", "chunk_p=3"], "no knob 'chunk_p'"),
        (["flash_attention/xla", "--reason", "x", "-c", "chunk_q=wide"], "chunk_q"),
        (["flash_attention/xla", "--reason", "x", "-c", "chunk_q"], "KNOB=VALUE"),
        (["flash_attention/xla", "--reason", "x", "-c", "{"], "not JSON"),
        (["flash_attention", "--reason", "x", "-c", "chunk_q=64"], "name one of flash_attention"),
        (["flash_attention/xla", "--reason", "x", "-s", "w=3"], "signature field"),
        (["flash_attention/xla", "--reason", "x", "-s", "h=wide"], "not an integer"),
        (["flash_attention/xla", "--reason", "x", "--device", "h2000"], "h2000"),
        (["xla", "--reason", "x"], "flash_attention/xla"),
    ],
)
def test_an_entry_that_could_never_match_is_refused(words, fragment):
    result = run("override", "quarantine", "add", *words)
    assert result.exit_code == 2
    assert fragment in result.stderr
    assert listed() == []


def test_a_list_that_cannot_be_read_is_an_error_and_is_not_overwritten(home):
    path = home / "home" / "attn-tune" / "quarantine.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    assert run("override", "quarantine", "list").exit_code == 5
    assert run(*ADD, "chunk_q=64").exit_code == 5
    assert path.read_text() == "{"
    assert run("override", "quarantine", "list", "--file", home / "gone.json").exit_code == 4


def test_a_pin_answers_and_is_taken_out():
    words = ["flash_attention/xla", "-c", "chunk_q=64", "-c", "chunk_k=128", "--point", POINT]
    for device in ("nvidia-h200", "nvidia-h200"):
        assert run("override", "pin", "add", *words, "--device", device).exit_code == 0
    (one,) = json.loads(run("override", "pin", "list", "--json").stdout)["pins"]
    assert one["config"] == {"chunk_k": 128, "chunk_q": 64}
    told = run("explain", POINT, "-d", "fwd", "--device", "nvidia-h200").stdout
    end = f"attn-tune override pin remove {one['id']} --file {one['file']}"
    assert f"CHOSEN (pinned, asked before all packs; to end it: {end})" in told
    assert "pinned" not in run("explain", POINT, "-d", "fwd", "--device", "nvidia-l4").stdout
    assert run("override", "pin", "remove", "x").exit_code == 3
    assert run("override", "pin", "remove", one["id"]).exit_code == 0
    assert "Nothing" in run("override", "pin", "list").stdout
    assert run("override", "pin", "add", "flash_attention/xla", "-c", "chunk_q=64").exit_code == 2


def test_explain_says_that_strict_jobs_refuse_a_miss(monkeypatch):
    asked = ["explain", "flash_attention/v1 b=1 t=77 s=77 n=2 k=2 h=64 v=64 dtype=float32"]
    monkeypatch.setenv("ATTN_TUNE_ON_MISS", "strict")
    told = run(*asked, "-d", "fwd", "--device", "cpu")
    assert (told.exit_code, "refused by ATTN_TUNE_ON_MISS=strict" in told.stdout) == (0, True)
    assert "CHOSEN" not in told.stdout
    monkeypatch.setenv("ATTN_TUNE_ON_MISS", "strickt")
    misspelled = run(*asked, "--device", "cpu")
    assert (misspelled.exit_code, "strickt" in misspelled.stderr) == (2, True)


def test_a_broken_file_of_pins_is_named(home):
    path = home / "home" / "attn-tune" / "pins.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    listed = run("override", "pin", "list")
    assert listed.exit_code == 5
    assert str(path) in listed.stderr
    assert path.read_text() == "{"


class Ties(FakeExecutor):
    """A device on which every config takes the same time."""

    def _ok(self, ref, round_id, samples):
        found = super()._ok(ref, round_id, samples)
        times = tuple(100_000 + i for i in range(samples))
        return dataclasses.replace(
            found, measurement=dataclasses.replace(found.measurement, samples_ns=times)
        )


FREEZE = ["--grid", "llama3-8b", "--point", POINT, "--device", "nvidia-h200"]


def test_freeze_and_check(home):
    lock = home / "job.lock"
    frozen = json.loads(run("override", "freeze", lock, *FREEZE, "--json").stdout)
    assert (frozen["entries"], frozen["left_out"]) == (2, [])
    again = run("override", "freeze", lock, *FREEZE)
    assert (again.exit_code, "--overwrite" in again.stderr) == (4, True)
    before = lock.read_bytes()
    assert run("override", "freeze", lock, *FREEZE, "--overwrite").exit_code == 0
    assert lock.read_bytes() == before
    sound = run("override", "check-lockfile", lock)
    assert (sound.exit_code, "2 of 2 answers replay exactly" in sound.stdout) == (0, True)
    # What the lookup would answer by now is said beside it.
    words = ["-c", "chunk_q=64", "-c", "chunk_k=128", "--point", POINT]
    run("override", "pin", "add", "flash_attention/xla", *words)
    data = json.loads(run("override", "check-lockfile", lock, "--json").stdout)
    assert data["replays"] is True
    assert ["pinned" in one["now"] for one in data["entries"]].count(True) == 1


def test_freeze_tells_proven_defaults_from_guesses_and_refuses_what_is_less_than_required(home):
    db, packs = home / "lab.db", home / "p.atpack"
    fill(db, Ties(), directions=("fwd",))
    assert run("export", packs, "--db", db).exit_code == 0
    assert "1 proven default" in run("pack", "inspect", packs).stdout
    grid = [
        "--grid",
        SIGNATURE,
        "--grid",
        SIGNATURE.replace("=128 n", "=120 n").replace("t=128", "t=120"),
    ]
    guess = ["--grid", SIGNATURE.replace("causal=1", "causal=1 cap=1")]
    lock, here = home / "job.lock", ["-d", "fwd", "--device", "cpu"]
    with use_pack(packs):

        def freeze(*words):
            return CliRunner().invoke(
                app, ["override", "freeze", str(lock), *here, *words], prog_name="attn-tune"
            )

        said = freeze(*grid, *guess)
        assert said.exit_code == 0, said.stderr
        counts = "1 bucket (proven default), 1 exact (proven default), 1 untuned"
        assert f"3 answers for cpu-x86_64 ({counts})" in said.stdout
        lock.unlink()
        refused = freeze(*grid, *guess, "--require", "tuned")
        assert refused.exit_code == 3
        assert "1 of 3 answers are not tuned" in refused.stderr
        assert "cap=1, which is untuned; nothing was written" in refused.stderr
        refused = freeze(*grid, "--require", "exact")
        assert refused.exit_code == 3
        assert "t=120 s=120" in refused.stderr
        assert not lock.exists()
        assert freeze(*grid, "--require", "tuned").exit_code == 0
        assert freeze(*grid[:2], "--require", "exact", "--overwrite").exit_code == 0
        told = CliRunner().invoke(app, ["explain", SIGNATURE, *here]).stdout
        assert "proven default" in told
        told = CliRunner().invoke(app, ["explain", *guess[1:], *here]).stdout
        assert "CHOSEN (untuned: nothing stored answers)" in told


def test_check_finds_what_would_stop_a_job(home):
    lock = home / "job.lock"
    run("override", "freeze", lock, *FREEZE)
    run("override", "quarantine", "add", "flash_attention", "-d", "bwd", "--reason", "wrong dq")
    result = run("override", "check-lockfile", lock)
    assert result.exit_code == 1
    assert "wrong dq" in result.stdout
    assert "1 of 2 answers replay exactly" in result.stdout
    lock.write_text(lock.read_text().replace("nvidia-h200", "nvidia-l4"))
    assert run("override", "check-lockfile", lock).exit_code == 5
    assert run("override", "check-lockfile", home / "gone.lock").exit_code == 4


def test_check_says_when_the_source_of_a_kernel_changed(home, monkeypatch):
    from attn_tune.kernels.spec import KernelSpec

    lock = home / "job.lock"
    run("override", "freeze", lock, *FREEZE)
    monkeypatch.setattr(KernelSpec, "source_hash", property(lambda spec: "b2:other"))
    data = json.loads(run("override", "check-lockfile", lock, "--json").stdout)
    assert all("source of" in one["problem"] for one in data["entries"])


def test_what_nothing_can_do_is_not_frozen(home):
    wrong = [*FREEZE[:4], "--device", "nvidia-h200", "--kernel", "pallas_tpu_flash"]
    result = run("override", "freeze", home / "job.lock", *wrong)
    assert result.exit_code == 2
    assert "--skip-unsupported" in result.stderr
    assert run("override", "freeze", home / "job.lock", *wrong, "--skip-unsupported").exit_code == 3
    assert not (home / "job.lock").exists()


def test_export_refuses_what_is_in_quarantine_and_carries_a_list(home):
    db = home / "lab.db"
    fill(db)
    run("override", "quarantine", "add", "flash_attention/xla", "-d", "bwd", "--reason", "wrong dq")
    refused = run("export", home / "a.atpack", "--db", db)
    assert refused.exit_code == 1
    assert "wrong dq" in refused.stderr
    assert listed()[0]["list"] in refused.stderr
    assert run("export", home / "a.atpack", "--db", db, "--no-gate", "demo").exit_code == 1
    assert not (home / "a.atpack").exists()
    forward = ["--db", db, "-d", "fwd"]
    assert run("export", home / "plain.atpack", *forward).exit_code == 0
    done = run("export", home / "careful.atpack", *forward, "--with-quarantine")
    assert "carries a quarantine list of 1" in done.stdout
    for name in ("plain", "careful"):
        shown = run("pack", "inspect", home / f"{name}.atpack").stdout
        assert ("direction bwd: wrong dq" in shown) is (name == "careful")
        assert "sound" in run("pack", "verify", home / f"{name}.atpack").stdout
    differs = run("pack", "diff", home / "plain.atpack", home / "careful.atpack", "--exit-code")
    assert (differs.exit_code, "quarantine added" in differs.stdout) == (1, True)
    merged = run("pack", "merge", home / "both", home / "plain.atpack", home / "careful.atpack")
    assert "1 in quarantine" in merged.stdout
    taken = run("pack", "import", home / "both", "--db", home / "new.db")
    assert "quarantine list of 1" in taken.stdout
    # Installed, it speaks for the user's jobs, with no list of the user's own.
    run("override", "quarantine", "remove", listed()[0]["id"])
    assert run("pack", "import", home / "careful.atpack", "--to", "user").exit_code == 0
    (entry,) = listed()
    assert entry["list"].startswith("pack careful")
