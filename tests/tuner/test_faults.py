"""From what compilers and drivers say to a status."""

import pytest

from attn_tune.schema.errors import UnsupportedError
from attn_tune.schema.trial import Status
from attn_tune.tuner.faults import outcome_of, short
from attn_tune.tuner.protocol import Phase


class OutOfResources(Exception):
    """As Triton's and the bridge's are called."""


@pytest.mark.parametrize(
    ("error", "phase", "status"),
    [
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"), "validate", "oor"),
        (OutOfResources("needs 300000 of shared memory"), "compile", "oor"),
        (MemoryError(), "measure", "oor"),
        (ValueError("no lowering"), "compile", "compile"),
        (ValueError("bad launch"), "measure", "runtime"),
        (UnsupportedError("sm_70 is too old"), "compile", "unsupported"),
        (RuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"), "validate", "sticky"),
        (RuntimeError("CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address"), "measure", "sticky"),
    ],
)  # fmt: skip
def test_words_decide(error, phase, status):
    outcome = outcome_of(error, Phase(phase))
    expected = {
        "oor": Status.OUT_OF_RESOURCES,
        "compile": Status.COMPILE_ERROR,
        "runtime": Status.RUNTIME_ERROR,
        "unsupported": Status.UNSUPPORTED,
        "sticky": Status.CRASHED,
    }[status]
    assert outcome.status is expected
    assert outcome.sticky is (status == "sticky")
    assert outcome.reason.startswith(phase)
    assert str(error) in outcome.reason


def test_the_cause_counts():
    error = ValueError("lowering failed")
    error.__cause__ = RuntimeError("ptxas: uses too much shared data (0x40000 bytes)")
    assert outcome_of(error, Phase.COMPILE).status is Status.OUT_OF_RESOURCES


def test_the_place_is_named():
    def launch_with_a_bug():
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as caught:
        launch_with_a_bug()
    reason = outcome_of(caught.value, Phase.COMPILE).reason
    assert "launch_with_a_bug, test_faults.py" in reason


def test_long_texts_keep_both_ends():
    text = short("a" * 5000 + "z" * 5000, 100)
    assert len(text) < 120
    assert text.startswith("aaa")
    assert text.endswith("zzz")
