"""The answer of overrides to a question, where they have one."""

import os
from typing import Any

from attn_tune.kernels.registry import get_kernel
from attn_tune.kernels.source import current_digest
from attn_tune.kernels.spec import KernelSpec
from attn_tune.packs.override_entries import Entry, device_name
from attn_tune.packs.rows import Row
from attn_tune.runtime.lookup.answer import Rung, SourceKind
from attn_tune.runtime.lookup.ladder import Step
from attn_tune.runtime.lookup.question import Question
from attn_tune.runtime.overrides.active import ended_by
from attn_tune.schema.errors import LockfileError


def overridden(
    question: Question,
) -> tuple[tuple[KernelSpec, Any, Entry] | None, tuple[Step, ...]]:
    """The kernel, config and entry that answer, or None; and a step for each entry that was looked at.

    Raises:
      LockfileError: nothing else may answer, and no entry does.
    """
    overrides = question.overrides
    steps: list[Step] = []
    for file, entry in overrides.uses(question.asked, question.kernel):
        config, reason = question.config_of(entry.kernel, entry.config)
        # Of entries that could not be read, any may forbid it.
        reason = overrides.broken or reason or _outdated(question, entry)
        step = Step(
            source=str(entry),
            kind=SourceKind.OVERRIDE,
            rung=Rung.OVERRIDE,
            row=_row(question, entry),
            rejected=reason,
            note=ended_by(file, entry, os.environ),
        )
        steps.append(step)
        if reason is None:
            return (_kernel(question, entry), config, entry), tuple(steps)
    if overrides.only:
        raise LockfileError(_miss(question, steps))
    return None, tuple(steps)


def _kernel(question: Question, entry: Entry) -> KernelSpec:
    return get_kernel(f"{question.op.name}/{entry.kernel}")


def _outdated(question: Question, entry: Entry) -> str | None:
    """The reason why a frozen entry no longer holds; None if it does, or is not frozen."""
    frozen = entry.frozen
    if frozen is None:
        return None
    spec = _kernel(question, entry)
    if frozen.contract != question.op.version:
        return f"the contract of {entry.op} is now v{question.op.version}, it was v{frozen.contract}"
    if current_digest(frozen.source_hash) != spec.source_hash:
        return f"the source of {spec.id} has changed since"
    return question.forbidden_bits(frozen.repeatable)


def _row(question: Question, entry: Entry) -> Row:
    """The entry as a step shows it: like a row of a pack."""
    frozen = entry.frozen
    return Row(
        op=entry.op,
        direction=entry.direction,
        device=question.device.digest,
        signature=question.signature.text,
        kernel=entry.kernel,
        rank=0,
        config=entry.config,
        state=f"{frozen.rung} when it was frozen" if frozen else entry.reason or "an override",
        env="",
    )


def _miss(question: Question, steps: list[Step]) -> str:
    """The sentence for a question that only files of overrides may answer, and do not."""
    files, device = question.overrides.only, device_name(question.device)
    names = " and ".join(file.path for file in files)
    asked = f"{question.op.name}.{question.direction} {question.signature} on {device}"
    if steps:
        return (
            f"{names} answers {asked} by {steps[0].source}, which no longer holds here: "
            f"{steps[0].rejected}; freeze the job again"
        )
    mine = _parts(question.direction, question.signature.text, question.kernel or "", device)
    some = any(not one.never for file in files for one in file.entries)
    best = (99, "its 'use' entries are of other ops" if some else "it has no 'use' entries")
    for entry in (one for file in files for one in file.entries if one.op == question.op.name):
        asked_for = entry.frozen.asked if entry.frozen else ""
        theirs = _parts(entry.direction, str(entry.signature), asked_for, entry.device)
        names_of = [n for n in sorted({*mine, *theirs}) if mine.get(n) != theirs.get(n)]
        text = ", ".join(f"{n} {mine.get(n, 'none')} vs {theirs.get(n, 'none')}" for n in names_of)
        best = min(best, (len(names_of), f"its nearest differs in {text}"))
    return (
        f"{names} has no answer for {asked}, and nothing else may answer: {best[1]}; "
        "freeze the job again, or run it without the file"
    )


def _parts(direction: str, signature: str, kernel: str, device: str) -> dict[str, str]:
    pairs = (word.partition("=") for word in signature.split()[1:])
    words = {name: value for name, _, value in pairs}
    return {"direction": direction, "kernel": kernel or "any", "device": device or "any"} | words
