"""Types of ml_dtypes whose own source tells checkers to look away: ``jax.numpy.finfo`` is its ``finfo``."""

from typing import Any

from numpy import finfo as finfo

def __getattr__(name: str) -> Any: ...
