"""Parameters of a test of which ``make test`` runs a part."""

import pytest


def chosen(cases, kept):
    """``cases`` as parameters of a test. Those that are not among ``kept`` have the marker ``exhaustive``."""
    cases, kept = list(cases), list(kept)
    assert all(case in cases for case in kept), "what is kept is one of the cases"
    return [case if case in kept else exhaustive(*(case if isinstance(case, tuple) else (case,))) for case in cases]


def exhaustive(*values):
    """One parameter, or one tuple of them, with the marker ``exhaustive``."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)
