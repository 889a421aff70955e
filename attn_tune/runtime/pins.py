"""One config that somebody wants, whatever the packs say."""

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """``kernel`` with ``config_json`` for every question of ``op`` and ``direction``, or for one signature.

    Hashable and equal by what it says: it is part of JAX's jit key.
    """

    op: str
    direction: str
    kernel: str
    config_json: str
    signature: str = ""

    @property
    def config(self) -> dict[str, Any]:
        """The config as plain data."""
        return json.loads(self.config_json)

    def concerns(self, op: str, direction: str, signature: str, kernel: str | None) -> bool:
        """Whether it has a say in this question; ``kernel`` None is any."""
        return (
            (self.op, self.direction) == (op, direction)
            and self.signature in ("", signature)
            and kernel in (None, self.kernel)
        )

    def __str__(self) -> str:
        return f"pin of {self.op}.{self.direction}" + (
            f" {self.signature}" if self.signature else ""
        )
