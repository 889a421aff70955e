"""The empty config of a kernel that has no knobs."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Nothing to choose."""
