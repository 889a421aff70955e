"""A pack in a folder that replaces another one."""

import sys
from pathlib import Path

import pytest

from attn_tune.packs import writer
from attn_tune.packs.reader import read_pack
from attn_tune.packs.writer import files_of_rows, write_pack


def write(path: Path, version: str) -> None:
    files = files_of_rows([], name="p", version=version, devices={}, environments={}, contracts={})
    write_pack(path, files)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems need two steps")
def test_a_folder_is_replaced_in_one_step(tmp_path, monkeypatch):
    write(tmp_path / "pack", "1")
    # Between these two steps there would be no pack, and a kill would leave it so.
    monkeypatch.delattr(Path, "rename")
    write(tmp_path / "pack", "2")
    assert read_pack(tmp_path / "pack").version == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["pack"]


def test_a_folder_is_replaced_where_two_cannot_be_exchanged(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "_exchanged", lambda one, other: False)
    write(tmp_path / "pack", "1")
    write(tmp_path / "pack", "2")
    assert read_pack(tmp_path / "pack").version == "2"
    assert [path.name for path in tmp_path.iterdir()] == ["pack"]
