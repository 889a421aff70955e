"""Signatures of packs: a trusted key vouches for a pack, and no other key can."""

import dataclasses
import os
import sys

import pytest

from attn_tune import explain
from attn_tune.packs import signing
from attn_tune.packs.reader import pack_from_files, read_pack
from attn_tune.packs.writer import signed_files
from attn_tune.runtime.active import settings
from attn_tune.runtime.active.sources import SHIPPED, Source, SourceKind, locations
from attn_tune.schema.errors import IntegrityError, StorageError, UsageError
from tests.runtime.packbuilder import pack_files, resummed, row, sig, write_folder, write_zip


@pytest.fixture
def keys(tmp_path):
    """Two keys; the folder of trusted keys holds the first."""
    folder = tmp_path / "keys"
    folder.mkdir()
    mine, other = signing.make_key(), signing.make_key()
    (folder / "release.pub").write_text(f"ed25519 {mine[1]} the release team\n")
    return folder, mine[0], other[0]


@pytest.fixture
def files():
    return pack_files([row(sig(1024))])


def sign(files, pem):
    return signed_files(files, pack_from_files(files), pem)


@pytest.fixture
def required(monkeypatch, keys):
    monkeypatch.setenv(signing.TRUSTED, str(keys[0]))


@pytest.fixture
def trusted(monkeypatch, keys, tmp_path):
    """The keys are the user's own: their signatures are checked, and no signature is required."""
    monkeypatch.delenv(signing.TRUSTED, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "attn-tune").mkdir(parents=True)
    (tmp_path / "config" / "attn-tune" / "trusted-keys").symlink_to(keys[0])


def test_signature_changes_no_digest_of_a_pack(files, keys):
    signed = pack_from_files(sign(files, keys[1]))
    assert (signed.digest, signed.rows) == (
        pack_from_files(files).digest,
        pack_from_files(files).rows,
    )
    assert len(signed.signers) == 1
    assert sign(sign(files, keys[1]), keys[1]) == sign(files, keys[1]), "ed25519 is deterministic"
    assert len(pack_from_files(sign(sign(files, keys[1]), keys[2])).signers) == 2


def test_pack_without_a_trusted_signature_is_refused_where_one_is_required(tmp_path, files, keys, required):
    _, mine, other = keys
    good = write_folder(tmp_path / "good", sign(files, mine))
    assert len(read_pack(good).rows) == 1
    assert len(read_pack(write_zip(tmp_path / "z.atpack", sign(files, mine))).rows) == 1
    both = write_folder(tmp_path / "both", sign(sign(files, other), mine))
    assert len(read_pack(both).rows) == 1
    for name, bad in {
        "unsigned": files,
        "stranger": sign(files, other),
        "moved": {
            **pack_files([row(sig(2048))]),
            "SHA256SUMS.sig": sign(files, mine)["SHA256SUMS.sig"],
        },
    }.items():
        path = write_folder(tmp_path / name, bad)
        with pytest.raises(IntegrityError, match="sign"):
            read_pack(path)
        assert len(read_pack(path, signed=False).rows) == 1
        source = Source(SourceKind.USER, str(path))
        assert source.pack is None
        assert "sign" in source.error
    with pytest.raises(IntegrityError, match=r"is not signed by a trusted key \(1 key known\); sign it"):
        read_pack(tmp_path / "stranger")


def test_path_that_leads_out_of_the_shipped_packs_needs_a_signature(tmp_path, files, required):
    """By dots and by a link: what is named is judged, not the folder that the name begins with."""
    outside = write_folder(tmp_path / "outside", files)
    dots = SHIPPED / os.path.relpath(outside, SHIPPED)
    link = tmp_path / "link"
    link.symlink_to(SHIPPED)
    for path in (dots, link / os.path.relpath(outside, SHIPPED)):
        assert path.is_dir()
        environ = {"ATTN_TUNE_PACKS": str(path)}
        found = locations(environ)
        assert found.user == (str(path),)
        source = Source(SourceKind.USER, str(path))
        assert source.pack is None
        assert "not signed" in source.error


def test_shipped_packs_need_no_signature(required, monkeypatch):
    monkeypatch.setattr(settings, "_current", None)
    own = [source for source in settings.current_settings().sources if source.own]
    assert {source.path for source in own} == set(locations({}).own)
    assert own
    assert all(source.pack for source in own)


@pytest.fixture
def forged(files, keys):
    """Another pack with the signature that a trusted key gave to the first."""
    signature = sign(files, keys[1])["SHA256SUMS.sig"]
    return {**pack_files([row(sig(2048))]), "SHA256SUMS.sig": signature}


def test_forged_signature_of_a_trusted_key_is_refused_where_none_is_required(
    tmp_path, files, forged, keys, trusted, monkeypatch, caplog
):
    path = write_folder(tmp_path / "forged", forged)
    with pytest.raises(IntegrityError, match="signature of 'the release team' is wrong"):
        read_pack(path)
    for name, sound in {"good": sign(files, keys[1]), "stranger": sign(files, keys[2])}.items():
        assert len(read_pack(write_folder(tmp_path / name, sound)).rows) == 1
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(path))
    monkeypatch.setattr(settings, "_current", None)
    said = explain("attention", "attention/v1 b=1 t=8 s=8 n=1 k=1 h=8 v=8 dtype=float32")
    assert "signature of 'the release team' is wrong" in str(said)
    assert "signature of 'the release team' is wrong" in caplog.text


def test_signature_is_not_checked_without_cryptography_and_a_warning_says_so(
    tmp_path, forged, keys, trusted, monkeypatch, caplog
):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    assert len(read_pack(write_folder(tmp_path / "forged", forged)).rows) == 1
    assert "its signature is not checked" in caplog.text
    monkeypatch.setenv(signing.TRUSTED, str(keys[0]))
    with pytest.raises(UsageError, match="cryptography"):
        read_pack(tmp_path / "forged")


def test_edited_row_with_every_sum_put_right_is_no_longer_signed(tmp_path, files, keys, required):
    signed = sign(files, keys[1])
    edited = resummed({k: v for k, v in signed.items() if k != "SHA256SUMS.sig"})
    edited["manifest.json"] = edited["manifest.json"].replace(b"2026.1", b"2026.2")
    edited = {**resummed(edited), "SHA256SUMS.sig": signed["SHA256SUMS.sig"]}
    with pytest.raises(IntegrityError, match="signature of 'the release team' is wrong"):
        read_pack(write_folder(tmp_path / "edited", edited))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"ed25519 aa bb\n",
        b"ed25519 " + b"a" * 64 + b" " + b"b" * 128,
        b"rsa x y\n",
        b"\xff\n",
    ],
    ids=["empty", "blank", "short", "cut", "other", "binary"],
)
def test_broken_signature_file_is_refused_even_where_none_is_required(files, line):
    with pytest.raises(IntegrityError, match="signature"):
        pack_from_files({**files, "SHA256SUMS.sig": line})


def test_trusted_keys_come_from_files_and_folders_and_nothing_else(tmp_path, keys):
    folder = keys[0]
    one = {signing.TRUSTED: str(folder / "release.pub")}
    assert list(signing.trusted_keys(one).values()) == ["the release team"]
    assert signing.trusted_keys({"HOME": str(tmp_path)}) == {}
    config = tmp_path / "config/attn-tune/trusted-keys"
    config.mkdir(parents=True)
    (config / "a.pub").write_bytes((folder / "release.pub").read_bytes())
    assert len(signing.trusted_keys({"XDG_CONFIG_HOME": str(tmp_path / "config")})) == 1
    with pytest.raises(StorageError, match="nowhere"):
        signing.trusted_keys({signing.TRUSTED: str(tmp_path / "nowhere")})
    (folder / "crlf.pub").write_bytes((folder / "release.pub").read_bytes().replace(b"\n", b"\r\n"))
    assert signing.trusted_keys({signing.TRUSTED: str(folder / "crlf.pub")}) == signing.trusted_keys(one)
    with pytest.raises(StorageError, match="is a character device"):
        signing.trusted_keys({signing.TRUSTED: os.devnull})
    os.mkfifo(folder / "fifo.pub")
    with pytest.raises(StorageError, match="is a FIFO"):
        signing.trusted_keys({signing.TRUSTED: str(folder)})
    (folder / "fifo.pub").unlink()
    (folder / "large.pub").write_text("ed25519 " + 5000 * "0")
    with pytest.raises(IntegrityError, match="larger than"):
        signing.trusted_keys({signing.TRUSTED: str(folder)})
    (folder / "large.pub").unlink()
    (folder / "bad.pub").write_text("ssh-ed25519 AAAA me@host\n")
    with pytest.raises(IntegrityError, match="no public key"):
        signing.trusted_keys({signing.TRUSTED: str(folder)})


def test_file_that_is_no_private_key_cannot_sign(files):
    with pytest.raises(UsageError, match="private key"):
        sign(files, b"not a key")
    assert dataclasses.is_dataclass(signing.Signer)
