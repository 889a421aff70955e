"""One row of a pack: what to run for one problem on one device."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from attn_tune.schema.decision import Rule
from attn_tune.schema.digest import canonical_json, digest_text
from attn_tune.schema.errors import IntegrityError

type Scalar = bool | int | float | str | None

_KERNEL = re.compile(r"[A-Za-z0-9_.-]{1,100}")
MAX_TEXT = 1000
STATES = frozenset(rule.value for rule in Rule)
_MAX_INT = 2**63


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One decision as a pack holds it.

    ``device`` and ``env`` are digests into the manifest's tables. ``rank`` 0 is the winner across kernels. Times are
    integer nanoseconds; ``*_ppm`` are parts per million (gain over the heuristic, bound on the regret, largest ratio of
    error to allowed error). ``repeatable`` is False where runs on equal inputs gave different bits, ``features`` how
    many feature problems the config passed. None is unknown.
    """

    op: str
    direction: str
    device: str
    signature: str
    kernel: str
    rank: int
    config: Mapping[str, Any]
    state: str
    env: str
    median_ns: int | None = None
    heuristic_ns: int | None = None
    gain_ppm: int | None = None
    regret_ppm: int | None = None
    error_ppm: int | None = None
    samples: int = 0
    repeatable: bool | None = None
    features: int | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What at most one row of a pack may answer: (device, signature, direction, kernel)."""
        return (self.device, self.signature, self.direction, self.kernel)

    @property
    def doubts(self) -> tuple[str, ...]:
        """The reasons to turn the row down, whatever its config: only a job that allows them gets it.

        The decision digest does not cover it.
        """
        found = {
            "bits differ from run to run": self.repeatable is False,
            "unproven": self.features == 0,
        }
        return tuple(doubt for doubt, is_one in found.items() if is_one)


_STORED = tuple(f.name for f in fields(Row) if f.name not in ("op", "direction"))
_TEXTS = ("device", "signature", "kernel", "state", "env")
OPTIONAL = ("median_ns", "heuristic_ns", "gain_ppm", "regret_ppm", "error_ppm", "features")
# Fields that the writer leaves out if they are unknown; rows of earlier writers lack them too.
OMITTED = ("repeatable", "features")
_NUMBERS = ("rank", "samples", *OPTIONAL)
_SIGNED = ("gain_ppm", "regret_ppm")
_REQUIRED = (*_TEXTS, "rank", "config")


def decision_digest(rows: Iterable[Row]) -> str:
    """The digest of key -> config alone: packs that decide the same have the same one, whatever their evidence.

    The canonical JSON of ``[device, signature, direction, kernel, rank, config]``, one line a row, sorted.
    """
    return digest_lines(map(decision_line, rows))


def decision_line(row: Row) -> str:
    """What the decision digest covers of one row."""
    return canonical_json(
        [row.device, row.signature, row.direction, row.kernel, row.rank, dict(row.config)]
    )


def digest_lines(lines: Iterable[str]) -> str:
    """The decision digest of rows given as ``decision_line``."""
    return digest_text("\n".join(sorted(lines)))


def row_from_json(data: Any, *, op: str, direction: str) -> Row:
    """Reads one row of a shard. Fields that a newer writer added are ignored.

    Raises:
      IntegrityError: a field is missing or of the wrong type, or the row is of another op.
    """
    if not isinstance(data, dict):
        raise IntegrityError("it is not an object")
    known = {name: data[name] for name in _STORED if name in data}
    for name in _REQUIRED:
        if name not in known:
            raise IntegrityError(f"it lacks {name!r}")
    for name in _TEXTS:
        value = known[name]
        if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
            raise IntegrityError(f"{name} must be a text of at most {MAX_TEXT} characters")
    if not _KERNEL.fullmatch(known["kernel"]):
        raise IntegrityError(f"kernel {known['kernel'][:100]!r} is not a kernel's name")
    if not known["signature"].startswith(f"{op}/v"):
        raise IntegrityError(f"signature {known['signature']!r} is not of {op}")
    if known["state"] not in STATES:
        raise IntegrityError(f"state {known['state']!r} is none of {', '.join(Rule)}")
    for name in _NUMBERS:
        value = known.get(name, 0)
        if value is None and name in OPTIONAL:
            continue
        if type(value) is not int or not -_MAX_INT <= value < _MAX_INT:
            raise IntegrityError(f"{name} must be an integer, got {value!r:.60}")
        if value < 0 and name not in _SIGNED:
            raise IntegrityError(f"{name} must not be negative, got {value}")
    if type(known.get("repeatable")) not in (bool, type(None)):
        raise IntegrityError(f"repeatable must be true or false, got {known['repeatable']!r:.60}")
    check_config(known["config"])
    return Row(op=op, direction=direction, **known)


def check_config(config: Any, depth: int = 0) -> None:
    """Refuses what is no config: knobs with plain values, or parts with such knobs.

    Raises:
      IntegrityError: a value is nested deeper, or is an integer out of range.
    """
    if not isinstance(config, dict):
        raise IntegrityError(f"config must be an object, got {type(config).__name__}")
    for name, value in config.items():
        if type(value) is int and not -_MAX_INT <= value < _MAX_INT:
            raise IntegrityError(f"config knob {name!r:.100} is out of range")
        if isinstance(value, dict) and depth == 0:
            check_config(value, depth + 1)
        elif isinstance(value, dict | list):
            raise IntegrityError(f"config knob {name!r:.100} must be a plain value")
