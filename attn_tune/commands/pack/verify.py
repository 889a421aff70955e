"""Check packs: sums, schema, digests and signatures.

Without --signed no signature is required, and that of a key that is not trusted is only reported if it fits the pack.

Example: attn-tune pack verify h200.atpack --signed --trusted-keys keys
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.packs import pack_path
from attn_tune.schema import AttnTuneError, IntegrityError
from attn_tune.schema.words import counted


def command(
    paths: list[str] = options.argument("PACK", "Folders, .atpack files, or names as doctor prints them."),
    signed: bool = options.flag("--signed", "Also require the signature of a trusted key."),
    trusted_keys: Path | None = options.option(
        None,
        "--trusted-keys",
        "PATH",
        "A key file or a folder of them. Default: ATTN_TUNE_TRUSTED_KEYS, else the user's.",
    ),
    json: options.Json = False,
) -> None:
    from attn_tune.packs.signing import TRUSTED

    environ = {**os.environ, TRUSTED: str(trusted_keys)} if trusted_keys else os.environ
    results: list[dict[str, Any]] = []
    errors: list[AttnTuneError] = []
    for text in paths:
        path: str | Path = text
        try:
            path = pack_path(text)
            results.append({"path": str(path), "error": "", "exit_code": 0, **_verify(path, signed, environ)})
        except AttnTuneError as error:
            results.append({"path": str(path), "error": str(error), "exit_code": error.exit_code})
            errors.append(error)
    failure = _failure(errors, len(paths))
    if json:
        failed = (
            {"error": str(failure), "type": type(failure).__name__, "exit_code": failure.exit_code} if failure else {}
        )
        output.emit_json(packs=results, **failed)
    else:
        for one in results:
            output.say_line(f"{one['path']}: {one['error'] or _sound(one)}")
    if failure:
        raise failure


def _failure(errors: list[AttnTuneError], count: int) -> AttnTuneError | None:
    """The error of the command, with the highest exit code of ``errors``; None without any."""
    if len(errors) < 2:
        return errors[0] if errors else None
    worst = max(errors, key=lambda error: error.exit_code)
    return type(worst)(f"{len(errors)} of {counted(count, 'pack')} did not pass, such as: {worst}")


def _sound(one: Mapping[str, Any]) -> str:
    listed = f", carries a quarantine list of {one['quarantined']}" if one["quarantined"] else ""
    return (
        f"{one['name']} {one['version']}, {counted(one['rows'], 'row')}, {one['digest']}: sound; "
        f"{_SIGNED[one['signature']].format(one['signer'])}{listed}"
    )


_SIGNED = {
    "none": "not signed",
    "trusted": "signed by {}",
    "untrusted": "signed by a key that is not trusted, {}",
    "unchecked": "with a signature that is not checked, which takes the package 'cryptography', of a key that is not "
    "trusted, {}",
}


def _verify(path: Path, signed: bool, environ: Mapping[str, str]) -> dict[str, Any]:
    """The facts about a sound pack. A signature that does not fit is an error, no matter whose it is."""
    from attn_tune.packs.reader import read_pack
    from attn_tune.packs.signing import check_signatures, signatures_fit, trusted_keys

    pack = read_pack(path, signed=False)
    signature, signer = "none", None
    if signed or any(s.key in trusted_keys(environ) for s in pack.signers):
        signature = "trusted"
        signer = check_signatures(pack.sums, pack.signers, environ, pack.where, is_required=True)
    fits = signatures_fit(pack.sums, pack.signers)
    if wrong := [key for key, fit in fits.items() if fit is False]:
        raise IntegrityError(f"{pack.where}: the signature of the key {wrong[0]}, which is not trusted, is wrong")
    if fits and signature == "none":
        signer = next(iter(fits))
        signature = "untrusted" if fits[signer] else "unchecked"
    return {
        "name": pack.name,
        "version": pack.version,
        "digest": pack.digest,
        "rows": len(pack.rows),
        "signature": signature,
        "signer": signer,
        "quarantined": len(pack.quarantine.entries),
    }
