"""One small lab for all tests of the page."""

import pytest

from tests.reports.page import labs


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    return labs.fill(tmp_path_factory.mktemp("lab") / "lab.db")


@pytest.fixture(scope="session")
def data(lab):
    return labs.data_of(lab, {labs.MAIN.text: "model/4k", labs.TIED.text: "model/512"})
