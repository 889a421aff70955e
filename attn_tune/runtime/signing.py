"""Who vouches for a pack: ed25519 signatures over its sums, in ``SHA256SUMS.sig``, a line a key.

A line is ``ed25519 PUBLIC-KEY SIGNATURE`` in hexadecimal. A key file is one line, ``ed25519 PUBLIC-KEY NAME``. The
arithmetic is that of the package ``cryptography``, which only those need who sign or ask for signatures.
"""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_tune.runtime.directories import config_directory
from attn_tune.schema.errors import IntegrityError, StorageError, UsageError

TRUSTED = "ATTN_TUNE_TRUSTED_KEYS"
KEY_SUFFIX = ".pub"
# What is signed says what it is, so that no signature of something else can ever stand for one of a pack.
PURPOSE = b"attn-tune pack v1\n"

_LINE = re.compile(r"ed25519 ([0-9a-f]{64}) ([0-9a-f]{128})")
_KEY = re.compile(r"ed25519 ([0-9a-f]{64})(?: ([ -~]{1,200}))?")
_MAX_SIGNERS = 64
_log = logging.getLogger("attn_tune")


@dataclass(frozen=True, order=True, slots=True)
class Signer:
    """One line of ``SHA256SUMS.sig``: a public key, and its signature, in hexadecimal."""

    key: str
    signature: str

    @property
    def line(self) -> str:
        """As it is stored."""
        return f"ed25519 {self.key} {self.signature}\n"


def read_signers(data: bytes, where: str) -> tuple[Signer, ...]:
    """Parses ``SHA256SUMS.sig``. Proves nothing.

    Raises:
      IntegrityError: it is not such a file.
    """
    lines = data.decode("ascii", "replace").split("\n")
    if lines.pop() != "" or not 0 < len(lines) <= _MAX_SIGNERS:
        raise IntegrityError(f"{where}: its signatures are cut short, or none, or too many")
    found = []
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            raise IntegrityError(f"{where}: its signatures have the bad line {line[:100]!r}")
        found.append(Signer(match[1], match[2]))
    if len({signer.key for signer in found}) != len(found):
        raise IntegrityError(f"{where}: one key signed it twice")
    return tuple(found)


def must_be_signed(environ: Mapping[str, str]) -> bool:
    """Whether lookups may use signed packs only: they may where ``ATTN_TUNE_TRUSTED_KEYS`` names keys."""
    return bool(environ.get(TRUSTED))


def check_trusted(
    sums: bytes, signers: Iterable[Signer], environ: Mapping[str, str], where: str
) -> str:
    """The name of a trusted key that signed ``sums``.

    Raises:
      IntegrityError: none did, a trusted key's signature is wrong, or ``cryptography`` is not installed.
    """
    trusted = trusted_keys(environ)
    known = [signer for signer in signers if signer.key in trusted]
    if not known:
        raise IntegrityError(
            f"{where} is not signed by any of the {len(trusted)} trusted keys; sign it with 'attn-tune pack sign', "
            f"or trust its key with {TRUSTED}"
        )
    _refuse_forged(sums, known, trusted, where)
    return trusted[known[0].key]


def check_not_forged(
    sums: bytes, signers: Iterable[Signer], environ: Mapping[str, str], where: str
) -> None:
    """Refuses a wrong signature under a trusted key, where signatures are not required. Other keys say nothing.

    Without the package ``cryptography`` nothing can be checked; a warning says so.

    Raises:
      IntegrityError: there is one, or a file of trusted keys is none.
      StorageError: the trusted keys cannot be read.
    """
    signers = tuple(signers)
    trusted = trusted_keys(environ) if signers else {}
    known = [signer for signer in signers if signer.key in trusted]
    try:
        _refuse_forged(sums, known, trusted, where)
    except UsageError as error:
        _log.warning("%s: its signature is not checked: %s", where, error)


def _refuse_forged(
    sums: bytes, signers: Iterable[Signer], trusted: Mapping[str, str], where: str
) -> None:
    for signer in signers:
        if not verify(sums, signer):
            raise IntegrityError(f"{where}: the signature of {trusted[signer.key]!r} is wrong")


def trusted_keys(environ: Mapping[str, str]) -> dict[str, str]:
    """Names of the trusted public keys. ``ATTN_TUNE_TRUSTED_KEYS`` lists key files and folders of them, and is
    then required of every pack; without it they are in ``attn-tune/trusted-keys`` under ``XDG_CONFIG_HOME``.

    Raises:
      IntegrityError: a file is no key; StorageError: a place that was named cannot be read.
    """
    named = [Path(p) for p in environ.get(TRUSTED, "").split(os.pathsep) if p]
    places = named or _default_places(environ)
    found: dict[str, str] = {}
    for place in places:
        try:
            inside = place.is_dir()
            files = sorted(place.glob(f"*{KEY_SUFFIX}")) if inside else [place]
            if not named and not inside:
                continue
            for file in files:
                key, name = parse_key(file.read_text("ascii", "replace"), str(file))
                found.setdefault(key, name or file.stem)
        except OSError as error:
            raise StorageError(f"trusted keys {place} cannot be read: {error.strerror}") from None
    return found


def parse_key(text: str, where: str) -> tuple[str, str]:
    """(public key, name) of a key file.

    Raises:
      IntegrityError: it is no key file.
    """
    match = _KEY.fullmatch(text.removesuffix("\n"))
    if match is None:
        raise IntegrityError(
            f"{where} is no public key; it must be the one line 'ed25519 KEY NAME'"
        )
    return match[1], match[2] or ""


def verify(sums: bytes, signer: Signer) -> bool:
    """Whether ``signer`` signed ``sums``.

    Raises:
      UsageError: ``cryptography`` is not installed.
    """
    module = _ed25519()
    from cryptography.exceptions import InvalidSignature

    try:
        key = module.Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer.key))
        key.verify(bytes.fromhex(signer.signature), PURPOSE + sums)
    except (InvalidSignature, ValueError):
        return False
    return True


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
        raise UsageError(f"the private key cannot be read: {error}") from None
    if not isinstance(key, module.Ed25519PrivateKey):
        raise UsageError(
            "the private key is not an ed25519 key; make one with 'attn-tune pack sign --new-key'"
        )
    public = key.public_key().public_bytes_raw()
    return Signer(public.hex(), key.sign(PURPOSE + sums).hex())


def make_key() -> tuple[bytes, str]:
    """A new key: the private half in PEM, the public half in hexadecimal."""
    module = _ed25519()
    from cryptography.hazmat.primitives import serialization as s

    key = module.Ed25519PrivateKey.generate()
    pem = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    return pem, key.public_key().public_bytes_raw().hex()


def _default_places(environ: Mapping[str, str]) -> list[Path]:
    folder = config_directory(environ)
    return [Path(folder) / "trusted-keys"] if folder else []


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise UsageError(
            "signatures need the package 'cryptography'; pip install 'attn-tune[sign]'"
        ) from None
    return ed25519
