"""Packs on a command line by their names, and by paths that look like one."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.runtime.active.names import known_packs

SHIPPED = Path(__file__).resolve().parents[2] / "attn_tune" / "packs" / "shipped"


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    for name in ("ATTN_TUNE_TRUSTED_KEYS", "ATTN_TUNE_PACKS"):
        monkeypatch.delenv(name, raising=False)


def test_a_pack_is_named_wherever_it_is_an_argument(tmp_path):
    at = SHIPPED / "nvidia-h200"
    for words in (["inspect"], ["coverage"], ["verify"]):
        named, by_path = (run("pack", *words, one, "--json") for one in ("nvidia-h200", at))
        assert named.exit_code == 0, named.stderr
        assert named.stdout == by_path.stdout
    assert "0 added" in run("pack", "diff", "nvidia-h200", at).stdout
    assert run("pack", "convert", "tpu-v5e", "--to", "maxtext", tmp_path / "flags.yml").exit_code == 0
    assert run("lab", "compare", "nvidia-h200", at).exit_code == 0


def test_a_pack_of_the_user_is_named_and_a_wrong_name_is_told(tmp_path, monkeypatch):
    shutil.copytree(SHIPPED / "tpu-v5e", tmp_path / "other-folder")
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(tmp_path / "other-folder"))
    assert known_packs()["tpu-v5e"] == tmp_path / "other-folder", "as calls find it: the user's come first"
    wrong = run("pack", "inspect", "nvidia-h20")
    assert (wrong.exit_code, wrong.stdout) == (4, "")
    assert "there is no pack at nvidia-h20" in wrong.stderr
    assert "did you mean 'nvidia-h200'" in wrong.stderr


def test_a_path_that_hides_the_name_of_a_pack_is_told(tmp_path, monkeypatch, caplog):
    shutil.copytree(SHIPPED / "tpu-v5e", tmp_path / "nvidia-h200")
    monkeypatch.chdir(tmp_path)
    assert json.loads(run("pack", "inspect", "nvidia-h200", "--json").stdout)["name"] == "tpu-v5e"
    assert "nvidia-h200 is the one in this folder" in caplog.text
    assert str(SHIPPED / "nvidia-h200") in caplog.text
    caplog.clear()
    assert run("pack", "inspect", "./nvidia-h200").exit_code == 0
    assert run("pack", "inspect", "tpu-v6e").exit_code == 0
    assert not caplog.text, "what is named by its path, or hides nothing, needs no word"


@pytest.mark.parametrize(
    "words", [("pack", "inspect", ""), ("pack", "diff", "", "tpu-v5e"), ("lab", "compare", "", "tpu-v5e")]
)
def test_an_empty_text_is_no_pack(words):
    refused = run(*words)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "a pack is a folder, an .atpack file or a name" in refused.stderr
