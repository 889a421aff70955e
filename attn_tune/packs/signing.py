"""Signatures of packs: ed25519, over the sums, in ``SHA256SUMS.sig``, a line a key.

A line is ``ed25519 PUBLIC-KEY SIGNATURE`` in hexadecimal. A key file is one line, ``ed25519 PUBLIC-KEY NAME``. The
arithmetic is that of the package ``cryptography`` (extra ``sign``), which only signers and verifiers need.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_tune.packs.archive import brief
from attn_tune.packs.plain_files import read_limited
from attn_tune.schema.directories import config_directory
from attn_tune.schema.errors import IntegrityError, StorageError, UsageError
from attn_tune.schema.logs import log
from attn_tune.schema.words import counted

TRUSTED = "ATTN_TUNE_TRUSTED_KEYS"
KEY_SUFFIX = ".pub"
# What is signed begins with this, so that no signature of something else can ever stand for one of a pack.
PURPOSE = b"attn-tune pack v1\n"

_LINE = re.compile(r"ed25519 ([0-9a-f]{64}) ([0-9a-f]{128})")
_KEY = re.compile(r"ed25519 ([0-9a-f]{64})(?: ([ -~]{1,200}))?\n?")
_MAX_SIGNERS = 64
_MAX_KEY_BYTES = 4096


@dataclass(frozen=True, order=True, slots=True)
class Signer:
    """One line of ``SHA256SUMS.sig``.

    Attributes:
      key: the public key, in hexadecimal.
      signature: its signature, in hexadecimal.
    """

    key: str
    signature: str

    @property
    def line(self) -> str:
        """The line as it is stored."""
        return f"ed25519 {self.key} {self.signature}\n"


def read_signers(data: bytes) -> tuple[Signer, ...]:
    """Parses ``SHA256SUMS.sig``. Proves nothing.

    Raises:
      IntegrityError: it is not such a file.
    """
    lines = data.decode("ascii", "replace").split("\n")
    if lines.pop() != "" or not 0 < len(lines) <= _MAX_SIGNERS:
        raise IntegrityError("its signatures are cut short, or none, or too many")
    found: dict[str, Signer] = {}
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None or match[1] in found:
            raise IntegrityError(f"its signatures have the bad line {line[:100]!r}")
        found[match[1]] = Signer(match[1], match[2])
    return tuple(found.values())


def must_be_signed(environ: Mapping[str, str]) -> bool:
    """Whether lookups may use signed packs only: they may where ``ATTN_TUNE_TRUSTED_KEYS`` names keys."""
    return bool(environ.get(TRUSTED))


def check_signatures(
    sums: bytes,
    signers: Iterable[Signer],
    environ: Mapping[str, str],
    where: str,
    *,
    is_required: bool,
) -> str:
    """The name of a trusted key that signed ``sums``, ``""`` if none did. Keys that are not trusted do not count.

    Without the package ``cryptography`` a signature that is not required is not checked, and a warning says so.

    Raises:
      IntegrityError: a trusted key's signature is wrong, or none is there and one is required; or a file of trusted
        keys is none.
      StorageError: the trusted keys cannot be read.
      UsageError: a signature is required, and ``cryptography`` is not installed.
    """
    signers = tuple(signers)
    trusted = trusted_keys(environ) if signers or is_required else {}
    known = [signer for signer in signers if signer.key in trusted]
    if is_required and not known:
        raise IntegrityError(
            f"{where} is not signed by a trusted key ({counted(len(trusted), 'key')} known); sign it with "
            f"'attn-tune pack sign', or trust its key with {TRUSTED}"
        )
    try:
        for signer in known:
            if not _is_right(sums, signer):
                raise IntegrityError(f"{where}: the signature of {trusted[signer.key]!r} is wrong")
    except UsageError as error:
        if is_required:
            raise
        log.warning("%s: its signature is not checked: %s", where, error)
    return trusted[known[0].key] if known else ""


def signatures_fit(sums: bytes, signers: Iterable[Signer]) -> dict[str, bool | None]:
    """Whether each signature is one of ``sums``, by key, trusted or not; None without the package ``cryptography``.

    It says nothing of whose key it is: anybody can sign with a key of their own.
    """
    signers = tuple(signers)
    try:
        return {signer.key: _is_right(sums, signer) for signer in signers}
    except UsageError:
        return dict.fromkeys((signer.key for signer in signers), None)


def trusted_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """Names of the trusted public keys. ``ATTN_TUNE_TRUSTED_KEYS`` lists key files and folders of them, and is
    then required of every pack; without it they are in ``attn-tune/trusted-keys`` under ``XDG_CONFIG_HOME``.

    Raises:
      IntegrityError: a file is no key; StorageError: a place that was named cannot be read.
    """
    named = [Path(p) for p in environ.get(TRUSTED, "").split(os.pathsep) if p]
    home = config_directory(environ)
    default = [Path(home) / "trusted-keys"] if home else []
    found: dict[str, str] = {}
    for place in named or filter(Path.is_dir, default):
        try:
            files = sorted(place.glob(f"*{KEY_SUFFIX}")) if place.is_dir() else [place]
            for file in files:
                text = read_limited(file, f"trusted key {brief(file)}", _MAX_KEY_BYTES).decode("ascii", "replace")
                match = _KEY.fullmatch(text.replace("\r\n", "\n"))
                if match is None:
                    raise IntegrityError(f"{brief(file)} is no public key; it must be the one line 'ed25519 KEY NAME'")
                found.setdefault(match[1], match[2] or file.stem)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"trusted keys {brief(place)} cannot be read: {error.strerror}") from None
    return found


def sign(sums: bytes, private_pem: bytes) -> Signer:
    """Signs ``sums`` with a private key in PEM (PKCS 8, no password).

    Raises:
      UsageError: it is no ed25519 key, or ``cryptography`` is not installed.
    """
    module = _ed25519()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key: Any = load_pem_private_key(private_pem, password=None)
    except (ValueError, TypeError) as error:
        said = "" if private_pem.startswith(b"-----BEGIN") else ": it is no PEM file, which begins with -----BEGIN"
        raise UsageError(
            f"the private key cannot be read{said or f': {error}'}; 'attn-tune pack sign --new-key FILE' makes one, "
            "and the public one beside it"
        ) from None
    if not isinstance(key, module.Ed25519PrivateKey):
        raise UsageError("the private key is not an ed25519 key; make one with 'attn-tune pack sign --new-key'")
    public = key.public_key().public_bytes_raw()
    return Signer(public.hex(), key.sign(PURPOSE + sums).hex())


def make_key() -> tuple[bytes, str]:
    """A new key: the private half in PEM, the public half in hexadecimal.

    Raises:
      UsageError: ``cryptography`` is not installed.
    """
    module = _ed25519()
    from cryptography.hazmat.primitives import serialization as s

    key = module.Ed25519PrivateKey.generate()
    pem = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    return pem, key.public_key().public_bytes_raw().hex()


def _is_right(sums: bytes, signer: Signer) -> bool:
    module = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        key = module.Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer.key))
        key.verify(bytes.fromhex(signer.signature), PURPOSE + sums)
    except (InvalidSignature, ValueError):
        return False
    return True


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise UsageError("signatures need the package 'cryptography'; pip install 'attn-tune[sign]'") from None
    return ed25519
