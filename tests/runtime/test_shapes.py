"""Distance between signatures: bounds, resources, what never matches."""

import math

import pytest
from hypothesis import given, strategies as st

from attn_tune.runtime.shapes import distance, same_bucket, shape_of
from attn_tune.schema import Signature
from tests.runtime.packbuilder import FIELDS, sig


def shape(text):
    return shape_of(Signature.parse(text, FIELDS), FIELDS)


@pytest.mark.parametrize(
    ("asked", "tuned", "expected"),
    [
        (sig(1024), sig(1024), 0.0),
        (sig(1024), sig(2048), 1.0),
        (sig(2048), sig(1024), 1.0),
        (sig(1024), sig(2049), None),
        (sig(2049), sig(1024), None),
        (sig(1024, b=2), sig(2048, b=1), 2.0),
        (sig(1024, b=3), sig(1024, b=1), None),
        (sig(1536), sig(1024), math.log2(1.5)),
        (sig(1024), sig(1024, h=128), None),
        (sig(1024), sig(1024, dtype="float16"), None),
        (sig(1024, left=128), sig(1024), None),
        (sig(1024, left=128), sig(1024, left=256), 1.0),
        (sig(1024, left=0), sig(1024, left=1), None),
        (sig(1024, left=0), sig(1024, left=0), 0.0),
        (sig(1024, pages=3), sig(1024, pages=4), 0.0),
        (sig(1024, pages=5), sig(1024, pages=4), None),
        (sig(1024), sig(1024, pages=4), 0.0),
    ],
)
def test_distance(asked, tuned, expected):
    found = distance(shape(asked), shape(tuned))
    assert found == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [(1025, 2048, True), (1024, 1025, False), (2048, 2049, False), (1, 1, True), (2, 3, False)],
)
def test_buckets_end_at_powers_of_two(a, b, expected):
    assert same_bucket(shape(sig(a)), shape(sig(b))) is expected


LENGTHS = st.integers(1, 1 << 20)


@given(LENGTHS, LENGTHS, LENGTHS)
def test_a_bucket_is_a_class_and_lies_within_the_neighbourhood(a, b, c):
    x, y, z = (shape(sig(t)) for t in (a, b, c))
    assert same_bucket(x, x)
    assert same_bucket(x, y) == same_bucket(y, x)
    if same_bucket(x, y):
        assert same_bucket(y, z) == same_bucket(x, z)
        assert distance(x, y) is not None
    assert distance(x, y) == distance(y, x)
