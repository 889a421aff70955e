"""The empty config of a kernel that has no knobs."""

from dataclasses import dataclass

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Nothing to choose."""
