"""Files of overrides that are made of answers, for jobs that take their answers from there and only there."""

import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from attn_tune.devices.environments import current_environment
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.registry import get_op
from attn_tune.packs.override_entries import Entry, Frozen, device_name
from attn_tune.packs.override_files import OverridesFile, read_overrides
from attn_tune.packs.plain_files import write_whole
from attn_tune.runtime.active.settings import current_settings
from attn_tune.runtime.lookup.answer import Answer
from attn_tune.schema.device import Device
from attn_tune.schema.errors import NoDataError, StorageError, UsageError


def freeze(path: str | os.PathLike[str]) -> OverridesFile:
    """Write the answers to every question of this process since the packs last changed, over what is at ``path``.

    Call it when the job has traced all it runs. Explicit configs are in the code and not in the file. A job that is
    started with ``ATTN_TUNE_OVERRIDES=path`` gets exactly these answers, or an error.

    Raises:
      NoDataError: nothing was asked yet.
      UsageError: one question had two answers (two ``use_pack`` blocks), or there were too many to remember.
      StorageError: the file cannot be written.
    """
    log = current_settings().log
    if log.is_full:
        raise UsageError("cannot freeze: the job asked more questions than are remembered")
    return freeze_answers(path, log.answers)


def freeze_answers(path: str | os.PathLike[str], answers: Iterable[tuple[str, Device, Answer]]) -> OverridesFile:
    """Write ``answers``, each with the kernel that the caller named (``""``: none) and the device it was given for.

    Raises:
      As ``freeze``.
    """
    found: dict[object, tuple[Answer, Entry]] = {}
    for asked, device, answer in answers:
        entry = _entry(answer, asked, device)
        # Boards that differ in clocks only have one name, and must have one answer.
        first, other = found.setdefault(entry.key, (answer, entry))
        if (other.kernel, other.config) != (entry.kernel, entry.config):
            raise UsageError(
                f"cannot freeze: {answer.op}.{answer.direction} {answer.signature} on {entry.device} had several "
                f"answers ({first} and {answer}); freeze a job that has one answer for it"
            )
    if not found:
        raise NoDataError("nothing to freeze: there is no answer yet; freeze after the first step")
    environment = current_environment()
    frozen = OverridesFile(
        entries=tuple(entry for _, entry in found.values()),
        only=True,
        frozen={"tool": f"attn-tune {environment.attn_tune}", "environment": asdict(environment)},
    )
    try:
        write_whole(Path(path), frozen.text.encode())
    except OSError as error:
        raise StorageError(f"the overrides {path} cannot be written: {error.strerror or error}") from None
    return read_overrides(path)


def _entry(answer: Answer, asked: str, device: Device) -> Entry:
    return Entry(
        op=answer.op,
        direction=answer.direction,
        signature=answer.signature,
        device=device_name(device),
        kernel=answer.kernel,
        config=answer.config or {},
        frozen=Frozen(
            asked=asked,
            contract=get_op(answer.op).version,
            source_hash=get_kernel(f"{answer.op}/{answer.kernel}").source_hash,
            rung=str(answer.rung),
            source=answer.source,
            pack_digest=answer.pack_digest,
            repeatable=answer.repeatable,
        ),
    )
