"""Configs: one frozen, keyword-only dataclass per kernel and direction, and their one JSON spelling.

A config holds only knobs that cannot change the result beyond rounding. Nested dataclasses are *parts*: a backward
made of several launches has one part per launch, each searched on its own.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeGuard

from attn_tune.schema.digest import canonical_json, digest_text
from attn_tune.schema.errors import UsageError


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether plain data is a mapping, such as a config or a part of one. Its keys are texts then, as in JSON."""
    return isinstance(value, Mapping)


def config_to_dict(config: Any) -> dict[str, Any]:
    """The plain-data form of a config, without knobs that are None: a new knob leaves old digests as they are."""
    return dataclasses.asdict(config, dict_factory=_set_knobs)


def _set_knobs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value for name, value in pairs if value is not None}


def config_to_json(config: Any) -> str:
    """The canonical JSON of a config (a dataclass or its plain-data form)."""
    return canonical_json(config if is_mapping(config) else config_to_dict(config))


def config_digest(config: Any) -> str:
    """The digest of a config's canonical JSON."""
    return digest_text(config_to_json(config))


def config_from_dict[C](cls: type[C], data: object) -> C:
    """Builds ``cls`` from its plain-data form, strictly.

    Raises:
      UsageError: a field is missing, unknown or of the wrong type, or the config refuses itself.
    """
    if not is_mapping(data):
        raise UsageError(f"config of {cls.__name__} must be an object, got {data!r}")
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise UsageError(f"{cls.__name__} has no knob {unknown[0]!r}; it has {', '.join(fields) or 'none'}")
    kwargs = {}
    for name, field in fields.items():
        if name not in data:
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise UsageError(f"{cls.__name__} needs the knob {name!r}")
            continue
        kwargs[name] = _convert(cls, name, hints[name], data[name])
    try:
        return cls(**kwargs)
    except ValueError as error:
        raise UsageError(f"{cls.__name__}: {error}") from None


def _convert(cls: type, name: str, hint: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return config_from_dict(hint, value)
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(value) in options or (value is None and type(None) in options):
        return value
    raise UsageError(f"{cls.__name__}.{name} must be {getattr(hint, '__name__', hint)}, got {value!r}")
