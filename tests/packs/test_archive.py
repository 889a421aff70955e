"""Archives of packs, a folder or a zip: links, odd entries, odd compressions and odd sizes are refused."""

import os
import pickle
import stat
import zipfile

import pytest

from attn_tune.db import Database
from attn_tune.packs import archive, manifest
from attn_tune.packs.archive import MANIFEST, is_pack, list_files
from attn_tune.packs.reader import read_pack
from attn_tune.packs.writer import check_target
from attn_tune.schema.errors import IntegrityError, StorageError
from tests.runtime.packbuilder import pack_files, row, sig, write_folder, write_zip

SHARD = "shards/sm_90/toy.fwd.json"


@pytest.fixture
def files():
    return pack_files([row(sig(1024), 64), row(sig(2048), 128)])


def test_path_without_a_pack_is_an_error(tmp_path):
    with pytest.raises(StorageError, match="nowhere"):
        read_pack(tmp_path / "nowhere")
    with pytest.raises(IntegrityError, match="SHA256SUMS"):
        read_pack(tmp_path)
    # As any name outside ASCII where the locale is C.
    with pytest.raises(StorageError, match=r"no file can have this name here: .*LC_ALL=C\.UTF-8"):
        read_pack(tmp_path / "\ud800")


def test_pack_with_a_link_or_a_pipe_is_refused(tmp_path, files):
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
    os.mkfifo(tmp_path / "p.atpack")
    with pytest.raises(StorageError, match="is a FIFO"):
        read_pack(tmp_path / "p.atpack")


def test_pack_that_becomes_a_pipe_as_it_is_used_is_refused(tmp_path, files):
    path = write_zip(tmp_path / "p.atpack", files)
    listed = list_files(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StorageError, match="is a FIFO"):
        listed.load([SHARD])


def test_a_message_about_a_file_is_one_printable_line(tmp_path):
    with pytest.raises(StorageError) as raised:
        read_pack(tmp_path / "x\n[CRITICAL] \x1b[31mlost")
    assert str(raised.value).isprintable()


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
def test_zip_with_one_name_twice_is_refused(tmp_path, files):
    with pytest.raises(IntegrityError, match="twice"):
        read_pack(zip_with(tmp_path, files, [(SHARD, 0)]))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_with_an_unusual_compression_is_refused(tmp_path, files, method):
    path = tmp_path / "x.atpack"
    with zipfile.ZipFile(path, "w", method) as archive_:
        for name, data in files.items():
            archive_.writestr(name, data)
    with pytest.raises(IntegrityError, match="compression"):
        read_pack(path)


def test_pack_with_too_many_or_too_large_files_is_refused(tmp_path, files, monkeypatch):
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


def test_manifest_of_many_megabytes_is_refused_before_it_is_parsed(tmp_path, files, monkeypatch):
    head = {**files, "manifest.json": files["manifest.json"] + bytes(1) * archive.MAX_HEAD_BYTES}
    monkeypatch.setattr(manifest, "parse_json", None)
    for path in (write_folder(tmp_path / "p", head), write_zip(tmp_path / "p.atpack", head)):
        with pytest.raises(IntegrityError, match="is larger than 4194304 bytes"):
            read_pack(path)


@pytest.mark.parametrize("part", ["x" * 5000, "/".join(["y" * 200] * 15)], ids=["name", "folders"])
def test_very_long_path_is_cut_in_errors(tmp_path, part):
    path = tmp_path / part
    with pytest.raises(StorageError, match=r"cannot be read: (File name too long|No such)") as error:
        read_pack(path)
    assert len(str(error.value)) < 500
    with pytest.raises(StorageError) as error:
        Database.open(tmp_path / ("x" * 5000))
    assert len(str(error.value)) < 500


def test_pack_can_be_sent_to_another_process(tmp_path, files):
    pack = read_pack(write_folder(tmp_path / "p", files))
    sent = pickle.loads(pickle.dumps(pack))
    assert sent == pack
    assert (list(sent.rows), sent.gate) == (list(pack.rows), pack.gate)


def test_reading_a_pack_writes_nothing(tmp_path, files):
    folder = write_folder(tmp_path / "a", files)
    before = sorted(p.name for p in folder.rglob("*"))
    folder.chmod(0o555)
    read_pack(folder)
    folder.chmod(0o755)
    assert sorted(p.name for p in folder.rglob("*")) == before


def test_a_pack_is_a_folder_with_a_manifest_or_a_file_called_so(tmp_path):
    for name in ("plain", "called.atpack"):
        (tmp_path / name).mkdir()
        assert not is_pack(tmp_path / name)
        (tmp_path / name / MANIFEST).write_text("{}")
        assert is_pack(tmp_path / name)
    (tmp_path / "file.atpack").write_bytes(b"")
    (tmp_path / "file.zip").write_bytes(b"")
    assert (is_pack(tmp_path / "file.atpack"), is_pack(tmp_path / "file.zip")) == (True, False)


def test_a_file_that_is_only_called_a_pack_is_not_overwritten(tmp_path):
    path = tmp_path / "thesis.atpack"
    path.write_text("precious")
    with pytest.raises(StorageError, match="not overwritten"):
        check_target(path, overwrite=True)


def test_a_folder_that_holds_more_than_a_pack_is_not_overwritten(tmp_path):
    site = tmp_path / "web"
    (site / "src").mkdir(parents=True)
    (site / MANIFEST).write_text('{"name": "my web app"}')
    (site / "src/app.js").write_text("code")
    mine = write_folder(tmp_path / "mine", pack_files([row(sig(1024))]))
    check_target(mine, overwrite=True)
    (mine / "NOTES.md").write_text("precious")
    for path in (site, mine):
        with pytest.raises(StorageError, match="or holds other files too, so it is not overwritten"):
            check_target(path, overwrite=True)
    (mine / "NOTES.md").unlink()
    # A broken one has nothing to lose.
    (mine / "SHA256SUMS").write_text("")
    check_target(mine, overwrite=True)
