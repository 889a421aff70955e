"""Sweeps for devices that are not here: compile, refuse with numbers, predict. Nothing is ever measured."""

from attn_tune.tuner.targets.pool import CompilePool as CompilePool
from attn_tune.tuner.targets.sweep import sweep_target as sweep_target
from attn_tune.tuner.targets.target import (
    NAMES as NAMES,
    Target as Target,
    find_target as find_target,
)
