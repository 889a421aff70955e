"""Entries of overrides, and the questions and configs that each of them matches."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from attn_tune.schema.config import is_mapping
from attn_tune.schema.device import Device
from attn_tune.schema.digest import canonical_json, digest_text
from attn_tune.schema.signature import Value

TEXTS = ("op", "kernel", "direction", "device", "reason")


class Asked(NamedTuple):
    """A problem on a device, as entries are compared with it.

    Attributes:
      op: name of the op.
      direction: name of the direction.
      device: the device.
      signature: the signature as text.
      values: the fields of the signature, those at their default too.
    """

    op: str
    direction: str
    device: Device
    signature: str
    values: Mapping[str, Value]


@dataclass(frozen=True, kw_only=True, slots=True)
class Frozen:
    """Evidence of a frozen answer. The answer holds as long as the contract and the kernel's source are the same.

    Attributes:
      asked: the kernel that the caller named, ``""`` for any.
      contract: version of the op's contract.
      source_hash: digest of the kernel's source.
      rung: the rung that answered when it was frozen.
      source: the pack that answered then, ``""`` for none.
      pack_digest: digest of that pack.
      repeatable: False where runs of the config on equal inputs gave different bits; None where that is unknown.
    """

    asked: str
    contract: int
    source_hash: str
    rung: str
    source: str
    pack_digest: str
    repeatable: bool | None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Entry:
    """One override: a config to use, or configs never to run. A condition that is empty matches everything.

    Attributes:
      never: whether it forbids; else it answers.
      op: name of the op.
      kernel: name of the kernel within the op.
      direction: name of the direction.
      device: a variant, a family or a whole ``device_name``.
      config: the whole config to use, or the knobs that a config never to run agrees in.
      signature: a whole signature, or the fields that must agree.
      reason: a note for people; that of a ``never`` entry is quoted where it turns something down.
      frozen: evidence, where ``freeze`` wrote the entry.
      origin: path of its file, or the pack that carries it; ``""`` for an entry of the program.
      line: the entry as a file holds it: canonical JSON, without conditions that match everything.
    """

    never: bool = False
    op: str = ""
    kernel: str = ""
    direction: str = ""
    device: str = ""
    config: Mapping[str, Any]
    signature: str | Mapping[str, Value] = ""
    reason: str = ""
    frozen: Frozen | None = None
    origin: str = ""
    line: str = field(init=False)

    def __post_init__(self) -> None:
        names = (*TEXTS, "config", "signature")
        fields = {name: getattr(self, name) for name in names if getattr(self, name)}
        if not self.never:
            fields["config"] = self.config
        if self.frozen:
            fields["frozen"] = asdict(self.frozen)
        object.__setattr__(self, "line", canonical_json(fields))

    @property
    def id(self) -> str:
        """A short name of the content."""
        return digest_text(self.line)[3:11]

    @property
    def condition(self) -> str:
        """The content for people, without the reason: ``kernel triton, device sm_90, config {"num_warps":8}``."""
        fields = {name: getattr(self, name) for name in (*TEXTS[:-1], "config", "signature")}
        words = (v if isinstance(v, str) else canonical_json(v) for v in fields.values() if v)
        names = [name for name, value in fields.items() if value]
        return ", ".join(map(" ".join, zip(names, words, strict=True))) or "everything"

    @property
    def key(self) -> tuple[object, ...]:
        """The subject of the entry: a file holds one of each key."""
        if self.never:
            return (True, self.condition)
        asked = self.frozen.asked if self.frozen else None
        return (False, self.op, self.direction, canonical_json(self.signature), self.device, asked)

    def level(self, asked: Asked) -> int | None:
        """Rank of the entry for a problem, the narrowest first; None if it does not match."""
        devices = (device_name(asked.device), asked.device.variant, asked.device.family, "")
        fits = self.op in ("", asked.op) and self.direction in ("", asked.direction)
        if isinstance(self.signature, str):
            width = 0 if self.signature else 2
            fits = fits and self.signature in ("", asked.signature)
        else:
            width, fits = 1, fits and agrees(self.signature, asked.values, by_text=self.never)
        return 4 * width + devices.index(self.device) if fits and self.device in devices else None

    def forbids(self, asked: Asked, kernel: str, config: Mapping[str, Any]) -> bool:
        """Whether a ``never`` entry forbids this config of ``kernel`` for a problem."""
        is_of = self.kernel in ("", kernel) and agrees(self.config, config, by_text=True)
        return is_of and self.level(asked) is not None

    def __str__(self) -> str:
        return f"override {self.id}" + (f" in {self.origin}" if self.origin else "")


def device_name(device: Device) -> str:
    """The whole name of a device: ``cuda/sm_90/nvidia-h200``, with ``/mig-1g.18gb`` for a slice.

    Clocks and power limits are not in it: they differ between boards, and do not change what a config computes.
    """
    parts = (device.platform, device.family, device.variant, device.partition)
    return "/".join(part for part in parts if part)


def agrees(wanted: Mapping[str, Any], actual: Mapping[str, Any], *, by_text: bool) -> bool:
    """Whether all values that are wanted are those there are; ``by_text`` a number in quotes is that number too.

    A ``never`` entry with such a mistake forbids what was meant, for nothing tells the job of it.
    """
    for name, value in wanted.items():
        if name not in actual:
            return False
        have = actual[name]
        if is_mapping(value) and is_mapping(have):
            if not agrees(value, have, by_text=by_text):
                return False
        elif value != have and not (by_text and str(value) == str(have)):
            return False
    return True
