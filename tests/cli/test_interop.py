"""The commands that speak to other tools: pack convert, pack badge, lab convert, sweep --hints."""

import importlib.metadata
import json
import xml.etree.ElementTree as ET

import pytest
import yaml
from typer.testing import CliRunner

from attn_tune.cli import app
from tests.cli.fakes import POINT, fill
from tests.integrations.packs import H200, LAYOUTS, SPLASH, V6E, row, written
from tests.integrations.tables import table


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.fixture
def pack(tmp_path):
    rows = (row("pallas_tpu_splash", "fwd", SPLASH, device=V6E), row("xla", "bwd", {}, device=V6E))
    return written(tmp_path / "v6e.atpack", *rows)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    path = tmp_path_factory.mktemp("lab") / "lab.db"
    fill(path)
    return path


def test_pack_convert_writes_the_file_and_counts_what_it_cannot_hold(pack, tmp_path):
    out = tmp_path / "new" / "flags.yaml"
    done = run("pack", "convert", pack, "--to", "maxtext", out)
    assert done.exit_code == 0, done.output
    (flags,) = yaml.safe_load_all(out.read_text())
    assert flags["sa_block_kv"] == SPLASH["block_kv"]
    assert "1 row for tpu-v6e, 1 left out" in done.stdout
    assert "left out, 1 row of flash_attention/xla bwd: the tool has no kernel flash_attention/xla" in done.stdout
    data = json.loads(run("pack", "convert", pack, "--to", "maxtext", out, "--overwrite", "--json").stdout)
    assert (data["device"], data["rows"], len(data["left_out"])) == ("tpu-v6e", 1, 1)


def test_remarks_are_counted_by_what_they_say(tmp_path):
    other = {"block_q": 256, "block_kv": 512, "block_kv_compute": 256} | LAYOUTS | {"v_layout": "head_dim_minor"}
    rows = (
        row("pallas_tpu_splash", "fwd", SPLASH, device=V6E),
        row("pallas_tpu_splash_fused", "bwd", other, device=V6E),
    )
    done = run("pack", "convert", written(tmp_path / "p.atpack", *rows), "--to", "maxtext", tmp_path / "f.yaml")
    assert "remark on 1 problem: its launches have layouts of their own" in done.stdout


def test_a_pack_that_did_not_pass_the_gate_says_so_on_its_way_out(tmp_path):
    made = row("pallas_tpu_splash", "fwd", SPLASH, device=V6E)
    path = written(tmp_path / "p.atpack", made, gate={"passed": False, "reason": "a test"})
    done = run("pack", "convert", path, "--to", "maxtext", tmp_path / "flags.yaml")
    assert (done.exit_code, "did not pass the release gate" in done.stderr) == (0, True)


def test_pack_convert_refuses_what_it_cannot_do(pack, tmp_path):
    out = tmp_path / "out"
    unknown = run("pack", "convert", pack, "--to", "textproto", out)
    assert (unknown.exit_code, "maxtext" in unknown.stderr) == (2, True)
    none = written(tmp_path / "none.atpack", row("xla", "fwd", {}))
    empty = run("pack", "convert", none, "--to", "maxtext", out)
    assert (empty.exit_code, "its kernels are flash_attention/xla" in empty.stderr) == (3, True)
    other = run("pack", "convert", pack, "--to", "maxtext", out, "--device", "nvidia-h200")
    assert (other.exit_code, "no row for nvidia-h200" in other.stderr) == (3, True)
    assert run("pack", "convert", tmp_path / "nowhere.atpack", "--to", "maxtext", out).exit_code == 4
    broken = tmp_path / "broken.atpack"
    broken.write_bytes(pack.read_bytes()[:-40])
    assert run("pack", "convert", broken, "--to", "maxtext", out).exit_code == 5
    assert not out.exists()


def test_several_devices_need_a_choice(tmp_path):
    slice_of = {"device": H200}
    rows = [row("pallas_tpu_splash", "fwd", SPLASH, device=V6E), row("pallas_tpu_splash", "fwd", SPLASH, **slice_of)]
    both = written(tmp_path / "both.atpack", *rows)
    done = run("pack", "convert", both, "--to", "maxtext", tmp_path / "out")
    assert (done.exit_code, "nvidia-h200, tpu-v6e; choose one with --device" in done.stderr) == (2, True)
    assert run("pack", "convert", both, "--to", "maxtext", tmp_path / "out", "--device", "tpu-v6e").exit_code == 0


@pytest.mark.parametrize("words", [("pack", "convert", "--to", "maxtext"), ("pack", "badge")], ids=" ".join)
def test_a_file_that_is_there_stays_without_overwrite_and_packs_stay_always(pack, tmp_path, words):
    taken = tmp_path / "taken"
    taken.write_text("mine")
    refused = run(*words, pack, taken)
    assert (refused.exit_code, "--overwrite" in refused.stderr, taken.read_text()) == (4, True, "mine")
    assert run(*words, pack, taken, "--overwrite").exit_code == 0
    assert taken.read_text() != "mine"
    before = pack.read_bytes()
    assert run(*words, pack, pack, "--overwrite").exit_code == 4
    assert pack.read_bytes() == before
    folder = written(tmp_path / "folder", row("pallas_tpu_splash", "fwd", SPLASH, device=V6E))
    within = run(*words, folder, folder / "out")
    assert (within.exit_code, "lies within the pack" in within.stderr) == (4, True)
    (link := tmp_path / "link").symlink_to(folder / "shards")
    through = run(*words, folder, link / "out")
    assert (through.exit_code, "lies within the pack" in through.stderr) == (4, True)


def test_tokamax_that_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch):
    from attn_tune.kernels.lang.libraries.versions import wrong_version

    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    wrong_version.cache_clear()
    path = written(tmp_path / "p.atpack", row("tokamax_triton", "fwd", {"block_q": 64}))
    done = run("pack", "convert", path, "--to", "tokamax", tmp_path / "out")
    wrong_version.cache_clear()
    assert (done.exit_code, "pip install 'attn-tune[tokamax]'" in done.stderr) == (3, True)


def test_pack_badge_writes_an_svg_and_shows_its_markdown(pack, tmp_path):
    out = tmp_path / "badge.svg"
    done = run("pack", "badge", pack, out)
    assert done.exit_code == 0
    assert f"![attn-tune lab]({out})" in done.stdout
    assert ET.fromstring(out.read_text()).get("aria-label") == "attn-tune lab | tpu-v6e: 2 rows, 2 proven"
    data = json.loads(run("pack", "badge", pack, out, "--overwrite", "--json").stdout)
    assert (data["rows"], data["proven"]) == (2, 2)


def test_badge_and_inspect_count_proven_rows_by_one_rule(tmp_path):
    rows = [
        ({}, "fwd"),
        ({"features": None}, "bwd"),
        ({"features": 0, "device": H200}, "fwd"),
        ({"error_ppm": None, "device": H200}, "bwd"),
    ]
    made = (row("xla", way, {"chunk_q": 64, "chunk_k": 64}, **({"device": V6E} | more)) for more, way in rows)
    path = written(tmp_path / "p.atpack", *made)
    shown = run("pack", "inspect", path).stdout
    assert "2 of 4 rows proven, 1 of them without the number of feature problems that they passed" in shown
    inspected = json.loads(run("pack", "inspect", path, "--json").stdout)
    badge = json.loads(run("pack", "badge", path, tmp_path / "b.svg", "--json").stdout)
    assert inspected["proven"] == badge["proven"] == 2
    assert inspected["proven_features_unknown"] == 1


def test_lab_convert_writes_a_folder_of_t4(lab, tmp_path):
    out = tmp_path / "results"
    done = run("lab", "convert", out, "--to", "t4", "--db", lab)
    assert done.exit_code == 0, done.output
    files = sorted(path.name for path in out.iterdir())
    assert len(files) == 4
    results = [json.loads((out / name).read_text()) for name in files if "metadata" not in name]
    trials = sum(len(one["results"]) for one in results)
    assert f"{trials} trials in 2 result files" in done.stdout
    assert all(one["schema_version"] == "1.0.0" for one in results)
    narrow = tmp_path / "narrow"
    data = json.loads(run("lab", "convert", narrow, "--to", "t4", "--db", lab, "-d", "fwd", "--json").stdout)
    assert data["searches"] == 1
    assert 0 < data["trials"] < trials
    assert all(".fwd." in path.name for path in narrow.iterdir())


def test_lab_convert_refuses_what_it_cannot_do(lab, tmp_path):
    out = tmp_path / "results"
    assert run("lab", "convert", out, "--to", "t3", "--db", lab).exit_code == 2
    assert run("lab", "convert", out, "--to", "t4", "--db", tmp_path / "none.db").exit_code == 3
    assert run("lab", "convert", out, "--to", "t4", "--db", lab, "--device", "nvidia-h200").exit_code == 3
    assert not out.exists()
    out.mkdir()
    taken = run("lab", "convert", out, "--to", "t4", "--db", lab)
    assert (taken.exit_code, "exists; choose another path" in taken.stderr) == (4, True)
    assert not list(out.iterdir())


def test_plan_counts_hints_and_names_those_that_it_skips(pack, tmp_path):
    done = run(
        "plan", "--grid", "cpu-smoke", "--point", POINT, "--kernel", "xla", "--hints", pack, "--db", tmp_path / "x"
    )
    assert done.exit_code == 0, done.output
    assert f"hints of {pack}: 1 config, 1 skipped" in done.stderr
    assert "flash_attention/xla bwd: BackwardConfig needs the knob 'chunk_q'" in done.stderr


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("{", 5, "is not JSON"),
        ('{"device_kind": "x", "data": [], "tokamax_version": "9.0"}', 5, "another version"),
        ("{}", 3, "no config that can be tried here"),
    ],
)
def test_hints_that_are_none_are_an_error_before_anything_runs(tmp_path, text, code, words):
    path = tmp_path / "table.json"
    path.write_text(text)
    done = run("sweep", "--grid", "cpu-smoke", "--hints", path, "--db", tmp_path / "lab.db")
    assert (done.exit_code, words in done.stderr) == (code, True), done.output
    assert not (tmp_path / "lab.db").exists()


def test_hints_of_a_table_of_tokamax_are_planned_first(tmp_path):
    grid = "flash_attention/v1 b=4 t=4096 s=4096 n=32 k=8 h=128 v=128 dtype=bfloat16 causal=1"
    words = ("plan", "--grid", grid, "--kernel", "tokamax_triton", "-d", "fwd", "--db", tmp_path / "x", "--json")
    path = table(tmp_path)
    done = run(*words, "--device", "nvidia-h200", "--hints", path)
    assert done.exit_code == 0, done.output
    assert f"hints of {path}: 1 config, 0 skipped" in done.stderr
