"""Parameters of a test of which ``make test`` runs a part, and those that a session runs."""

import pytest


def chosen(cases, kept):
    """``cases`` as parameters of a test. Those that are not among ``kept`` have the marker ``exhaustive``."""
    cases, kept = list(cases), list(kept)
    assert all(case in cases for case in kept), "what is kept is one of the cases"
    return [case if case in kept else exhaustive(*(case if isinstance(case, tuple) else (case,))) for case in cases]


def exhaustive(*values):
    """One parameter, or one tuple of them, with the marker ``exhaustive``."""
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def values_asked_for(request, argument):
    """The values of the parameter ``argument`` in the tests of this session that are in the file of ``request``.

    Each once and in order, for a fixture that serves a whole module. Tests that are deselected do not count.
    """
    own = (item for item in request.session.items if item.path == request.path and hasattr(item, "callspec"))
    return list(dict.fromkeys(item.callspec.params[argument] for item in own if argument in item.callspec.params))
