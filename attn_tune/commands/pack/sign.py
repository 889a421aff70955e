"""Sign a pack with an ed25519 key (extra 'sign').

The digests of the pack stay as they are. Jobs with ATTN_TUNE_TRUSTED_KEYS use only packs that one of these keys signed.

Example: attn-tune pack sign h200.atpack --key release.pem
"""

import os
from pathlib import Path

from attn_tune.commands.shared import options, output
from attn_tune.schema import StorageError, UsageError


def command(
    path: Path | None = options.argument("PACK", "The pack, which is signed in place.", None),
    key: Path | None = options.option(None, "--key", "FILE", "The private key, PEM (PKCS 8, ed25519)."),
    new_key: Path | None = options.option(
        None, "--new-key", "FILE", "Make a key first: FILE, and FILE.pub to be trusted."
    ),
    wheel: bool = options.flag(
        "--wheel", "Also write the signed pack as a wheel, in the same folder, over the one that is there."
    ),
    json: options.Json = False,
) -> None:
    if new_key:
        _make_key(new_key)
    private = key or new_key
    if private is None:
        raise UsageError("say which key: --key FILE, or --new-key FILE to make one")
    if path is None:
        if key or wheel:
            raise UsageError("say which pack to sign")
        if json:
            output.emit_json(key=private, public=f"{private}.pub")
        else:
            print(f"{private}: keep it secret; {private}.pub: give it to those who are to trust you")
        return
    from attn_tune.packs.archive import read_files
    from attn_tune.packs.reader import pack_from_files
    from attn_tune.packs.wheel import export_wheel, wheel_path
    from attn_tune.packs.writer import signed_files, write_pack

    try:
        pem = private.read_bytes()
    except OSError as error:
        raise StorageError(f"{private} cannot be read: {error.strerror}") from None
    # The pack itself, not a link to it.
    path = path.resolve()
    files = read_files(path)
    before = pack_from_files(files, str(path))
    if wheel:
        wheel_path(before.name, before.version, path.parent, overwrite=True)
    signed = write_pack(path, signed_files(files, before, pem))
    keys = [signer.key for signer in signed.signers]
    if wrong := [signer.key for signer in before.signers if signer.key not in keys]:
        output.note(f"left out, because they do not fit the pack: the signatures of {', '.join(wrong)}")
    # An older wheel of the pack is replaced as the pack is: it lacks the signature.
    built = export_wheel(path, path.parent, overwrite=True) if wheel else None
    if json:
        output.emit_json(path=path, digest=signed.digest, signers=keys, wheel=built)
        return
    print(f"{path}: signed by {', '.join(keys)}")
    if built:
        print(f"  wheel {built}")


def _make_key(path: Path) -> None:
    from attn_tune.packs.signing import KEY_SUFFIX, make_key

    pem, public = make_key()
    try:
        # Never readable by others, not for a moment; and never over a key that is there.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise StorageError(f"{path} exists and is not overwritten; choose another path for the new key") from None
    except OSError as error:
        raise StorageError(f"the key {path} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
        name = "".join(c for c in path.stem if c.isascii() and c.isprintable())
        path.with_name(path.name + KEY_SUFFIX).write_text(f"ed25519 {public} {name}".rstrip() + "\n")
    except OSError as error:
        # Half a key is none, and would be in the way of the next try.
        path.unlink(missing_ok=True)
        raise StorageError(f"the key {path} cannot be written: {error.strerror}") from None
