"""Distance between signatures: bounds, resources, what never matches."""

import dataclasses
import math

import pytest
from hypothesis import given, strategies as st

from attn_tune.ops.registry import get_op
from attn_tune.runtime.lookup.signature_distance import _OF_MORE, distance, same_bucket, shape_of
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
        (sig(1024, pages=3), sig(1024, pages=4), _OF_MORE),
        (sig(1024, pages=5), sig(1024, pages=4), None),
        (sig(1024), sig(1024, pages=4), _OF_MORE),
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


def test_a_row_of_ids_answers_for_offsets_and_not_the_other_way_round():
    op = get_op("flash_attention")
    ids, offsets = (
        shape_of(
            op.parse_signature(f"flash_attention/v1 b=1 t=8 s=8 n=1 k=1 h=8 v=8 dtype=float16 seg=1{more}"), op.fields
        )
        for more in ("", " ids=0")
    )
    assert (distance(offsets, ids), distance(ids, offsets)) == (_OF_MORE, None)


LONGER = tuple(dataclasses.replace(f, order_with="t") if f.name == "left" else f for f in FIELDS)


@pytest.mark.parametrize(
    ("asked", "tuned", "lends"),
    [
        ((64, 128), (64, 128), True),
        ((60, 128), (64, 100), True),
        ((64, 64), (128, 128), True),
        ((64, 128), (128, 128), False),
        ((128, 128), (100, 128), False),
        ((128, 100), (100, 128), False),
        ((100, None), (128, None), True),
    ],
)
def test_values_near_one_another_in_another_order_never_match(asked, tuned, lends):
    def of(t, left):
        more = {} if left is None else {"left": left}
        return shape_of(Signature.parse(sig(t, **more), LONGER), LONGER)

    a, b = of(*asked), of(*tuned)
    assert (distance(a, b) is not None) is lends
    assert lends or not same_bucket(a, b)
    # Without the declaration all of them are near enough.
    assert distance(dataclasses.replace(a, order=()), dataclasses.replace(b, order=())) is not None


@pytest.mark.parametrize("op", ["flash_attention", "attention"])
def test_a_row_for_as_many_queries_as_keys_is_none_for_more_or_fewer(op):
    fields = get_op(op).fields

    def of(t, s):
        text = f"{op}/v1 b=1 t={t} s={s} n=8 k=8 h=64 v=64 dtype=bfloat16 causal=1"
        return shape_of(Signature.parse(text, fields), fields)

    square = of(128, 128)
    assert distance(of(100, 100), square) is not None
    assert distance(of(64, 128), square) is None
    assert distance(of(128, 64), square) is None
    assert distance(of(64, 128), of(64, 100)) is not None


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
