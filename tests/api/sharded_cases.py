"""Cases of the scripts that shard calls of one op: what is cut, and whether the axes of the mesh are in types."""

import sys

import pytest

from tests.chosen import exhaustive

KINDS = ("Auto", "Explicit")


def every(names):
    """All cases, such as ``heads-Auto``."""
    return [f"{name}-{kind}" for name in names for kind in KINDS]


def asked_for():
    """A name and a kind of axes for each argument of this process."""
    from jax.sharding import AxisType

    return [(name, AxisType[kind]) for name, _, kind in (word.partition("-") for word in sys.argv[1:])]


def kept(*cases, of):
    """The parameters of a test: ``cases`` together, and as exhaustive ones those of all names of ``of``."""
    found = [list(cases), exhaustive(every(of))]
    return pytest.mark.parametrize("cases", found, ids=["kept", "every"])
