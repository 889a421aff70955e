"""A check of a file of overrides: whether each entry can act here, and what lookups would answer without the file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from attn_tune.ops.registry import get_op
from attn_tune.packs.override_entries import Asked, Entry
from attn_tune.packs.override_files import OverridesFile
from attn_tune.runtime.active.settings import Settings
from attn_tune.runtime.active.view import View
from attn_tune.runtime.lookup.question import Question
from attn_tune.runtime.lookup.resolution import resolve_question
from attn_tune.runtime.overrides.active import Overrides
from attn_tune.runtime.overrides.answer import overridden
from attn_tune.runtime.overrides.entries import check_entry, device_of
from attn_tune.schema.digest import canonical_json
from attn_tune.schema.errors import AttnTuneError
from attn_tune.schema.signature import Value


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """One entry of a file.

    Attributes:
      entry: the entry.
      problem: why it cannot answer or match here, ``""`` if it can.
      now: what lookups answer without the file, ``""`` if it is the same or was not asked.
      advice: a pack's entry against it, which binds no job with a file that is ``only``.
    """

    entry: Entry
    problem: str = ""
    now: str = ""
    advice: str = ""


def check_overrides(file: OverridesFile, settings: Settings) -> Iterator[Checked]:
    """Check every entry of ``file``. One for a whole signature is asked for on its own device, as a job would.

    ``settings`` are those of jobs here. Of their other files the ``never`` entries hold.
    """
    others = [one for one in settings.overrides if one.path != file.path]
    forbid = [replace(one, only=False, entries=tuple(e for e in one.entries if e.never)) for one in others]
    without = View(replace(settings, overrides=tuple(one for one in others if not one.only)))
    for entry in file.entries:
        try:
            if entry.never or not entry.signature or not isinstance(entry.signature, str):
                check_entry(entry)
                yield Checked(entry=entry, problem=_forbidden(entry, Overrides([file, *forbid])))
            else:
                yield _asked(entry, Overrides([file, *forbid]), without)
        except AttnTuneError as error:
            yield Checked(entry=entry, problem=str(error))


def _forbidden(entry: Entry, overrides: Overrides) -> str:
    """The reason that an entry which uses a config for many problems answers none of them, or ``""``."""
    if entry.never:
        return ""
    fields: Mapping[str, Value] = {} if isinstance(entry.signature, str) else entry.signature
    asked = Asked(entry.op, entry.direction, device_of(entry.device), "", fields)
    found = overrides.forbidding(asked, entry.kernel, entry.config)
    return f"an override forbids it: {found.reason}" if found else ""


def _asked(entry: Entry, overrides: Overrides, without: View) -> Checked:
    found, steps = overridden(_ask(entry, overrides))
    if found is None or found[2] is not entry:
        reasons = [step.rejected for step in steps if step.rejected]
        return Checked(entry=entry, problem=(*reasons, "a narrower entry goes first")[0])
    ask = _ask(entry, without.overrides)
    advice = ask.config_of(entry.kernel, entry.config)[1] or ""
    try:
        choice = resolve_question(ask, without).choice
    except AttnTuneError as error:
        return Checked(entry=entry, now=str(error), advice=advice)
    answer = choice.answer if choice else None
    same = answer is not None and (answer.kernel, canonical_json(answer.config or {})) == (
        entry.kernel,
        canonical_json(entry.config),
    )
    return Checked(entry=entry, now="" if same else str(answer or "nothing"), advice=advice)


def _ask(entry: Entry, overrides: Overrides) -> Question:
    asked = entry.frozen.asked if entry.frozen else ""
    device = device_of(entry.device)
    return Question(get_op(entry.op), entry.direction, entry.signature, device, asked or None, overrides)
