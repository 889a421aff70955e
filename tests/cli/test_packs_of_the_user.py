"""The folder of the user's packs: what lookups take for one there, and what an import puts there."""

import json
import os
from pathlib import Path

import pytest

from attn_tune.runtime.active.sources import Source, locations
from attn_tune.runtime.lookup.answer import SourceKind
from tests.cli.test_pack_tools import home, run
from tests.runtime.packbuilder import pack_files, row, sig, write_folder, write_zip

__all__ = ["home"]


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "home" / "attn-tune" / "packs"


def test_drafts_that_a_killed_writer_left_are_no_packs(tmp_path):
    files = pack_files([row(sig(64))])
    for name in ("mine", ".mine.0123456789abcdef.new"):
        write_folder(tmp_path / "packs" / name, files)
    assert locations({"ATTN_TUNE_PACKS": str(tmp_path / "packs")}).user == (str(tmp_path / "packs" / "mine"),)


def test_a_folder_that_may_not_be_read_is_an_error(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    folder.mkdir(parents=True)
    monkeypatch.setattr(Path, "iterdir", refuse)
    (found,) = locations({"XDG_DATA_HOME": os.environ["XDG_DATA_HOME"]}).user
    assert found == str(folder)
    assert Source(SourceKind.USER, found).error


def test_an_imported_file_has_the_suffix_by_which_lookups_know_it(tmp_path, folder):
    plain = write_zip(tmp_path / "mine.atpack", pack_files([row(sig(64))])).rename(tmp_path / "mine.zip")
    done = run("pack", "import", plain, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(folder / "mine.zip.atpack")
    assert locations({"XDG_DATA_HOME": os.environ["XDG_DATA_HOME"]}).user == (str(folder / "mine.zip.atpack"),)
    hidden = run("pack", "import", plain.rename(tmp_path / ".mine.atpack"))
    assert (hidden.exit_code, "begins with a dot: rename it" in hidden.stderr) == (2, True)


def test_an_import_into_a_folder_that_may_not_be_read_is_one_error(tmp_path, monkeypatch):
    pack = write_zip(tmp_path / "mine.atpack", pack_files([row(sig(64))]))
    exists = Path.exists

    def refuse(path, **options):
        if path.parent.name == "packs":
            raise PermissionError(13, "Permission denied", str(path))
        return exists(path, **options)

    monkeypatch.setattr(Path, "exists", refuse)
    done = run("pack", "import", pack)
    assert (done.exit_code, "Permission denied" in done.stderr) == (4, True), done.stderr


def test_half_a_key_does_not_stay(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    made = run("pack", "sign", "--new-key", tmp_path / "whole.pem", "--json")
    assert json.loads(made.stdout)["public"] == str(tmp_path / "whole.pem.pub")

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    done = run("pack", "sign", "--new-key", tmp_path / "half.pem")
    assert (done.exit_code, "No space left" in done.stderr) == (4, True)
    assert not (tmp_path / "half.pem").exists()
