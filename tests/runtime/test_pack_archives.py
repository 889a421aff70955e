"""What a pack is read from, a folder or a zip: links, odd entries, odd compressions and odd sizes are refused."""

import os
import stat
import zipfile

import pytest

from attn_tune.runtime import archive
from attn_tune.runtime.packs import read_pack
from attn_tune.schema.errors import IntegrityError, StorageError
from tests.runtime.packbuilder import pack_files, row, sig, write_folder, write_zip

SHARD = "shards/sm_90/toy.fwd.json"


@pytest.fixture
def files():
    return pack_files([row(sig(1024), 64), row(sig(2048), 128)])


def test_a_path_without_a_pack(tmp_path):
    with pytest.raises(StorageError, match="nowhere"):
        read_pack(tmp_path / "nowhere")
    with pytest.raises(IntegrityError, match="SHA256SUMS"):
        read_pack(tmp_path)


def test_links_and_pipes_are_refused(tmp_path, files):
    outside = tmp_path / "outside.json"
    outside.write_bytes(files[SHARD])
    linked = write_folder(tmp_path / "linked", files)
    (linked / SHARD).unlink()
    (linked / SHARD).symlink_to(outside)
    with pytest.raises(IntegrityError, match="link"):
        read_pack(linked)
    piped = write_folder(tmp_path / "piped", files)
    (piped / SHARD).unlink()
    os.mkfifo(piped / SHARD)
    with pytest.raises(IntegrityError, match="not a plain file"):
        read_pack(piped)


def zip_with(tmp_path, files, names_and_modes):
    path = tmp_path / "x.atpack"
    with zipfile.ZipFile(path, "w") as archive_:
        for name, data in files.items():
            archive_.writestr(name, data)
        for name, mode in names_and_modes:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive_.writestr(info, b"x")
    return path


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("../evil", 0),
        ("/abs", 0),
        ("a\\..\\b", 0),
        ("link", stat.S_IFLNK | 0o777),
        ("folder/", 0),
        ("device", stat.S_IFCHR | 0o600),
    ],
)
def test_zip_entries_that_are_not_plain_files_are_refused(tmp_path, files, name, mode):
    with pytest.raises(IntegrityError):
        read_pack(zip_with(tmp_path, files, [(name, mode)]))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_zip_with_one_name_twice_is_refused(tmp_path, files):
    with pytest.raises(IntegrityError, match="twice"):
        read_pack(zip_with(tmp_path, files, [(SHARD, 0)]))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_compressions_are_refused(tmp_path, files, method):
    path = tmp_path / "x.atpack"
    with zipfile.ZipFile(path, "w", method) as archive_:
        for name, data in files.items():
            archive_.writestr(name, data)
    with pytest.raises(IntegrityError, match="compression"):
        read_pack(path)


def test_sizes_are_capped(tmp_path, files, monkeypatch):
    bomb = write_zip(tmp_path / "bomb.atpack", {**files, "zeros": bytes(200_000)})
    folder = write_folder(tmp_path / "bomb", {**files, "zeros": bytes(200_000)})
    monkeypatch.setattr(archive, "MAX_FILE_BYTES", 100_000)
    for path in (bomb, folder):
        with pytest.raises(IntegrityError, match="larger"):
            read_pack(path)
    monkeypatch.setattr(archive, "MAX_FILES", 2)
    monkeypatch.setattr(archive, "MAX_FILE_BYTES", 10**9)
    for path in (bomb, folder):
        with pytest.raises(IntegrityError, match="more than 2 files"):
            read_pack(path)


def test_reading_does_not_write(tmp_path, files):
    folder = write_folder(tmp_path / "a", files)
    before = sorted(p.name for p in folder.rglob("*"))
    folder.chmod(0o555)
    read_pack(folder)
    folder.chmod(0o755)
    assert sorted(p.name for p in folder.rglob("*")) == before
