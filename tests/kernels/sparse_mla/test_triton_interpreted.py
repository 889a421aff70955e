"""The Triton kernel of ``sparse_mla`` in Triton's interpreter against numpy."""

import pytest

from tests.chosen import chosen
from tests.kernels.scripts import run_selected
from tests.kernels.sparse_mla.triton_cases import CASES, TESTED
from tests.kernels.triton_interpreter import name_of


@pytest.fixture(scope="module")
def verdicts(request):
    return run_selected(request, "tests.kernels.sparse_mla.triton_cases")


@pytest.mark.slow
@pytest.mark.parametrize("name", chosen(map(name_of, CASES), TESTED))
def test_the_interpreted_sparse_mla_is_right(name, verdicts):
    assert [line for line in verdicts if line.startswith(f"{name} ")] == [f"{name} right"]
