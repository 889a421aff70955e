"""Entries of overrides, checked against the kernels that are here: one with a mistyped knob never matches."""

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from attn_tune.devices import aliases, figures
from attn_tune.devices.identity import current_device, device_from_kind
from attn_tune.kernels import registry
from attn_tune.kernels.registry import get_kernel
from attn_tune.kernels.spec import KernelSpec
from attn_tune.ops.contract import Op
from attn_tune.ops.registry import get_op
from attn_tune.packs.override_entries import Entry, agrees, device_name
from attn_tune.packs.override_files import MAX_TEXT, OverridesFile
from attn_tune.runtime.active.layers import in_force
from attn_tune.runtime.lookup.question import resolve
from attn_tune.schema.config import config_from_dict, config_to_dict, is_mapping
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UsageError, short, unknown_name
from attn_tune.schema.signature import Signature, Value


def use_config(
    op: str, kernel: str, config: Any, direction: str | None = None, *, problem: Any = None
) -> AbstractContextManager[OverridesFile]:
    """Give lookups this kernel and config within a ``with`` block, before all packs: for an A/B test, or a bad row.

    Jitted functions retrace as with ``use_pack``. A question that the config cannot do on its device falls through to
    the packs, and the answer's ``rejected`` says why. Calls that name another kernel are not concerned.

    Args:
      op: name of the op.
      kernel: ``"triton"`` or ``"OP/triton"``.
      config: the kernel's config dataclass, or its plain-data form.
      direction: name of the direction; the first of the op without one.
      problem: a problem, a signature or its text; None is every problem of the op.

    Raises:
      UsageError: unknown op, kernel, direction or knob.
    """
    contract, spec = get_op(op), resolve(op, kernel)
    if isinstance(problem, Signature):
        problem = contract.from_signature(problem)
    if problem is not None and not isinstance(problem, str):
        problem = contract.to_signature(problem).text
    made = make_entry(spec.id, config=config, direction=direction or "", signature=problem or "")
    return in_force(OverridesFile(entries=(made,)))


def make_entry(
    kernel: str,
    *,
    never: bool = False,
    config: Any = None,
    direction: str = "",
    device: str = "",
    signature: str | Iterable[str] = "",
    reason: str = "",
) -> Entry:
    """An entry that uses a config, or with ``never`` one that forbids configs. A ``never`` condition may be left out.

    Args:
      kernel: ``"op/name"``, or a name that only one op has; with ``never`` also an op, for all of its kernels.
      never: whether the entry forbids.
      config: the whole config; with ``never`` the knobs that must agree, parts as tables.
      direction: name of the direction. Without one it is the first of the op; with ``never`` all are meant.
      device: a variant, a family or a whole ``device_name``.
      signature: a whole signature; or words ``FIELD=VALUE`` for the fields that must agree.
      reason: a note for people. A ``never`` entry needs one.

    Raises:
      UsageError: an unknown name, a value that a knob or field cannot have, or no reason.
    """
    op, spec = _subject(kernel)
    reason = " ".join(reason.split())
    if never and not reason:
        raise UsageError("a never entry needs a reason, which lookups say: give --reason TEXT, in Python reason=")
    if len(reason) > MAX_TEXT or not reason.isprintable():
        raise UsageError(f"reason must be printable, of at most {MAX_TEXT} characters; got {short(repr(reason), 60)}")
    if spec is None and (config or not never):
        raise UsageError(f"knobs belong to a kernel; name one of {op.name} to give its config")
    ways = spec.searches if spec else op.directions
    if not direction and not never:
        direction = op.directions[0]
    if direction and direction not in ways:
        raise unknown_name(f"direction of {kernel}", direction, ways)
    if never and spec and config:
        # Without a direction the config of any will do.
        asked = [direction] if direction else list(spec.searches)
        wrong = [wrong_knobs(spec.searches[way].config, config) for way in asked]
        if all(wrong):
            raise UsageError(f"config of {spec.id}: {wrong[0]}")
    elif spec and not never:
        config = whole_config(spec, direction, config)
    return Entry(
        never=never,
        op=op.name,
        kernel=spec.name if spec else "",
        direction=direction,
        device=condition_of(device),
        config=config or {},
        signature=_signature(op, signature),
        reason=reason,
    )


def device_of(condition: str) -> Device:
    """A device that an entry with this condition matches: this machine's, or one as published.

    Raises:
      UsageError: the name is of no known device.
    """
    here = current_device()
    if condition in ("", here.variant, here.family, device_name(here)):
        return here
    whole = condition.split("/")
    return device_from_kind("/".join(whole[2:]) if len(whole) > 2 else condition)


def condition_of(name: str) -> str:
    """``name`` as an entry says it, where a driver may spell it otherwise.

    Raises:
      UsageError: it is of no known device.
    """
    known = aliases.variants()
    if not name or name in known or name in known.values() or name in figures.SHARED_BYTES:
        return name
    found = device_of(name)
    whole = device_name(found)
    return name if name in (found.variant, found.family, whole) else whole if found.partition else found.variant


def _subject(name: str) -> tuple[Op, KernelSpec | None]:
    if "/" in name:
        spec = get_kernel(name)
        return get_op(spec.op), spec
    kernels = registry.kernels()
    owners = [spec for spec in kernels.values() if spec.name == name]
    ops = sorted({spec.op for spec in kernels.values()})
    if len(owners) > 1:
        raise UsageError(f"several ops have a kernel {name!r}; name {' or '.join(s.id for s in owners)}")
    if not owners and name not in ops:
        raise unknown_name("kernel or op", name, [*kernels, *ops])
    return get_op(owners[0].op if owners else name), owners[0] if owners else None


def _signature(op: Op, given: str | Iterable[str]) -> str | Mapping[str, Value]:
    words = [given] if isinstance(given, str) else list(given)
    if len(words) == 1 and words[0].startswith(f"{op.name}/v"):
        return op.problem_signature(words[0]).text
    fields = {field.name: field for field in op.fields}
    found: dict[str, Value] = {}
    for word in filter(None, words):
        name, equals, text = word.partition("=")
        if name not in fields:
            raise unknown_name(f"signature field of {op.name}", name, fields)
        if not equals:
            raise UsageError(f"signature field {word!r} must be FIELD=VALUE, or the whole signature")
        found[name] = None if text == "none" else fields[name].parse(text)
    return found or ""


def whole_config(spec: KernelSpec, direction: str, config: Any) -> dict[str, Any]:
    """The plain data of a config of ``spec``, with the knobs that have a default.

    Raises:
      UsageError: it is no config of this direction.
    """
    wanted = spec.searches[direction].config
    if config is None or is_mapping(config):
        try:
            config = config_from_dict(wanted, config or {})
        except UsageError as error:
            raise UsageError(f"config of {spec.id}: {error}") from None
    if not isinstance(config, wanted):
        raise UsageError(f"the {direction} config of {spec.id} is a {wanted.__name__}, got {type(config).__name__}")
    return config_to_dict(config)


def wrong_knobs(cls: type, config: Mapping[str, Any]) -> str:
    """The first of the knobs in ``config`` by which it forbids no config of ``cls``; ``""`` if there is none."""
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    for name, value in config.items():
        if name not in names:
            return f"{cls.__name__} has no knob {name!r}; it has {', '.join(names) or 'none'}"
        hint = hints[name]
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        parts = [one for one in options if isinstance(one, type) and dataclasses.is_dataclass(one)]
        if parts and is_mapping(value):
            if wrong := wrong_knobs(parts[0], value):
                return wrong
        elif not any(may_agree(value, kind, by_text=True) for kind in options):
            return f"{cls.__name__}.{name} cannot be {value!r}"
    return ""


def may_agree(value: Any, kind: type, *, by_text: bool) -> bool:
    """Whether a value of type ``kind`` agrees with this one of an entry: 64.0 does with 64, and true with 1."""
    try:
        meant = (False, True) if kind is bool else (kind(value),)
    except (TypeError, ValueError, OverflowError):
        return False
    return any(agrees({"": value}, {"": one}, by_text=by_text) for one in meant)
