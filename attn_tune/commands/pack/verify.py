"""Check packs: sums, schema, digests and signatures.

Without --signed a signature is only reported: exit status 0 says that the pack is sound.

Example: attn-tune pack verify h200.atpack --signed --trusted-keys keys
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.exit_codes import INTEGRITY
from attn_tune.commands.shared.packs import pack_path
from attn_tune.schema import AttnTuneError
from attn_tune.schema.words import counted


def command(
    paths: list[Path] = options.argument(
        "PACK", "Folders, .atpack files, or names as doctor prints them.", parser=pack_path
    ),
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
    results = [_verify(path, signed=signed, environ=environ) for path in paths]
    if json:
        output.emit_json(packs=results)
    else:
        for one in results:
            output.say(f"{one['path']}: {one['error'] or _sound(one)}")
    codes = [one["exit_code"] for one in results]
    if any(codes):
        raise typer.Exit(max(codes))


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
}


def _verify(path: Path, *, signed: bool, environ: Mapping[str, str]) -> dict[str, Any]:
    from attn_tune.packs.reader import read_pack
    from attn_tune.packs.signing import check_signatures, trusted_keys

    try:
        pack = read_pack(path, signed=False)
        if not pack.signers and not signed:
            signature, signer = "none", None
        elif signed or any(s.key in trusted_keys(environ) for s in pack.signers):
            signature = "trusted"
            signer = check_signatures(pack.sums, pack.signers, environ, f"pack {path}", is_required=True)
        else:
            signature, signer = "untrusted", pack.signers[0].key
    except AttnTuneError as error:
        return {"path": str(path), "error": str(error), "exit_code": error.exit_code or INTEGRITY}
    return {
        "path": str(path),
        "error": "",
        "exit_code": 0,
        "name": pack.name,
        "version": pack.version,
        "digest": pack.digest,
        "rows": len(pack.rows),
        "signature": signature,
        "signer": signer,
        "quarantined": len(pack.quarantine.entries),
    }
