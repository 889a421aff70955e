"""Misses and models on the command line: shown, written as a grid, planned; and a model that ends up with its pack."""

import json

import pytest
from typer.testing import CliRunner

import attn_tune
from attn_tune.cli import app
from attn_tune.runtime.miss_spool import append
from tests.runtime.test_miss_spool import line

TEXT = "flash_attention/v1 b=2 t=64 s=64 n=4 k=2 h=16 v=16 dtype=bfloat16 causal=1"
MODEL = "tests.tuner.discover.test_program_grid"


def run(*words, **settings):
    result = CliRunner().invoke(app, [str(w) for w in words], prog_name="attn-tune", **settings)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Nothing of the real user is read or written."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("ATTN_TUNE_ON_MISS", f"record:{tmp_path / 'spool'}")
    monkeypatch.setattr("attn_tune.tuner.run.fleet.lease.lease_folder", lambda: tmp_path / "leases")
    monkeypatch.setenv("ATTN_TUNE_DB", str(tmp_path / "lab.db"))
    monkeypatch.delenv("ATTN_TUNE_PACKS", raising=False)


@pytest.fixture
def spool(tmp_path):
    for number, count in ((1, 2), (2, 8)):
        append(tmp_path / "spool", line(number, count=count))
    append(tmp_path / "spool", line(1, direction="bwd", count=1))
    (path,) = (tmp_path / "spool").iterdir()
    with path.open("a") as file:
        file.write("{torn\n")
    return tmp_path / "spool"


def test_misses_are_shown_most_asked_first(spool):
    result = run("lab", "misses", "--json")
    rows = json.loads(result.stdout)["misses"]
    assert [(r["signature"][-6:], r["direction"], r["asked"]) for r in rows] == [
        ("left=2", "fwd", 8),
        ("left=1", "fwd", 2),
        ("left=1", "bwd", 1),
    ]
    assert rows[0]["nearest"] == "no pack holds rows"
    assert "skipped" in result.stderr
    assert "left=2" in run("lab", "misses").stdout


def test_no_misses_are_no_error(tmp_path):
    assert "No miss is recorded" in run("lab", "misses").stdout
    assert json.loads(run("lab", "misses", "--json").stdout) == {"misses": []}
    result = run("plan", "--from-misses")
    assert result.exit_code == 3
    assert "ATTN_TUNE_ON_MISS=record" in result.stderr


def test_misses_become_a_grid_and_a_plan(spool, tmp_path):
    grid = tmp_path / "missed.toml"
    assert run("grids", "--from-misses", "--out", grid).exit_code == 0
    assert run("grids", "--from-misses", "--out", grid).exit_code == 4
    from_file = json.loads(run("plan", "--grid", grid, "--device", "cpu", "--json").stdout)
    from_spool = json.loads(run("plan", "--from-misses", "--device", "cpu", "--json").stdout)
    assert from_file["totals"] == from_spool["totals"]
    # One problem missed in both directions, the other forward only.
    assert from_file["totals"]["cases"] == 3


def test_misses_are_cleared_after_asking(spool):
    assert run("lab", "misses", "--clear", input="n\n").exit_code == 1
    assert list(spool.iterdir())
    assert run("lab", "misses", "--clear", "--yes").exit_code == 0
    assert list(spool.iterdir()) == []
    assert "Nothing is there" in run("lab", "misses", "--clear", "--yes").stdout


def test_misses_are_cleared_in_json_without_asking(spool):
    asked = run("lab", "misses", "--clear", "--json")
    assert (asked.exit_code, "give --yes too" in json.loads(asked.stdout)["error"]) == (2, True)
    files = [str(path) for path in spool.iterdir()]
    cleared = json.loads(run("lab", "misses", "--clear", "--json", "--yes").stdout)
    assert (cleared["deleted"], cleared["misses"] > 0) == (files, True)
    assert json.loads(run("lab", "misses", "--clear", "--json", "--yes").stdout) == {"deleted": [], "misses": 0}


def test_a_model_is_listed_written_and_planned(tmp_path):
    listed = json.loads(run("grids", "--from-fn", f"{MODEL}:pair", "--json").stdout)["points"]
    assert [(p["signature"], p["directions"], p["calls"]) for p in listed] == [(TEXT, "fwd,bwd", 2)]
    grid = tmp_path / "model.toml"
    assert run("grids", "--from-fn", f"{MODEL}:pair", "--out", grid).exit_code == 0
    planned = [
        json.loads(run("plan", *words, "--device", "cpu", "--json").stdout)["totals"]
        for words in (("--grid", grid), ("--from-fn", f"{MODEL}:pair"))
    ]
    assert planned[0] == planned[1]
    assert planned[0]["cases"] == 2
    assert run("grids", "--out", grid).exit_code == 2


def test_a_program_without_a_known_call_is_an_error_on_stderr():
    result = run("grids", "--from-fn", f"{MODEL}:plain")
    assert result.exit_code == 2
    assert "no call of an op" in result.stderr


@pytest.fixture
def flax_step(monkeypatch):
    monkeypatch.syspath_prepend("benchmarks")
    monkeypatch.setenv("FLAX_STEP_LAYERS", "1")
    monkeypatch.setenv("FLAX_STEP_LENGTH", "64")
    import flax_step

    return flax_step


@pytest.mark.slow
def test_the_calls_of_a_flax_training_step_are_found_in_four_ways(flax_step, tmp_path):
    import jax

    found = []
    for name in ("stock", "ours"):
        step, args = getattr(flax_step, name)()
        program = tmp_path / f"{name}.mlir"
        program.write_text(jax.jit(step).lower(*args).as_text())
        for words in (("--from-fn", f"flax_step:{name}"), ("--from-hlo", program)):
            (point,) = json.loads(run("grids", *words, "--json").stdout)["points"]
            found.append((point["signature"], point["directions"], point["calls"]))
    assert found == [(TEXT, "fwd,bwd", 2)] * 4


@pytest.mark.slow
@pytest.mark.exhaustive  # sweep, export and lookup are those of every other sweep
def test_a_flax_training_step_takes_its_configs_from_the_pack(flax_step, tmp_path):
    """The loop at its smallest, forward. Both directions are in ``benchmarks/model_to_pack.py``."""
    before = flax_step.losses(flax_step.our_attention, steps=1)
    words = ("-k", "xla", "-d", "fwd", "--max-trials", "1", "--json")
    swept = run("sweep", "--from-fn", "flax_step:stock", *words)
    assert swept.exit_code == 0, swept.stderr
    pack = tmp_path / "found.atpack"
    assert run("export", pack, "--max-regret", "1000").exit_code == 0
    with attn_tune.use_pack(pack):
        answers = [attn_tune.explain("flash_attention", TEXT, d).answer for d in ("fwd", "bwd")]
        lookups = dict(attn_tune.stats().lookups)
        after = flax_step.losses(flax_step.our_attention, steps=1)
        asked = {k: n - lookups[k] for k, n in attn_tune.stats().lookups.items() if n - lookups[k]}
    assert (str(answers[0].rung), answers[0].source.split()[0]) == ("exact", "found")
    assert answers[1].is_miss
    # The forward from the pack, the backward from nowhere; how often a program is traced is jax's affair.
    assert {str(rung) for rung in asked} == {"exact", "untuned"}
    assert after == pytest.approx(before, abs=1e-3)


def test_the_spool_that_was_read_is_in_the_next_command_and_in_the_error(tmp_path):
    place = tmp_path / "a spool"
    append(place, line(TEXT))
    shown = run("lab", "misses", "--spool", place).output
    assert f"attn-tune sweep --from-misses --spool '{place}'" in "".join(shown.split("\n")[-3:])
    empty = run("plan", "--from-misses", "--spool", tmp_path / "none")
    assert empty.exit_code == 3
    assert f"no miss is recorded in {tmp_path / 'none'};" in empty.output.replace("\n", " ")


def test_a_file_that_is_no_program_is_named_with_the_reason(tmp_path):
    for text, reason in (("", "the module has no function"), ("import x", "custom op 'import' is unknown")):
        file = tmp_path / "program.txt"
        file.write_text(text)
        said = run("grids", "--from-hlo", file).output.replace("\n", " ")
        assert str(file) in said
        assert reason in said
