"""A job's choices on paper: ``freeze`` writes them, and a job with a lockfile takes them from there and only there."""

import os
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from attn_tune.kernels.ask import AUTO, Ask
from attn_tune.kernels.registry import get_kernel, get_op
from attn_tune.kernels.source import current_digest
from attn_tune.kernels.spec import KernelSpec
from attn_tune.runtime.answer import Answer
from attn_tune.runtime.environments import current_environment
from attn_tune.runtime.lockfile import Entry, Lockfile, device_name, write_lockfile
from attn_tune.runtime.snapshot import current_snapshot
from attn_tune.schema.config import config_to_json
from attn_tune.schema.device import Device
from attn_tune.schema.errors import LockfileError, NoDataError, UsageError


def freeze(path: str | os.PathLike[str]) -> Lockfile:
    """Writes what every question of this process was answered since the packs last changed.

    Call it when the job has traced all it runs. Explicit configs are in the code and not in the file. A job that is
    started with ``ATTN_TUNE_LOCKFILE=path`` gets exactly these answers, or an error.

    Raises:
      NoDataError: nothing was asked yet.
      UsageError: one question had two answers (two ``use_pack`` blocks), or there were too many to remember.
      StorageError: the file cannot be written.
    """
    ledger = current_snapshot().ledger
    entries = []
    for asked, device, answers in ledger.answers():
        first, *others = answers
        if others:
            raise UsageError(
                f"cannot freeze: {first.op}.{first.direction} {first.signature} on {device} had several answers "
                f"({first.kernel} {dict(first.config or {})} and {others[0].kernel} "
                f"{dict(others[0].config or {})}); freeze a job that uses one pack for it"
            )
        entries.append(_entry(first, asked, device))
    if ledger.is_full:
        raise UsageError("cannot freeze: the job asked more questions than are remembered")
    if not entries:
        raise NoDataError("nothing to freeze: no lookup was made yet; freeze after the first step")
    return _write(path, entries)


def freeze_answers(
    path: str | os.PathLike[str], answers: Iterable[Answer], device: Device, kernel: str | None
) -> Lockfile:
    """Writes these ``answers``, given for ``device`` for calls that name ``kernel`` (None: that name none).

    Raises:
      NoDataError: there are none.
      StorageError: the file cannot be written.
    """
    asked = "" if kernel in (None, AUTO) else kernel.rpartition("/")[2]
    entries = [_entry(answer, asked, device) for answer in answers]
    if not entries:
        raise NoDataError("nothing to freeze: no kernel can do any of the problems on the device")
    return _write(path, entries)


def _entry(answer: Answer, asked: str, device: Device) -> Entry:
    return Entry(
        op=answer.op,
        direction=answer.direction,
        signature=answer.signature,
        asked=asked,
        device=device_name(device),
        kernel=answer.kernel,
        config=answer.config or {},
        contract=get_op(answer.op).version,
        source_hash=get_kernel(f"{answer.op}/{answer.kernel}").source_hash,
        rung=str(answer.rung),
        source=answer.source,
        pack_digest=answer.pack_digest,
        repeatable=answer.repeatable,
    )


def _write(path: str | os.PathLike[str], entries: list[Entry]) -> Lockfile:
    environment = current_environment()
    return write_lockfile(
        path,
        _merged(entries),
        tool=f"attn-tune {environment.attn_tune}".strip(),
        environment=asdict(environment),
    )


def locked_choice(question: Ask, lockfile: Lockfile) -> tuple[KernelSpec, Any, Entry]:
    """The kernel, config and entry that ``lockfile`` has for ``question``.

    Raises:
      LockfileError: it has none, or what it has cannot run here, or is another kernel by now.
    """
    key = (
        question.op.name,
        question.direction,
        question.signature.text,
        question.kernel or "",
        device_name(question.device),
    )
    asked = f"{key[0]}.{key[1]} {key[2]} on {key[4]}"
    entry = lockfile.entries.get(key)
    if entry is None:
        raise LockfileError(
            f"the lockfile {lockfile.path} has no answer for {asked}: {_nearest(key, lockfile)}; "
            "freeze the job anew, or run it without the lockfile"
        )
    config, reason = question.config_of(entry.kernel, entry.config)
    reason = reason or question.forbidden_bits(entry.repeatable)
    if reason is None:
        spec = question.specs[entry.kernel]
        if entry.contract != question.op.version:
            reason = f"the contract of {entry.op} is now v{question.op.version}, it was v{entry.contract}"
        elif current_digest(entry.source_hash) != spec.source_hash:
            reason = f"the source of {spec.id} has changed since"
        else:
            return spec, config, entry
    raise LockfileError(
        f"the lockfile {lockfile.path} answers {asked} with {entry.kernel} {dict(entry.config)}, which no longer "
        f"holds here: {reason}; freeze the job anew"
    )


def _merged(entries: list[Entry]) -> list[Entry]:
    """One entry a key: boards that differ in clocks only have one name, and must have one answer.

    Raises:
      UsageError: they have not.
    """
    found: dict[Any, Entry] = {}
    for entry in entries:
        other = found.setdefault(entry.key, entry)
        mine, theirs = ((e.kernel, config_to_json(e.config)) for e in (entry, other))
        if mine != theirs:
            raise UsageError(
                f"cannot freeze: two devices that are both {entry.device} had different answers to "
                f"{entry.op}.{entry.direction} {entry.signature}"
            )
    return list(found.values())


def _nearest(key: tuple[str, ...], lockfile: Lockfile) -> str:
    """In what the likest entry differs from ``key``."""
    mine = _parts(key)
    best: tuple[int, str] | None = None
    for other in lockfile.entries:
        theirs = _parts(other)
        names = [n for n in sorted({*mine, *theirs}) if mine.get(n) != theirs.get(n)]
        text = ", ".join(f"{n} {mine.get(n, 'none')} vs {theirs.get(n, 'none')}" for n in names)
        best = min(best or (len(names), text), (len(names), text))
    return f"its nearest differs in {best[1]}" if best else "it is empty"


def _parts(key: tuple[str, ...]) -> dict[str, str]:
    _, direction, signature, asked, device = key
    head, *fields = signature.split()
    said = {"op": head, "direction": direction, "kernel": asked or "any", "device": device}
    for field in fields:
        name, _, said[name] = field.partition("=")
    return said
