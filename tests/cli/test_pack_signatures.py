"""The commands about signatures, quarantine lists and failures of packs: their streams, exit codes and files."""

import json
import sys
import zipfile

import pytest

from attn_tune.packs.signing import make_key
from tests.cli.test_pack_tools import home, run
from tests.runtime.packbuilder import pack_files, row, sig, with_list, write_folder, write_zip

__all__ = ["home"]


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "k.pem"
    path.write_bytes(make_key()[0])
    return path


@pytest.fixture
def signed(tmp_path, key):
    path = write_zip(tmp_path / "signed.atpack", pack_files([row(sig(1024))]))
    assert run("pack", "sign", path, "--key", key).exit_code == 0
    return path


@pytest.fixture
def forged(tmp_path, signed):
    """Another pack with the signature of the first, by a key that is not trusted."""
    with zipfile.ZipFile(signed) as archive:
        signature = archive.read("SHA256SUMS.sig")
    return write_zip(tmp_path / "forged.atpack", {**pack_files([row(sig(2048))]), "SHA256SUMS.sig": signature})


def test_a_signature_of_an_untrusted_key_that_does_not_fit_is_a_failure_of_verify(signed, forged):
    sound = run("pack", "verify", signed)
    assert (sound.exit_code, "signed by a key that is not trusted" in sound.stdout) == (0, True)
    bad = run("pack", "verify", forged)
    assert (bad.exit_code, "which is not trusted, is wrong" in bad.stderr) == (5, True)
    assert "signed by" not in bad.stdout
    assert "  signed by " in run("pack", "inspect", signed).stdout
    shown = run("pack", "inspect", forged).stdout
    assert "a WRONG signature of " in shown
    assert "signed by" not in shown
    assert list(json.loads(run("pack", "inspect", forged, "--json").stdout)["signatures"].values()) == [False]


def test_signing_leaves_out_a_signature_that_does_not_fit(tmp_path, forged, signed):
    [stranger] = json.loads(run("pack", "inspect", forged, "--json").stdout)["signers"]
    for path, count in ((forged, 1), (signed, 2)):
        done = run("pack", "sign", path, "--new-key", tmp_path / f"{path.stem}.pem", "--json")
        assert done.exit_code == 0, done.stderr
        signers = json.loads(done.stdout)["signers"]
        assert (len(signers), stranger in signers) == (count, count == 2)
        assert (stranger in done.stderr) == (count == 1)
        assert run("pack", "verify", path).exit_code == 0


def test_without_cryptography_an_untrusted_signature_is_said_not_to_be_checked(forged, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    done = run("pack", "verify", forged)
    assert (done.exit_code, "a signature that is not checked" in done.stdout) == (0, True)
    assert json.loads(run("pack", "verify", forged, "--json").stdout)["packs"][0]["signature"] == "unchecked"
    assert "not checked" in run("pack", "inspect", forged).stdout


def test_a_failed_verify_has_its_error_on_stderr_and_at_the_top_of_the_json(tmp_path, signed, forged, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    absent = tmp_path / "absent.atpack"
    done = run("pack", "verify", absent, signed, forged)
    assert done.exit_code == 5
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [str(p) for p in (absent, signed, forged)]
    assert done.stderr.startswith("error: 2 of 3 packs did not pass, such as: pack ")
    data = json.loads(run("pack", "verify", absent, "--json").stdout)
    [one] = data["packs"]
    assert (data["type"], data["exit_code"], data["error"]) == ("StorageError", 4, one["error"])
    assert "error" not in json.loads(run("pack", "verify", signed, "--json").stdout)


def test_sign_writes_a_wheel_that_holds_the_signature_over_the_one_of_export(tmp_path, key):
    path = write_zip(tmp_path / "mine.atpack", pack_files([row(sig(1024))]))
    assert run("pack", "merge", tmp_path / "all.atpack", path, path, "--wheel").exit_code == 0
    wheel = tmp_path / "attn_tune_pack_all-1-py3-none-any.whl"
    unsigned = wheel.read_bytes()
    done = run("pack", "sign", tmp_path / "all.atpack", "--key", key, "--wheel")
    assert (done.exit_code, str(wheel) in done.stdout, wheel.read_bytes() != unsigned) == (0, True, True)
    with zipfile.ZipFile(tmp_path / "all.atpack") as pack, zipfile.ZipFile(wheel) as built:
        built.extractall(tmp_path / "site")
        assert built.read("attn_tune_pack_all/SHA256SUMS.sig") == pack.read("SHA256SUMS.sig")
    public = make_public(tmp_path, key)
    again = run("pack", "verify", tmp_path / "site" / "attn_tune_pack_all", "--signed", "--trusted-keys", public)
    assert again.exit_code == 0, again.stderr
    assert run("pack", "sign", "--new-key", tmp_path / "x.pem", "--wheel").exit_code == 2


def test_a_wheel_that_cannot_be_written_leaves_the_pack_as_it_was(tmp_path, key):
    for name in ("a-b", "a.b"):
        write_zip(tmp_path / f"{name}.atpack", pack_files([row(sig(1024))], name=name))
    assert run("pack", "sign", tmp_path / "a-b.atpack", "--key", key, "--wheel").exit_code == 0
    before = (tmp_path / "a.b.atpack").read_bytes()
    other = run("pack", "sign", tmp_path / "a.b.atpack", "--key", key, "--wheel")
    assert (other.exit_code, "is no wheel of the pack a.b" in other.stderr) == (4, True)
    assert (tmp_path / "a.b.atpack").read_bytes() == before
    packs = (tmp_path / "a-b.atpack", tmp_path / "a.b.atpack")
    merged = run("pack", "merge", tmp_path / "m.atpack", *packs, "--version", "1-rc", "--wheel")
    assert (merged.exit_code, (tmp_path / "m.atpack").exists()) == (2, False)


def test_sign_follows_a_link_to_the_pack(tmp_path, key):
    pack = write_zip(tmp_path / "mine.atpack", pack_files([row(sig(1024))]))
    link = tmp_path / "current.atpack"
    link.symlink_to(pack)
    assert run("pack", "sign", link, "--key", key).exit_code == 0
    assert link.is_symlink()
    assert "signed by" in run("pack", "verify", pack).stdout


def make_public(tmp_path, key):
    """The public half of ``key`` as a key file, from a pack that it signed."""
    path = write_folder(tmp_path / "public", pack_files([row(sig(1024))]))
    [public] = json.loads(run("pack", "sign", path, "--key", key, "--json").stdout)["signers"]
    file = tmp_path / "public.pub"
    file.write_text(f"ed25519 {public} me\n")
    return file


def test_an_import_over_a_pack_names_the_never_entries_that_the_new_one_lacks(tmp_path):
    kept, lost = ({"kernel": name, "reason": "wrong"} for name in ("kept", "lost"))
    packs = {
        "old": with_list(pack_files([row(sig(64))]), [kept, lost]),
        "new": with_list(pack_files([row(sig(128))]), [{**kept, "reason": "another"}]),
    }
    for place, files in packs.items():
        (tmp_path / place).mkdir()
        write_zip(tmp_path / place / "mine.atpack", files)
    assert run("pack", "import", tmp_path / "old" / "mine.atpack").stderr == ""
    replaced = run("pack", "import", tmp_path / "new" / "mine.atpack", "--replace")
    assert replaced.stderr.startswith("lost with the pack that was replaced: 1 never entry, ")
    assert replaced.stderr.endswith(": kernel lost\n")
    assert run("pack", "import", tmp_path / "old" / "mine.atpack", "--replace").stderr == ""
