"""cuDNN has no knobs; its configs are empty so that it is swept, decided and packed like any other kernel."""

from dataclasses import dataclass

DECIDES_NO_CODE = "names and bounds of knobs; a row holds their values"


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardConfig:
    """Nothing to choose."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BackwardConfig:
    """Nothing to choose."""
