"""``attn-tune override`` from the outside."""

import dataclasses
import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.kernels.spec import KernelSpec
from attn_tune.packs.writer import check_target
from attn_tune.runtime import misses
from attn_tune.runtime.active import settings
from attn_tune.runtime.active.layers import use_pack
from attn_tune.schema import StorageError
from tests.cli.fakes import SIGNATURE, FakeExecutor, fill

POINT = "llama3-8b/4x4k"
KNOBS = ["-c", "chunk_q=64", "-c", "chunk_k=128"]
FREEZE = ["--grid", "llama3-8b", "--point", POINT, "--device", "nvidia-h200"]


def run(*words):
    # Each command is a process of its own: nothing that an earlier one read is active.
    settings._current = misses._mode = None
    result = CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def override(*words):
    return run("override", *words)


def listed(*words):
    return json.loads(override("list", "--json", *words).stdout)["entries"]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "my home"))
    for name in ("OVERRIDES", "PACKS", "ON_MISS"):
        monkeypatch.delenv(f"ATTN_TUNE_{name}", raising=False)
    monkeypatch.setattr(settings, "_current", None)
    monkeypatch.setattr(misses, "_mode", None)
    return tmp_path


def test_a_never_entry_is_found_without_a_variable_and_taken_out(home):
    add = ["add", "never", "flash_attention/xla", "--reason", "wrong  dq", "-c", "chunk_q=64"]
    made = json.loads(override(*add, "--json").stdout)
    (entry,) = listed()
    assert entry["id"] == made["id"]
    assert (entry["entry"], entry["config"]) == ("never", {"chunk_q": 64})
    assert (entry["kernel"], entry["reason"]) == ("xla", "wrong dq")
    assert entry["file"] == made["path"] == str(home / "my home" / "attn-tune" / "overrides.json")
    assert 'config {"chunk_q":64}: wrong dq' in override("list").stdout
    # Once, with the newest reason.
    override(*add, "--reason", "hangs")
    assert [e["reason"] for e in listed()] == ["hangs"]
    missing = override("remove", "00000000")
    assert (missing.exit_code, listed()[0]["id"] in missing.stderr) == (3, True)
    removed = json.loads(override("remove", listed()[0]["id"], "--json").stdout)
    assert (removed["entries"], listed()) == (0, [])


def test_a_use_entry_answers_and_its_end_is_a_command(home):
    words = ["add", "use", "flash_attention/xla", *KNOBS, "--point", POINT]
    for _ in range(2):
        assert override(*words, "--device", "nvidia-h200").exit_code == 0
    (one,) = listed()
    assert one["config"] == {"chunk_k": 128, "chunk_q": 64}
    told = run("explain", POINT, "-d", "fwd", "--device", "nvidia-h200").stdout
    end = f"attn-tune override remove {one['id']} --file '{one['file']}'"
    assert f"CHOSEN (an override, asked before all packs; to end it: {end})" in told
    assert "override" not in run("explain", POINT, "-d", "fwd", "--device", "nvidia-l4").stdout
    assert run(*shlex.split(end)[1:]).exit_code == 0
    assert listed() == []


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        ("never flash_attention/xlb --reason x", "xla"),
        ("never flash_attention/xla --reason ' '", "give --reason TEXT"),
        (f"use flash_attention/xla --reason {'x' * 5000}", "reason must be printable, of at most"),
        ("never flash_attention/xla --reason x -c chunk_p=3", "no knob 'chunk_p'"),
        ("never flash_attention/xla --reason x -c chunk_q=wide", "chunk_q"),
        ("never flash_attention/xla --reason x -c chunk_q", "KNOB=VALUE"),
        ("never flash_attention/xla --reason x -c {", "not JSON"),
        ("never flash_attention --reason x -c chunk_q=64", "name one of flash_attention"),
        ("never flash_attention/xla --reason x -s w=3", "signature field"),
        ("never flash_attention/xla --reason x -s h=wide", "not an integer"),
        ("never flash_attention/xla --reason x --device h2000", "h2000"),
        ("never xla --reason x", "flash_attention/xla"),
        ("use flash_attention/xla -c chunk_q=64", "needs the knob 'chunk_k'"),
        ("use attention/xla -c rows=3", "config of attention/xla: Config has no knob 'rows'; it has none"),
        ("use flash_attention -c chunk_q=64", "name one of flash_attention"),
        ("use flash_attention/xla -d sideways", "unknown direction"),
        ("use flash_attention/xla --point x -s h=1", "give one of them"),
    ],
)
def test_an_entry_that_could_never_act_is_refused(words, fragment):
    result = override("add", *shlex.split(words))
    assert result.exit_code == 2
    assert fragment in result.stderr
    assert listed() == []


def test_a_file_that_cannot_be_read_is_an_error_and_is_not_overwritten(home):
    path = home / "my home" / "attn-tune" / "overrides.json"
    path.parent.mkdir(parents=True)
    for text in ("{", '{"format": 1, "never": [{}]}', '{"format": 1, "use": [{}]}'):
        path.write_text(text)
        told = override("list", "--json")
        assert (told.exit_code, str(path) in json.loads(told.stdout)["broken"][0]) == (5, True)
        adding = override("add", "never", "flash_attention", "--reason", "x")
        assert (adding.exit_code, str(path) in adding.stderr) == (5, True)
        assert path.read_text() == text
    assert override("list", "--file", home / "gone.json").exit_code == 4


def test_explain_says_that_strict_jobs_refuse_a_miss(monkeypatch):
    asked = ["explain", "flash_attention/v1 b=1 t=77 s=77 n=2 k=2 h=64 v=64 dtype=float32"]
    monkeypatch.setenv("ATTN_TUNE_ON_MISS", "strict")
    told = run(*asked, "-d", "fwd", "--device", "cpu")
    assert (told.exit_code, "refused by ATTN_TUNE_ON_MISS=strict" in told.stdout) == (1, True)
    assert run(*asked, "--device", "cpu", "--json").exit_code == 1
    assert "CHOSEN" not in told.stdout
    monkeypatch.setenv("ATTN_TUNE_ON_MISS", "strickt")
    misspelled = run(*asked, "--device", "cpu")
    assert (misspelled.exit_code, "strickt" in misspelled.stderr) == (2, True)


def test_explain_names_the_entry_that_leaves_nothing(home):
    file = home / "never.json"
    asked = ["flash_attention/v1 b=1 t=77 s=77 n=2 k=2 h=64 v=64 dtype=float32", "-d", "fwd", "--device", "cpu"]
    override("add", "never", "flash_attention/xla", "--reason", "crashes", "--file", file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTN_TUNE_OVERRIDES", str(file))
        told = run("explain", *asked)
        reason = f"an override forbids it: crashes ({file})"
        assert (told.exit_code, reason in " ".join(told.stdout.split())) == (1, True)
        (turned_down,) = json.loads(run("explain", *asked, "--json").stdout)["fwd"]["turned_down"]
    assert turned_down == {"subject": "untuned config of flash_attention/xla", "reason": reason}


def test_check_asks_with_the_determinism_of_a_job(home, monkeypatch):
    lock = home / "job.json"
    monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", "0")
    backward = ["--grid", "peers", "--point", "h64-gqa4/4x4k", "-d", "bwd", "--device", "nvidia-h200"]
    override("freeze", lock, *backward)
    assert "triton_hopper_fused" in lock.read_text()
    for value, code in (("0", 0), ("1", 1)):
        monkeypatch.setenv("ATTN_TUNE_DETERMINISTIC", value)
        checked = override("check", lock)
        assert (checked.exit_code, "it is not deterministic" in checked.stdout) == (code, bool(code))


def test_freeze_says_that_another_machine_would_answer_otherwise(home, monkeypatch):
    monkeypatch.setattr("attn_tune.kernels.flash_attention.cudnn.limits.cudnn_version", lambda: None)
    told = override("freeze", home / "job.json", "--grid", "peers", "--point", "h256-full/4x4k", *FREEZE[-2:])
    assert told.exit_code == 0
    assert "1 of 2 answers would be of cudnn on nvidia-h200: this machine lacks what" in " ".join(told.stderr.split())


class Ties(FakeExecutor):
    """A device on which every config takes the same time."""

    def _ok(self, ref, round_id, samples):
        found = super()._ok(ref, round_id, samples)
        times = tuple(100_000 + i for i in range(samples))
        return dataclasses.replace(found, measurement=dataclasses.replace(found.measurement, samples_ns=times))


def test_freeze_and_check(home):
    lock = home / "job.json"
    frozen = json.loads(override("freeze", lock, *FREEZE, "--json").stdout)
    assert (frozen["entries"], frozen["left_out"]) == (2, [])
    again = override("freeze", lock, *FREEZE)
    assert (again.exit_code, "--overwrite" in again.stderr) == (4, True)
    before = lock.read_bytes()
    said = override("freeze", lock, *FREEZE, "--overwrite").stdout
    assert f"use it with export ATTN_TUNE_OVERRIDES={lock}" in said
    assert lock.read_bytes() == before
    sound = override("check", lock)
    assert (sound.exit_code, "2 of 2 entries hold" in sound.stdout) == (0, True)
    # The answer of lookups without the file is shown beside it.
    override("add", "use", "flash_attention/xla", *KNOBS, "--point", POINT)
    data = json.loads(override("check", lock, "--json").stdout)
    assert data["holds"] is True
    assert ["(override from" in one["now"] for one in data["entries"]].count(True) == 1


def test_freeze_separates_proven_defaults_from_guesses_and_refuses_rungs_below_the_required_one(home):
    db, packs = home / "lab.db", home / "p.atpack"
    fill(db, Ties(), directions=("fwd",))
    assert run("export", packs, "--db", db).exit_code == 0
    assert "1 proven untuned config" in run("pack", "inspect", packs).stdout
    near = SIGNATURE.replace("=128 n", "=120 n").replace("t=128", "t=120")
    grid = ["--grid", SIGNATURE, "--grid", near]
    guess = ["--grid", SIGNATURE.replace("causal=1", "causal=1 cap=1")]
    lock, here = home / "job.json", ["-d", "fwd", "--device", "cpu"]
    with use_pack(packs):

        def freeze(*words):
            words = ["override", "freeze", str(lock), *here, *words]
            return CliRunner().invoke(app, words, prog_name="attn-tune")

        said = freeze(*grid, *guess)
        assert said.exit_code == 0, said.stderr
        counts = "1 bucket (proven untuned config), 1 exact (proven untuned config), 1 untuned"
        assert f"3 answers for cpu-x86_64 ({counts})" in said.stdout
        lock.unlink()
        refused = freeze(*grid, *guess, "--require", "tuned")
        assert refused.exit_code == 3
        assert "1 of 3 answers is not tuned" in refused.stderr
        assert "cap=1, which is untuned; nothing was written" in refused.stderr
        refused = freeze(*grid, "--require", "exact")
        assert (refused.exit_code, "t=120 s=120" in refused.stderr) == (3, True)
        assert not lock.exists()
        assert freeze(*grid, "--require", "tuned").exit_code == 0
        assert freeze(*grid[:2], "--require", "exact", "--overwrite").exit_code == 0
        told = CliRunner().invoke(app, ["explain", SIGNATURE, *here]).stdout
        assert "proven untuned config" in told
        told = CliRunner().invoke(app, ["explain", *guess[1:], *here]).stdout
        assert "CHOSEN (nothing stored answers)" in told


def test_check_finds_the_entries_that_cannot_act(home, monkeypatch):
    lock = home / "job.json"
    override("freeze", lock, *FREEZE)
    override("add", "never", "flash_attention", "-d", "bwd", "--reason", "wrong dq")
    result = override("check", lock)
    assert result.exit_code == 1
    assert "stops: " in result.stdout
    assert "wrong dq" in result.stdout
    assert "1 of 2 entries hold" in result.stdout
    hand = home / "hand.json"
    entry = {"op": "flash_attention", "direction": "fwd", "kernel": "xla", "config": {"chunk": 1}}
    never = [{"kernel": "triton_old", "reason": "x"}, {"device": "sm_90", "reason": "y"}]
    hand.write_text(json.dumps({"format": 1, "use": [entry], "never": never}))
    told = override("check", hand)
    assert (told.exit_code, "1 of 3 entries hold" in told.stdout) == (1, True)
    assert "no knob 'chunk'" in told.stdout
    assert "'triton_old'" in told.stdout
    monkeypatch.setattr(KernelSpec, "source_hash", property(lambda spec: "b2:other"))
    data = json.loads(override("check", lock, "--json").stdout)
    assert all("source of" in one["problem"] or one["now"] for one in data["entries"][:1])
    lock.write_text(lock.read_text().replace("nvidia-h200", "nvidia-l4"))
    assert override("check", lock).exit_code == 5
    assert override("check", home / "gone.json").exit_code == 4


@pytest.mark.parametrize("signature", ["", {"h": 128}])
def test_check_finds_entries_for_many_problems_that_another_forbids(home, signature):
    use = {"op": "flash_attention", "direction": "fwd", "kernel": "xla", "config": {"chunk_q": 32, "chunk_k": 32}}
    never = {"op": "flash_attention", "kernel": "xla", "config": {"chunk_q": 32}, "reason": "bad"}
    hand = home / "hand.json"
    hand.write_text(json.dumps({"format": 1, "use": [use | {"signature": signature}], "never": [never]}))
    told = override("check", hand)
    assert (told.exit_code, "stops: an override forbids it: bad" in told.stdout) == (1, True)
    # One that forbids a part of these problems leaves others.
    hand.write_text(hand.read_text().replace('"reason"', '"signature": {"n": 4}, "reason"'))
    assert override("check", hand).exit_code == 0


USE = {"op": "flash_attention", "direction": "fwd", "kernel": "xla", "config": {"chunk_q": 32, "chunk_k": 32}}
NEVER = {"op": "flash_attention", "kernel": "triton", "reason": "bad"}
PLAIN = "flash_attention/v1 b=1 t=128 s=128 n=4 k=4 h=64 v=64 dtype=bfloat16"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (USE | {"signature": f"{PLAIN} left=127"}, f"lookups of this problem ask for '{PLAIN}'"),
        (NEVER | {"signature": f"{PLAIN} left=127"}, f"lookups of this problem ask for '{PLAIN}'"),
        (USE | {"signature": {"h": "64"}}, "h of flash_attention cannot be '64'"),
        (NEVER | {"signature": {"h": 64.5}}, "h of flash_attention cannot be 64.5"),
        ({"reason": "bad", "signature": {"hh": 64}}, "'hh'"),
        (NEVER | {"config": {"num_wraps": 8}}, "no knob 'num_wraps'; it has block_q, block_k, num_warps"),
        ({"reason": "bad", "kernel": "triton", "config": {"num_wraps": 8}}, "it fits none of the"),
        (NEVER | {"config": {"num_warps": None}}, "num_warps cannot be None"),
        (USE | {"device": "NVIDIA H200"}, "lookups call the device 'NVIDIA H200' 'nvidia-h200'"),
        (NEVER | {"device": "nvidia-h200/mig-1g.18gb"}, "'cuda/sm_90/nvidia-h200/mig-1g.18gb'"),
        # These act in lookups: true is 1, and a number in quotes forbids that number.
        (USE | {"signature": {"causal": True}}, ""),
        (USE | {"signature": {"h": 64.0, "left": None}}, ""),
        (NEVER | {"signature": {"h": "64"}, "config": {"num_warps": "8"}}, ""),
        (NEVER | {"config": {"num_warps": 8.0}}, ""),
        ({"reason": "bad", "kernel": "triton", "config": {"num_warps": 8}}, ""),
        (NEVER | {"reason": " "}, ""),
        # New hardware may have such a name.
        (USE | {"device": "nvidia-h2000"}, "holds; 'nvidia-h2000' is the name of no known device"),
        (USE | {"device": "nvidia-h2000", "signature": PLAIN}, "holds; 'nvidia-h2000' is the name of no known device"),
    ],
)
def test_check_says_stops_of_the_entries_alone_that_no_lookup_matches(home, entry, words):
    hand = home / "hand.json"
    hand.write_text(json.dumps({"format": 1, "never" if "reason" in entry else "use": [entry]}))
    told = override("check", hand)
    assert words in told.stdout
    stops = bool(words) and not words.startswith("holds")
    assert (told.exit_code, told.stdout.startswith("stops: ")) == (stops, stops)


def test_a_working_folder_that_is_gone_is_one_error(home, monkeypatch):
    gone = home / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    result = override("freeze", "x.json", *FREEZE)
    assert (result.exit_code, "x.json lies in a folder that cannot be read" in result.stderr) == (4, True)
    with pytest.raises(StorageError, match=r"x\.atpack lies in a folder that cannot be read"):
        check_target(Path("x.atpack"), overwrite=False)


def test_problems_that_no_kernel_can_do_are_not_frozen(home):
    wrong = [home / "job.json", *FREEZE, "--kernel", "pallas_tpu_flash"]
    result = override("freeze", *wrong)
    assert (result.exit_code, "--skip-unsupported" in result.stderr) == (2, True)
    assert override("freeze", *wrong, "--skip-unsupported").exit_code == 3
    assert not (home / "job.json").exists()


def test_export_refuses_forbidden_configs_and_carries_never_entries(home):
    db = home / "lab.db"
    fill(db)
    override("add", "never", "flash_attention/xla", "-d", "bwd", "--reason", "wrong dq")
    refused = run("export", home / "a.atpack", "--db", db)
    assert refused.exit_code == 1
    assert "wrong dq" in refused.stderr
    assert listed()[0]["file"] in refused.stderr
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
    # Installed, it holds for the user's jobs without a file of the user's own.
    override("remove", listed()[0]["id"])
    assert run("pack", "import", home / "careful.atpack", "--to", "user").exit_code == 0
    (entry,) = listed()
    assert entry["file"].startswith("pack careful")
