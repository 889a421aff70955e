"""cuDNN has no knobs; its config is empty so that it is swept, decided and packed like any other kernel."""

from dataclasses import dataclass

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Nothing to choose."""
