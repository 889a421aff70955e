"""``attn-tune inspect``, ``verify``, ``diff``, ``sign`` and ``coverage``: what can be done with a pack in hand."""

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.exit_codes import FAILED, INTEGRITY
from attn_tune.schema import AttnTuneError, StorageError, UsageError
from attn_tune.schema.decision import state_words
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.runtime.packs import Pack
    from attn_tune.runtime.rows import Row

PackPath = Annotated[Path, typer.Argument(help="A pack: a folder or an .atpack file.")]
TrustedKeys = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="A key file or a folder of them. Default: ATTN_TUNE_TRUSTED_KEYS, else the user's.",
    ),
]


def inspect(
    path: PackPath,
    rows: Annotated[bool, typer.Option("--rows", help="Also list every row.")] = False,
    json: options.Json = False,
) -> None:
    """Show what a pack holds: devices, kernels, environments, gate, signatures.

    Also the quarantine list that it carries.

    Example: attn-tune inspect h200.atpack --rows
    """
    pack = _read(path)
    data = _describe(pack)
    if rows:
        data["rows"] = [dataclasses.asdict(row) | {"config": dict(row.config)} for row in pack.rows]
    if json:
        output.emit_json(data)
        return
    print(f"{pack.name} {pack.version}: {counted(len(pack.rows), 'row')}, by {pack.tool}")
    if pack.note:
        print(f"  note {pack.note}")
    for name in ("digest", "decision_digest"):
        print(f"  {name.replace('_', ' ')} {data[name]}")
    for device in data["devices"]:
        print(f"  device {device['name']} ({device['digest']}): {counted(device['rows'], 'row')}")
    for kernel in data["kernels"]:
        states = ", ".join(f"{n} {state_words(state)}" for state, n in kernel["states"].items())
        proof = _proof_text(kernel)
        print(
            f"  {kernel['kernel']} {kernel['direction']}, contract {kernel['contract']}: {states}{proof}"
        )
    for env in data["environments"]:
        known = " ".join(f"{k}={v}" for k, v in env.items() if v and k != "rows")
        print(f"  environment {known}: {counted(env['rows'], 'row')}")
    print(f"  gate {_gate_text(pack.gate)}")
    for entry in pack.quarantine.entries:
        print(f"  quarantine {entry.condition}: {entry.reason}")
    for key in data["signers"]:
        print(f"  signed by {key}")
    if rows:
        from attn_tune.reports.pack_frames import pack_rows

        output.emit_frame(pack_rows(pack, selection.point_names()))


def _describe(pack: "Pack") -> dict[str, Any]:
    by_device = Counter(row.device for row in pack.rows)
    by_env = Counter(row.env for row in pack.rows)
    by_kernel: dict[tuple[str, str], list[Row]] = {}
    for row in pack.rows:
        by_kernel.setdefault((f"{row.op}/{row.kernel}", row.direction), []).append(row)
    return {
        "name": pack.name,
        "version": pack.version,
        "tool": pack.tool,
        "note": pack.note,
        "digest": pack.digest,
        "decision_digest": pack.decision_digest,
        "devices": [
            {"name": str(d), "digest": digest, "rows": by_device[digest], **d.identity}
            for digest, d in pack.devices.items()
        ],
        "environments": [
            {"rows": by_env[digest], **dataclasses.asdict(e)}
            for digest, e in pack.environments.items()
        ],
        "kernels": [
            {
                "kernel": k,
                "direction": d,
                "contract": pack.contracts[k],
                "states": dict(sorted(Counter(row.state for row in rows).items())),
                "not_repeatable": sum(row.repeatable is False for row in rows),
                "unproven": sum(row.features == 0 for row in rows),
                "features": min(known, default=None),
                "features_known": len(known),
            }
            for (k, d), rows in sorted(by_kernel.items())
            for known in [[row.features for row in rows if row.features is not None]]
        ],
        "gate": dict(pack.gate),
        "quarantine": [loads(entry.line) for entry in pack.quarantine.entries],
        "signers": [signer.key for signer in pack.signers],
    }


def _proof_text(kernel: Mapping[str, Any]) -> str:
    differ, unproven = kernel["not_repeatable"], kernel["unproven"]
    text = f"; {differ} whose bits differ from run to run" if differ else ""
    if unproven:
        return f"{text}; {unproven} unproven: their configs ran no feature problem"
    if not kernel["features_known"]:
        return text
    rows = counted(kernel["features_known"], "row")
    return f"{text}; {rows} with at least {kernel['features']} feature problems passed"


def _gate_text(gate: Mapping[str, Any]) -> str:
    if not gate:
        return "unknown: written without one"
    if gate.get("passed") is True:
        accepted = ", ".join(
            f"{count} {doubt}" for doubt, count in gate.get("accepted", {}).items()
        )
        return f"passed; let through on purpose: {accepted}" if accepted else "passed"
    return f"NOT passed: {gate.get('reason', 'a pack it was merged from did not')}"


def verify(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PACK...", help="Folders or .atpack files.")
    ],
    signed: Annotated[
        bool, typer.Option("--signed", help="Also require the signature of a trusted key.")
    ] = False,
    trusted_keys: TrustedKeys = None,
    json: options.Json = False,
) -> None:
    """Check packs: sums, schema, digests and signatures.

    Without --signed a signature is only reported: exit status 0 says that the pack is sound.

    Example: attn-tune verify h200.atpack --signed --trusted-keys keys
    """
    results = [_verify(path, signed=signed, environ=_environ(trusted_keys)) for path in paths]
    if json:
        output.emit_json({"packs": results})
    else:
        for one in results:
            print(f"{one['path']}: {one['error'] or _sound(one)}")
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
    from attn_tune.runtime.archive import SUMS, read_files
    from attn_tune.runtime.signing import check_trusted, trusted_keys

    try:
        # One reading: what is verified is what was signed.
        files = read_files(path)
        pack = _from_files(files, path)
        if not pack.signers and not signed:
            signature, signer = "none", None
        elif signed or any(s.key in trusted_keys(environ) for s in pack.signers):
            signature = "trusted"
            signer = check_trusted(files[SUMS], pack.signers, environ, f"pack {path}")
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


def diff(
    old: PackPath,
    new: PackPath,
    evidence: Annotated[
        bool, typer.Option("--evidence", help="Also rows that decide the same on other evidence.")
    ] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code", help="Exit with 1 if the decisions or the quarantine lists differ."
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Compare two packs: rows added, removed and changed, with their times.

    Also what only one of their quarantine lists has.

    Example: attn-tune diff h200-1.atpack h200-2.atpack
    """
    from attn_tune.db.pack_diff import Change, diff_packs, diff_quarantine

    before, after = _read(old), _read(new)
    found = diff_packs(before, after)
    listed = [dataclasses.asdict(one) for one in diff_quarantine(before, after)]
    counts = Counter(one.change for one in found)
    shown = [d for d in found if evidence or d.change is not Change.EVIDENCE]
    rows = [dataclasses.asdict(d) | {"ratio": d.ratio} for d in shown]
    if json:
        output.emit_json(
            {"counts": {str(c): counts[c] for c in Change}, "rows": rows, "quarantine": listed}
        )
    else:
        if rows:
            from attn_tune.reports.pack_frames import differences

            output.emit_frame(differences(rows, selection.point_names()))
        for one in listed:
            print(f"quarantine {one['change']}: {one['speaks_of']}: {one['reason']}")
        same = counts[Change.EVIDENCE]
        said = ", ".join(f"{counts[c]} {c}" for c in Change if c is not Change.EVIDENCE)
        print(f"{before} -> {after}: {said}, {same} decided alike on other evidence")
    if exit_code and (len(found) > counts[Change.EVIDENCE] or listed):
        raise typer.Exit(FAILED)


def sign(
    path: Annotated[Path | None, typer.Argument(help="The pack, which is signed in place.")] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The private key, PEM (PKCS 8, ed25519).")
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Make a key first: FILE, and FILE.pub to be trusted."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Sign a pack with an ed25519 key (extra 'sign').

    The digests of the pack stay as they are. Jobs with ATTN_TUNE_REQUIRE_SIGNED=1 use packs that a trusted key signed.

    Example: attn-tune sign h200.atpack --key release.pem
    """
    if new_key:
        _make_key(new_key)
    private = key or new_key
    if private is None:
        raise UsageError("say which key: --key FILE, or --new-key FILE to make one")
    if path is None:
        if key:
            raise UsageError("say which pack to sign")
        print(f"{private}: keep it secret; {private}.pub: give it to those who are to trust you")
        return
    from attn_tune.db.pack_files import signed_files
    from attn_tune.db.pack_writer import write_pack
    from attn_tune.runtime.archive import read_files

    try:
        pem = private.read_bytes()
    except OSError as error:
        raise StorageError(f"{private} cannot be read: {error.strerror}") from None
    files = read_files(path)
    signed = write_pack(path, signed_files(files, _from_files(files, path), pem))
    keys = [signer.key for signer in signed.signers]
    if json:
        output.emit_json({"path": path, "digest": signed.digest, "signers": keys})
    else:
        print(f"{path}: signed by {', '.join(keys)}")


def _make_key(path: Path) -> None:
    from attn_tune.runtime.signing import KEY_SUFFIX, make_key

    pem, public = make_key()
    try:
        # Never readable by others, not for a moment; and never over a key that is there.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(pem)
        name = "".join(c for c in path.stem if c.isascii() and c.isprintable())
        path.with_name(path.name + KEY_SUFFIX).write_text(f"ed25519 {public} {name}\n")
    except OSError as error:
        raise StorageError(f"the key {path} cannot be written: {error.strerror}") from None


def coverage(path: PackPath, json: options.Json = False) -> None:
    """Prove that every row of a pack can answer on its own device; list the dead.

    Example: attn-tune coverage h200.atpack
    """
    from attn_tune.kernels.coverage import Reach, cover

    pack = _read(path)
    found = list(cover(pack))
    counts = Counter(one.reach for one in found)
    grades = Counter(str(one.grade) for one in found if one.grade)
    rows = [
        {
            "reach": str(one.reach),
            "kernel": f"{one.row.op}/{one.row.kernel}",
            "direction": one.row.direction,
            "signature": one.row.signature,
            "device": one.device,
            "reason": one.reason,
        }
        for one in found
        if one.reach is not Reach.REACHED
    ]
    if json:
        output.emit_json(
            {"counts": {str(r): counts[r] for r in Reach}, "grades": grades, "rows": rows}
        )
    else:
        _show(rows)
        said = ", ".join(f"{counts[r]} {r}" for r in Reach)
        graded = ", ".join(f"{n} {grade}" for grade, n in sorted(grades.items()))
        print(f"{pack}: {said}" + (f" ({graded} here)" if graded else ""))
    if counts[Reach.DEAD]:
        raise typer.Exit(FAILED)


def _read(path: Path) -> "Pack":
    from attn_tune.runtime.packs import read_pack

    return read_pack(path, signed=False)


def _from_files(files: Mapping[str, bytes], path: Path) -> "Pack":
    from attn_tune.runtime.packs import pack_from_files

    return pack_from_files(files, str(path))


def _environ(trusted: Path | None) -> Mapping[str, str]:
    from attn_tune.runtime.signing import TRUSTED

    return {**os.environ, TRUSTED: str(trusted)} if trusted else os.environ


def _show(rows: list[dict[str, Any]]) -> None:
    import pandas as pd

    if rows:
        output.emit_frame(pd.DataFrame(rows))
