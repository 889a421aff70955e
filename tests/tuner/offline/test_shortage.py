"""Reads numbers from a compiler's error."""

import pytest

from attn_tune.kernels.lang.triton.limits import OutOfResources
from attn_tune.schema.trial import Shortage
from attn_tune.tuner.offline.compilers.shortage import shortage_of

SCOPED = (
    "RESOURCE_EXHAUSTED: E1001: CompileTimeScopedVmemOom: Ran out of memory in memory space vmem while allocating on "
    "stack for %f = custom-call(). Scoped allocation with size {} and limit {} exceeded scoped vmem limit by {}."
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SCOPED.format("28.54M", "16.00M", "12.54M"), ("vmem", round(28.54 * 2**20), 16 * 2**20)),
        (SCOPED.format("900.5K", "512.0K", "388.5K"), ("vmem", round(900.5 * 2**10), 2**19)),
        (
            "Ran out of memory in memory space hbm. Used 33.10G of 31.25G hbm. Exceeded hbm capacity",
            ("hbm", round(33.10 * 2**30), round(31.25 * 2**30)),
        ),
        (
            "Ran out of memory in memory space smem. Used 1.5M of 1.0M smem.",
            ("smem", 3 << 19, 1 << 20),
        ),
        ("INTERNAL: Mosaic failed to compile TPU kernel", None),
    ],
)
def test_a_shortage_is_read_in_bytes(text, expected):
    found = shortage_of(RuntimeError(text))
    assert found == (expected and Shortage(resource=expected[0], needed=expected[1], limit=expected[2]))


def test_an_error_that_carries_its_numbers_is_believed():
    error = OutOfResources("kernel", 90, 300_000, 232_448, "shared memory")
    assert shortage_of(error) == Shortage(resource="shared memory", needed=300_000, limit=232_448)
