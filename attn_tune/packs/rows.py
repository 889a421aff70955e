"""Rows of a pack. Each field is declared once: its name, type and default, its check, and its source in a decision."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

from attn_tune.schema.config import is_mapping
from attn_tune.schema.decision import Decision, Proof, Rule
from attn_tune.schema.digest import canonical_json, digest_text
from attn_tune.schema.errors import IntegrityError

PPM = 1_000_000
MAX_TEXT = 1000

_KERNEL = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_STATES = tuple(rule.value for rule in Rule)
_MAX_INT = 2**63

# Takes a value; returns its fault as the end of a sentence that begins with the field's name, None for a good value.
type Check = Callable[[Any], str | None]


def _text(value: Any) -> str | None:
    if isinstance(value, str) and 0 < len(value) <= MAX_TEXT:
        return None
    return f"must be a text of 1 to {MAX_TEXT} characters, got {value!r:.60}"


def _kernel(value: Any) -> str | None:
    if isinstance(value, str) and _KERNEL.fullmatch(value):
        return None
    return f"must be a kernel's name, 1 to 100 letters, digits or any of '_.-', got {value!r:.60}"


def _state(value: Any) -> str | None:
    return None if value in _STATES else f"must be one of {', '.join(_STATES)}, got {value!r:.60}"


def _integer(value: Any) -> str | None:
    if type(value) is int and -_MAX_INT <= value < _MAX_INT:
        return None
    return f"must be an integer from -2**63 to 2**63 - 1, got {value!r:.60}"


def _count(value: Any) -> str | None:
    if type(value) is int and 0 <= value < _MAX_INT:
        return None
    return f"must be an integer from 0 to 2**63 - 1, got {value!r:.60}"


def _error(value: Any) -> str | None:
    """A sentence on a wrong ratio of error to allowed error: above 1 the row says itself that its config is wrong."""
    if type(value) is int and 0 <= value <= PPM:
        return None
    return f"must be an integer from 0 to {PPM}, the largest error of a right result, got {value!r:.60}"


def _flag(value: Any) -> str | None:
    return None if type(value) is bool else f"must be true or false, got {value!r:.60}"


def _config(value: Any, depth: int = 0) -> str | None:
    """Knobs with plain values, or parts with such knobs."""
    if not is_mapping(value):
        return f"must be an object, got {value!r:.60}"
    for name, knob in value.items():
        fault = None
        if name == "signature":
            fault = "knob 'signature' must have another name, which lookups tell from the field"
        elif is_mapping(knob) and depth == 0:
            fault = _config(knob, 1)
        elif isinstance(knob, dict | list):
            fault = f"knob {name!r:.100} must be a plain value (text, number, true, false or null), got {knob!r:.60}"
        elif type(knob) is int and (wrong := _integer(knob)):
            fault = f"knob {name!r:.100} {wrong}"
        if fault:
            return fault
    return None


def _or_none(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _stored(check: Check, of: Callable[[Decision], Any] | None = None, *, omitted: bool = False) -> dict[str, Any]:
    """The metadata of a stored field.

    ``of`` takes the value from a decision, None takes the attribute of the same name. ``omitted`` leaves an unknown
    value out of the line.
    """
    return {"check": check, "of": of, "omitted": omitted}


def _ppm(value: float | None, base: float = 0.0) -> int | None:
    return None if value is None else round((value - base) * PPM)


_MAYBE_COUNT = _or_none(_count)
_MAYBE_INTEGER = _or_none(_integer)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One decision as a pack holds it. Times are integer nanoseconds, ``*_ppm`` parts per million; None is unknown.

    Attributes:
      op: name of the op, from the name of the shard.
      direction: name of the direction, from the name of the shard.
      device: digest of the device, a key of the manifest's table.
      signature: text of the signature.
      kernel: name of the kernel within the op.
      rank: place among the kernels of the problem; 0 is the winner.
      config: the knobs.
      state: why this config, a value of ``Rule``.
      env: digest of the environment, a key of the manifest's table.
      median_ns: median time of the config.
      heuristic_ns: median time of the kernel's untuned config.
      gain_ppm: untuned time over chosen time, minus one.
      regret_ppm: bound on chosen time over the best time seen, minus one.
      error_ppm: largest ratio of error to allowed error.
      samples: number of timed samples.
      repeatable: False where runs on equal inputs gave different bits.
      features: number of feature problems that the config passed.
    """

    op: str
    direction: str
    device: str = field(metadata=_stored(_text, lambda d: d.device.digest))
    signature: str = field(metadata=_stored(_text, lambda d: d.signature.text))
    kernel: str = field(metadata=_stored(_kernel, lambda d: d.kernel.partition("/")[2]))
    rank: int = field(metadata=_stored(_count))
    config: Mapping[str, Any] = field(metadata=_stored(_config))
    state: str = field(metadata=_stored(_state, lambda d: d.rule.value))
    env: str = field(metadata=_stored(_text, lambda d: d.environment.digest))
    median_ns: int | None = field(default=None, metadata=_stored(_MAYBE_COUNT))
    heuristic_ns: int | None = field(default=None, metadata=_stored(_MAYBE_COUNT))
    gain_ppm: int | None = field(default=None, metadata=_stored(_MAYBE_INTEGER, lambda d: _ppm(d.gain, 1)))
    regret_ppm: int | None = field(default=None, metadata=_stored(_MAYBE_INTEGER, lambda d: _ppm(d.regret_bound)))
    error_ppm: int | None = field(default=None, metadata=_stored(_or_none(_error), lambda d: _ppm(d.worst_error)))
    samples: int = field(default=0, metadata=_stored(_count))
    repeatable: bool | None = field(default=None, metadata=_stored(_or_none(_flag), omitted=True))
    features: int | None = field(default=None, metadata=_stored(_MAYBE_COUNT, omitted=True))

    @property
    def key(self) -> tuple[str, str, str, str]:
        """(device, signature, direction, kernel). A pack holds one row of each."""
        return (self.device, self.signature, self.direction, self.kernel)

    @property
    def proof(self) -> Proof:
        """The proof of the config."""
        return Proof.of(self.error_ppm, self.features)

    @property
    def is_proven(self) -> bool:
        """Whether the config was compared with the reference, and passed feature problems as far as that is known."""
        return self.proof in (Proof.PROVEN, Proof.UNCOUNTED)

    @property
    def doubts(self) -> tuple[str, ...]:
        """The reasons to refuse the row with any config: only a job that allows them gets it.

        The decision digest does not cover it.
        """
        found = {
            "bits differ from run to run": self.repeatable is False,
            "unproven": self.proof is Proof.UNPROVEN,
        }
        return tuple(doubt for doubt, is_one in found.items() if is_one)

    @property
    def line(self) -> str:
        """The row as a shard holds it, canonical JSON."""
        values = {name: getattr(self, name) for name, _, _ in _CHECKS} | {"config": dict(self.config)}
        return canonical_json({k: v for k, v in values.items() if v is not None or k not in _OMITTED})

    @property
    def decides(self) -> str:
        """The part of the row that the decision digest covers, canonical JSON."""
        key = [self.device, self.signature, self.direction, self.kernel]
        return canonical_json([*key, self.rank, dict(self.config)])

    @classmethod
    def of(cls, decision: Decision) -> Self:
        """The row of ``decision``."""
        taken = {f.name: f.metadata["of"] for f in _STORED}
        values = {n: of(decision) if of else getattr(decision, n) for n, of in taken.items()}
        return cls(op=decision.op, direction=decision.direction, **values)


_STORED = tuple(f for f in fields(Row) if f.metadata)
_OMITTED = frozenset(f.name for f in _STORED if f.metadata["omitted"])
_CHECKS = tuple((f.name, f.metadata["check"], f.default is MISSING) for f in _STORED)


def parse_row(data: Any, *, op: str, direction: str) -> Row:
    """The row of one parsed line. Fields that a newer writer added are ignored.

    Raises:
      IntegrityError: a field is missing or wrong, or the row is of another op.
    """
    if not is_mapping(data):
        raise IntegrityError("it is not an object")
    known: dict[str, Any] = {}
    for name, check, is_required in _CHECKS:
        if name in data:
            known[name] = value = data[name]
            if fault := check(value):
                raise IntegrityError(f"{name} {fault}")
        elif is_required:
            raise IntegrityError(f"it lacks {name!r}")
    if not known["signature"].startswith(f"{op}/v"):
        raise IntegrityError(f"signature {known['signature']!r} is not of {op}")
    return Row(op=op, direction=direction, **known)


def decision_digest(rows: Iterable[Row]) -> str:
    """The digest of keys, ranks and configs: packs that decide the same have the same one, on any evidence.

    It covers ``Row.decides``, one line a row, sorted.
    """
    return digest_text("\n".join(sorted(row.decides for row in rows)))
