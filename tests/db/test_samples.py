"""Samples as bytes: exact, small, and refused when they cannot be."""

import pytest
from hypothesis import given, strategies as st

from attn_tune.db.samples import decode_samples, encode_samples

samples = st.lists(st.integers(1, 2**63 - 1), min_size=1, max_size=60)


@given(samples, st.data())
def test_any_samples_come_back(found, data):
    median = data.draw(st.sampled_from(found))
    assert decode_samples(encode_samples(found, median), median) == tuple(found)


@pytest.mark.parametrize(
    ("samples", "median", "coded"),
    [
        ((100,), 100, "00"),
        ((99, 100, 101), 100, "010002"),
        ((36, 163, 164), 100, "7f7e8001"),
        ((100 - 64, 100 + 8191), 100, "7ffe7f"),
    ],
)
def test_the_code_is_the_documented_one(samples, median, coded):
    assert encode_samples(samples, median).hex() == coded
    assert decode_samples(bytes.fromhex(coded), median) == samples


@pytest.mark.parametrize("sample", [0, -5, 2**63])
def test_what_is_no_sample_is_refused(sample):
    with pytest.raises(ValueError, match=f"got {sample}"):
        encode_samples([10, sample], 10)


def test_bytes_cut_short_are_noticed():
    whole = encode_samples([10**6, 1], 10**6)
    with pytest.raises(ValueError, match="end inside a sample"):
        decode_samples(whole[:-1], 10**6)
