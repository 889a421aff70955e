"""One config that somebody wants, whatever the packs say: within a ``with`` block, or in a file for a user's jobs."""

import json
import shlex
from dataclasses import dataclass
from typing import Any

from attn_tune.schema.device import Device
from attn_tune.schema.digest import canonical_json, digest_text


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """``kernel`` with ``config_json`` for every question of ``op`` and ``direction``, or for one signature.

    Hashable and equal by what it says: it is part of JAX's jit key. ``device`` is a variant or a family, ``""`` any;
    ``reason`` and ``origin``, the file it is in, are for people.
    """

    op: str
    direction: str
    kernel: str
    config_json: str
    signature: str = ""
    device: str = ""
    reason: str = ""
    origin: str = ""

    @property
    def config(self) -> dict[str, Any]:
        """The config as plain data."""
        return json.loads(self.config_json)

    @property
    def condition(self) -> tuple[str, str, str, str]:
        """What it speaks of: a file holds one pin of each."""
        return (self.op, self.direction, self.signature, self.device)

    @property
    def line(self) -> str:
        """As a file holds it: canonical JSON, without what matches everything."""
        names = ("op", "direction", "kernel", "signature", "device", "reason")
        said = {name: getattr(self, name) for name in names if getattr(self, name)}
        return canonical_json({**said, "config": self.config})

    @property
    def id(self) -> str:
        """A short name of what it says."""
        return digest_text(self.line)[3:11]

    @property
    def ended_by(self) -> str:
        """The way to end it: a command for a pin of a file; the end of its block for one of a program."""
        if self.origin:
            return f"attn-tune override pin remove {self.id} --file {shlex.quote(self.origin)}"
        return "leave its 'with attn_tune.pin(...)' block"

    def concerns(
        self, op: str, direction: str, signature: str, kernel: str | None, device: Device
    ) -> bool:
        """Whether it has a say in this question; ``kernel`` None is any."""
        return (
            (self.op, self.direction) == (op, direction)
            and self.signature in ("", signature)
            and self.device in ("", device.variant, device.family)
            and kernel in (None, self.kernel)
        )

    def __str__(self) -> str:
        words = [f"pin of {self.op}.{self.direction}", self.signature, self.device]
        return " ".join(filter(None, words)) + (f" in {self.origin}" if self.origin else "")
