"""Parameters of the tests of a run, for a fixture that serves a whole module."""

import pytest


def values_asked_for(request: pytest.FixtureRequest, argument: str) -> set:
    """The values of the parameter ``argument`` among the module's tests that are not deselected."""
    own = (item for item in request.session.items if item.path == request.path and hasattr(item, "callspec"))
    return {item.callspec.params[argument] for item in own if argument in item.callspec.params}
