"""Which rows a restamped pack has; that equal programs are found equal is shown by the packs it made."""

from pathlib import Path

import pytest
import restamp_pack

import attn_tune
from attn_tune.packs.reader import read_pack
from attn_tune.schema.errors import StorageError

PACK = Path(attn_tune.__file__).parent / "packs" / "shipped" / "nvidia-h200"
HERE = Path(attn_tune.__file__).parent.parent


def _run(monkeypatch, out, *options, pack=PACK):
    arguments = ["restamp_pack.py", pack, "--before", HERE, "--out", out, *options]
    monkeypatch.setattr("sys.argv", list(map(str, arguments)))
    return restamp_pack.main()


def _stale(monkeypatch, *kernels):
    monkeypatch.setattr(restamp_pack, "_is_stale", lambda row, pack: row.kernel in kernels)


def test_rows_of_todays_source_are_copied(tmp_path, monkeypatch, capsys):
    _stale(monkeypatch)
    assert _run(monkeypatch, tmp_path / "new") == 0
    assert {row.key for row in read_pack(tmp_path / "new").rows} == {
        row.key for row in read_pack(PACK).rows
    }
    assert "0 restamped, 0 left out" in capsys.readouterr().out


def test_stale_rows_of_kernels_not_asked_for_are_left_out_and_named(tmp_path, monkeypatch, capsys):
    _stale(monkeypatch, "cudnn")
    assert _run(monkeypatch, tmp_path / "new", "--kernel", "xla", "--version", "77") == 0
    new, old = read_pack(tmp_path / "new"), read_pack(PACK)
    assert new.version == "77"
    assert {row.kernel for row in new.rows} == {row.kernel for row in old.rows} - {"cudnn"}
    gone = sum(row.kernel == "cudnn" for row in old.rows)
    out = capsys.readouterr().out
    assert out.count("LEFT OUT: not asked for") == gone > 0
    assert f"{len(new.rows)} rows kept, 0 restamped, {gone} left out" in out


def test_rows_to_keep_are_copied_stale_or_not(tmp_path, monkeypatch):
    _stale(monkeypatch, "cudnn", "triton")
    options = ("--kernel", "xla", "--keep", "cudnn")
    assert _run(monkeypatch, tmp_path / "new", *options) == 0
    kept = {row.kernel for row in read_pack(tmp_path / "new").rows}
    assert "cudnn" in kept
    assert "triton" not in kept


def test_what_is_no_pack_is_not_overwritten(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(StorageError, match="not overwritten"):
        _run(monkeypatch, tmp_path / "mine", "--overwrite")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
