"""The bytes of a pack. Same decisions and note, same bytes: nothing else says when, where or by whom it was made."""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from attn_tune.runtime.archive import MANIFEST, QUARANTINE, SIGNED, SUMS
from attn_tune.runtime.overrides.entries import Entry
from attn_tune.runtime.overrides.files import OverridesFile
from attn_tune.runtime.packs import Pack
from attn_tune.runtime.rows import OMITTED, Row, decision_digest
from attn_tune.schema import Decision, Device, Environment, UsageError, canonical_json

PPM = 1_000_000
MAX_NOTE = 1000

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")


def check_word(what: str, word: str) -> None:
    """Refuses a name or version that a pack cannot have.

    Raises:
      UsageError: it is one.
    """
    if not _WORD.fullmatch(word):
        raise UsageError(f"a pack's {what} is letters, digits and _.+-, not {word!r}")


def check_note(note: str) -> str:
    """The note on one line, which the manifest holds for people.

    Raises:
      UsageError: it is empty, too long, or has characters that cannot be printed.
    """
    line = " ".join(note.split())
    if not line or len(line) > MAX_NOTE or not line.isprintable():
        raise UsageError(f"a pack's note is a line of 1 to {MAX_NOTE} characters, got {note!r:.80}")
    return line


def pack_files(
    decisions: Iterable[Decision],
    *,
    name: str,
    version: str,
    gate: Mapping[str, Any] | None = None,
    quarantine: Iterable[Entry] = (),
    note: str = "",
) -> dict[str, bytes]:
    """The files of a pack by their paths inside; the order of ``decisions`` does not matter.

    ``gate`` is the manifest's entry about the release gate, ``quarantine`` the list that the pack carries, ``note`` a
    line for people.
    """
    decisions = list(decisions)
    return files_of_rows(
        [to_row(d) for d in decisions],
        name=name,
        version=version,
        devices={d.device.digest: d.device for d in decisions},
        environments={d.environment.digest: d.environment for d in decisions},
        contracts={d.kernel: d.contract for d in decisions},
        gate=gate,
        quarantine=quarantine,
        note=note,
    )


def files_of_rows(
    rows: Iterable[Row],
    *,
    name: str,
    version: str,
    devices: Mapping[str, Device],
    environments: Mapping[str, Environment],
    contracts: Mapping[str, int],
    gate: Mapping[str, Any] | None = None,
    quarantine: Iterable[Entry] = (),
    note: str = "",
) -> dict[str, bytes]:
    """The files of a pack of ``rows``; the tables may hold more than the rows need."""
    rows = list(rows)
    shards: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        shards[_shard_path(devices[row.device].family, row)].append(row)
    files = {path: _shard_text(group).encode() for path, group in sorted(shards.items())}
    entries = {entry.line: entry for entry in quarantine}
    # A reader of format 1 knows no lists, and must not use a pack without its own.
    needed = 2 if entries else 1
    manifest = {
        "format": needed,
        "min_reader": needed,
        "name": name,
        "version": version,
        "tool": f"attn-tune {_tool_version()}",
        "devices": {digest: devices[digest].identity for digest in {r.device for r in rows}},
        "environments": {digest: asdict(environments[digest]) for digest in {r.env for r in rows}},
        "kernels": [
            {"kernel": kernel, "contract": contracts[kernel]}
            for kernel in sorted({f"{r.op}/{r.kernel}" for r in rows})
        ],
        "shards": [
            {"path": path, "rows": len(shards[path]), "sha256": _sha256(data)}
            for path, data in files.items()
        ],
        "decision_digest": decision_digest(rows),
        "rows": len(rows),
    }
    if gate is not None:
        manifest["gate"] = dict(gate)
    if note:
        manifest["note"] = note
    if entries:
        files[QUARANTINE] = OverridesFile(entries=tuple(entries.values())).text.encode()
        manifest["quarantine"] = {
            "entries": len(entries),
            "sha256": _sha256(files[QUARANTINE]),
        }
    text = json.dumps(manifest, sort_keys=True, indent=1, allow_nan=False) + "\n"
    files[MANIFEST] = text.encode()
    sums = "".join(f"{_sha256(files[path])}  {path}\n" for path in sorted(files))
    files[SUMS] = sums.encode()
    return dict(sorted(files.items()))


def signed_files(files: Mapping[str, bytes], pack: Pack, private_pem: bytes) -> dict[str, bytes]:
    """``files`` with one more signature, in place of an older one by the same key."""
    from attn_tune.runtime.signing import sign

    signer = sign(files[SUMS], private_pem)
    others = [s for s in pack.signers if s.key != signer.key]
    return {**files, SIGNED: "".join(s.line for s in sorted([*others, signer])).encode()}


def to_row(decision: Decision) -> Row:
    """The row that says what ``decision`` says."""
    return Row(
        op=decision.op,
        direction=decision.direction,
        device=decision.device.digest,
        signature=decision.signature.text,
        kernel=decision.kernel.partition("/")[2],
        rank=decision.rank,
        config=decision.config,
        state=str(decision.rule),
        env=decision.environment.digest,
        median_ns=decision.median_ns,
        heuristic_ns=decision.heuristic_ns,
        gain_ppm=None if decision.gain is None else _ppm(decision.gain - 1),
        regret_ppm=None if decision.regret_bound is None else _ppm(decision.regret_bound),
        error_ppm=None if decision.worst_error is None else _ppm(decision.worst_error),
        samples=decision.samples,
        repeatable=decision.repeatable,
        features=decision.features,
    )


def _ppm(value: float) -> int:
    return round(value * PPM)


def _shard_path(family: str, row: Row) -> str:
    if not _WORD.fullmatch(family):
        raise UsageError(f"the device family {family!r} cannot be part of a file's name")
    return f"shards/{family}/{row.op}.{row.direction}.json"


def _shard_text(rows: Iterable[Row]) -> str:
    lines = []
    for row in sorted(rows, key=lambda r: (r.signature, r.device, r.rank)):
        data: dict[str, Any] = asdict(row)
        del data["op"], data["direction"]  # the file's name says them
        for name in OMITTED:
            if data[name] is None:
                del data[name]
        lines.append(canonical_json(data))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _tool_version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("attn-tune")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
