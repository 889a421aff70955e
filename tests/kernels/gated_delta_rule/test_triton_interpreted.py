"""The Triton kernels in Triton's interpreter against the op's reference, by the rule of proof."""

import pytest

from tests.chosen import chosen
from tests.kernels.gated_delta_rule.triton_cases import CASES, TESTED
from tests.kernels.scripts import run_selected


@pytest.fixture(scope="module")
def verdicts(request):
    return run_selected(request, "tests.kernels.gated_delta_rule.triton_cases")


@pytest.mark.slow
@pytest.mark.parametrize("name", chosen(CASES, TESTED))
def test_outputs_and_gradients_are_right(name, verdicts):
    assert [line for line in verdicts if line.startswith(f"{name} ")] == [f"{name} right"]
