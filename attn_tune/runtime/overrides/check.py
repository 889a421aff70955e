"""A check of a file of overrides: whether each entry can act here, and what lookups would answer without the file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from attn_tune.kernels.registry import kernels_of, specs_of
from attn_tune.ops.contract import Op
from attn_tune.ops.registry import get_op, op_names
from attn_tune.packs.override_entries import Asked, Entry
from attn_tune.packs.override_files import OverridesFile
from attn_tune.runtime.active.settings import Settings
from attn_tune.runtime.active.view import View
from attn_tune.runtime.lookup.question import Question
from attn_tune.runtime.lookup.resolution import resolve_question
from attn_tune.runtime.overrides.active import Overrides
from attn_tune.runtime.overrides.answer import overridden
from attn_tune.runtime.overrides.entries import condition_of, device_of, may_agree, whole_config, wrong_knobs
from attn_tune.schema.device import Device
from attn_tune.schema.digest import canonical_json
from attn_tune.schema.errors import AttnTuneError, UsageError, unknown_name
from attn_tune.schema.signature import Value


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """One entry of a file.

    Attributes:
      entry: the entry.
      problem: why it cannot answer or match here, ``""`` if it can.
      now: what lookups answer without the file, ``""`` if it is the same or was not asked.
      advice: a doubt that stops nothing: a device that no table has, or a pack's entry against it, which binds no job
        with a file that is ``only``.
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
    overrides = Overrides([file, *forbid])
    for entry in file.entries:
        try:
            check_names(entry)
            advice = _check_device(entry.device)
            if entry.never or advice or not isinstance(entry.signature, str) or not entry.signature:
                yield Checked(entry=entry, problem=_forbidden(entry, overrides), advice=advice)
            else:
                yield _asked(entry, overrides, without)
        except AttnTuneError as error:
            yield Checked(entry=entry, problem=str(error))


def idle_entries(overrides: Overrides, op: str) -> Iterator[tuple[Entry, str]]:
    """The entries for ``op`` that can act on no question here, and the reason: a slip, or a package that is missing."""
    for entry in (entry for file in overrides.files for entry in file.entries if not entry.frozen):
        text = entry.signature if isinstance(entry.signature, str) else ""
        if op in (entry.op, text.partition("/v")[0]):
            try:
                check_names(entry)
            except AttnTuneError as error:
                yield entry, str(error)


def check_names(entry: Entry) -> None:
    """Raise UsageError for an entry that matches no question, or no config, of the kernels here on any device."""
    text = entry.signature if isinstance(entry.signature, str) else ""
    of = entry.op or text.partition("/v")[0]
    specs = [s for op in ([of] if of else op_names()) for s in (kernels_of(op) if of else specs_of(op))]
    subject = "/".join(filter(None, (of, entry.kernel)))
    found = [spec for spec in specs if entry.kernel in ("", spec.name)]
    if not found:
        raise unknown_name("kernel", subject, (spec.id for spec in specs))
    ways = {way for spec in found for way in spec.searches}
    if entry.direction and entry.direction not in ways:
        raise unknown_name(f"direction of {subject or 'any op'}", entry.direction, ways)
    if not entry.never:
        whole_config(found[0], entry.direction, entry.config)
    elif entry.config:
        # Without a kernel or direction the config of any will do.
        searches = [(s.id, x.config) for s in found for way, x in s.searches.items() if entry.direction in ("", way)]
        wrong = [f"config of {name}: {why}" for name, kind in searches if (why := wrong_knobs(kind, entry.config))]
        if len(wrong) == len(searches):
            more = f"; it fits none of the {len(found)} kernels that the entry names" if len(found) > 1 else ""
            raise UsageError(wrong[0] + more)
    unmatched = [_unmatched(get_op(name), entry) for name in sorted({spec.op for spec in found})]
    if all(unmatched):
        raise UsageError(unmatched[0])


def _unmatched(op: Op, entry: Entry) -> str:
    """The reason why no problem of ``op`` has the signature, or fields, of an entry; ``""`` if one may."""
    if isinstance(entry.signature, str):
        asked = op.problem_signature(entry.signature).text if entry.signature else ""
        if asked == entry.signature:
            return ""
        return f"lookups of this problem ask for {asked!r}, without what changes nothing, and the entry matches none"
    fields = {field.name: field for field in op.fields}
    for name, value in entry.signature.items():
        if name not in fields:
            return str(unknown_name(f"signature field of {op.name}", name, fields))
        kind = int if fields[name].is_int else str
        if value != fields[name].default and not may_agree(value, kind, by_text=entry.never):
            return f"signature field {name} of {op.name} cannot be {value!r}"
    return ""


def _check_device(name: str) -> str:
    """The doubt about a device that no table has, or ``""``.

    Raises:
      UsageError: lookups call the device by another name.
    """
    try:
        called = condition_of(name)
    except UsageError:
        return f"{name!r} is the name of no known device, unless of new hardware ('attn-tune devices --all')"
    if called != name:
        raise UsageError(f"lookups call the device {name!r} {called!r}, and the entry matches none; write that name")
    return ""


def _forbidden(entry: Entry, overrides: Overrides) -> str:
    """The reason that an entry which uses a config answers none of its problems, or ``""``."""
    if entry.never:
        return ""
    try:
        device = device_of(entry.device)
    except UsageError:
        device = Device(platform="", family="", variant=entry.device)
    if entry.signature and isinstance(entry.signature, str):
        asked = Question(get_op(entry.op), entry.direction, entry.signature, device, None).asked
    else:
        fields: Mapping[str, Value] = {} if isinstance(entry.signature, str) else entry.signature
        asked = Asked(entry.op, entry.direction, device, "", fields)
    found = overrides.forbidding(asked, entry.kernel, entry.config)
    return f"an override forbids it: {found.reason}" if found else ""


def _asked(entry: Entry, overrides: Overrides, without: View) -> Checked:
    found, steps = overridden(_ask(entry, overrides, without.settings))
    if found is None or found[2] is not entry:
        reasons = [step.rejected for step in steps if step.rejected and step.source == str(entry)]
        return Checked(entry=entry, problem=(*reasons, "a narrower entry goes first")[0])
    ask = _ask(entry, without.overrides, without.settings)
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


def _ask(entry: Entry, overrides: Overrides, settings: Settings) -> Question:
    """The question that a job with these ``settings`` asks where the entry answers."""
    return Question(
        get_op(entry.op),
        entry.direction,
        entry.signature,
        device_of(entry.device),
        (entry.frozen.asked if entry.frozen else "") or None,
        overrides,
        settings.determinism,
        settings.unproven,
    )
