"""The benchmark of rings reads off a compiled program which transfers run beside something else."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PROGRAM = """
  %permute-start.1 = (bf16[8]{0}, bf16[8]{0}) collective-permute-start(%k), channel_id=1
  %attend.1 = bf16[8]{0} custom-call(%q, %k), custom_call_target="kernel"
  %permute-done.1 = bf16[8]{0} collective-permute-done(%permute-start.1)
  %permute-start.2 = (bf16[8]{0}, bf16[8]{0}) collective-permute-start(%v), channel_id=2
  %permute-done.2 = bf16[8]{0} collective-permute-done((bf16[8]{0}, bf16[8]{0}) %permute-start.2)
"""


@pytest.fixture
def transfers(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    # The benchmark's name is also that of this test's subject in other folders.
    monkeypatch.delitem(sys.modules, "ring_attention", raising=False)
    from ring_attention import transfers

    return transfers


def test_transfers_that_run_beside_a_product_are_counted(transfers):
    assert transfers(PROGRAM) == "1/2"
    assert transfers("") == "0/0"
