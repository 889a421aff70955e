"""Entries of quarantine lists, checked against the kernels that are here: one with a mistyped knob never matches."""

import dataclasses
import json
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from attn_tune.kernels.registry import get_kernel, get_op, kernels
from attn_tune.kernels.spec import KernelSpec, Op
from attn_tune.runtime import aliases, targets
from attn_tune.runtime.devices import current_device, device_from_kind
from attn_tune.runtime.quarantine import MAX_TEXT, Entry
from attn_tune.schema.errors import UsageError, unknown_name
from attn_tune.schema.signature import Value


def make_entry(
    *,
    kernel: str,
    reason: str,
    direction: str = "",
    device: str = "",
    config: Mapping[str, Any] | None = None,
    signature: Iterable[str] = (),
) -> Entry:
    """One entry; what is left out matches everything.

    Args:
      kernel: ``"op/name"``, a name that only one op has, or an op for all of its kernels.
      device: a variant or a family.
      config: the knobs that must agree, parts as tables.
      signature: a signature's text, or words ``FIELD=VALUE`` of one.

    Raises:
      UsageError: an unknown name or a value that the kernel's knob cannot have, or no reason.
    """
    op, spec = _subject(kernel)
    reason = " ".join(reason.split())
    if not reason:
        raise UsageError("an entry needs a reason: whoever is turned down by it wants to know why")
    if len(reason) > MAX_TEXT or not reason.isprintable():
        raise UsageError(f"a reason is a text of at most {MAX_TEXT} characters")
    if direction and direction not in (spec.searches if spec else op.directions):
        raise unknown_name(
            f"direction of {kernel}", direction, spec.searches if spec else op.directions
        )
    entry = Entry(
        op=op.name,
        kernel=spec.name if spec else "",
        direction=direction,
        device=device_condition(device),
        config=dict(config or {}),
        signature=_fields(op, tuple(signature)),
        reason=reason,
    )
    if entry.config and spec is None:
        raise UsageError(f"knobs belong to a kernel; name one of {op.name} to give its config")
    if spec is not None:
        ways = [direction] if direction else list(spec.searches)
        errors = [_wrong(spec.searches[way].config, entry.config) for way in ways]
        # Without a direction the config of either will do.
        if entry.config and all(errors):
            raise UsageError(f"config of {spec.id}: {errors[0]}")
    return entry


def parse_knobs(words: Iterable[str]) -> dict[str, Any]:
    """The config of ``KNOB=VALUE`` words (``dq.num_warps=8`` for a knob of a part), or of one JSON object.

    Raises:
      UsageError: it is neither.
    """
    words = tuple(words)
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return json.loads(words[0])
        except ValueError as error:
            raise UsageError(f"config {words[0]!r} is not JSON: {error}") from None
    found: dict[str, Any] = {}
    for word in words:
        path, equals, text = word.partition("=")
        *parts, name = path.split(".")
        if not equals or not name or len(parts) > 1:
            raise UsageError(f"knob {word!r} must be KNOB=VALUE, or PART.KNOB=VALUE")
        inside = found.setdefault(parts[0], {}) if parts else found
        if not isinstance(inside, dict) or name in inside:
            raise UsageError(f"knob {path!r} is given twice")
        inside[name] = _value(text)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _subject(name: str) -> tuple[Op, KernelSpec | None]:
    if "/" in name:
        spec = get_kernel(name)
        return get_op(spec.op), spec
    owners = [spec for spec in kernels().values() if spec.name == name]
    if len(owners) == 1:
        return get_op(owners[0].op), owners[0]
    if owners:
        raise UsageError(
            f"kernel {name!r} is one of several ops; name {' or '.join(s.id for s in owners)}"
        )
    ops = sorted({spec.op for spec in kernels().values()})
    if name in ops:
        return get_op(name), None
    raise unknown_name("kernel or op", name, [*kernels(), *ops])


def device_condition(name: str) -> str:
    """``name`` as an entry says it, a variant or a family; ``""`` for every device.

    Raises:
      UsageError: it is neither.
    """
    if not name:
        return ""
    known = aliases.variants()
    if name in known or name in known.values() or name in targets.SHARED_BYTES:
        return name
    try:
        # A raw name, as a driver spells it.
        return device_from_kind(name).variant
    except UsageError:
        here = current_device()
        if name in (here.variant, here.family):
            return name
        raise


def _fields(op: Op, words: tuple[str, ...]) -> dict[str, Value]:
    if len(words) == 1 and words[0].startswith(f"{op.name}/v"):
        return op.problem_signature(words[0]).values
    fields = {field.name: field for field in op.fields}
    found: dict[str, Value] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(
                f"signature field {word!r} must be FIELD=VALUE, or the whole signature"
            )
        if name not in fields:
            raise unknown_name(f"signature field of {op.name}", name, fields)
        found[name] = None if text == "none" else fields[name].parse(text)
    return found


def _wrong(cls: type, config: Mapping[str, Any]) -> str:
    """What is wrong with some of the knobs of ``cls``; ``""`` if nothing is."""
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    for name, value in config.items():
        if name not in names:
            return f"{cls.__name__} has no knob {name!r}; it has {', '.join(names)}"
        hint = hints[name]
        options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        parts = [one for one in options if isinstance(one, type) and dataclasses.is_dataclass(one)]
        if parts and isinstance(value, Mapping):
            if wrong := _wrong(parts[0], value):
                return wrong
        elif type(value) not in options:
            return f"{cls.__name__}.{name} cannot be {value!r}"
    return ""
