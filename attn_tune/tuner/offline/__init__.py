"""Sweeps for devices that are not here: compile, refuse with numbers, predict. Nothing is measured.

Experimental: the schedules are read from text that libtpu writes for debugging.
"""

from attn_tune.tuner.offline.compile_sweep import sweep_target as sweep_target
from attn_tune.tuner.offline.compilers.pool import CompilePool as CompilePool
from attn_tune.tuner.offline.target import (
    NAMES as NAMES,
    Target as Target,
    find_target as find_target,
)
