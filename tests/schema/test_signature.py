"""Signatures: canonical text, digests that live on, and a key that misses nothing."""

import dataclasses

import pytest
from hypothesis import given, strategies as st

from attn_tune.ops.flash_attention.problem import FIELDS, Problem
from attn_tune.ops.registry import get_op
from attn_tune.schema import Field, FieldKind, Signature, UsageError
from attn_tune.tuner.plan.case import merge_points
from attn_tune.tuner.plan.grid import load_grid

BASE = Problem(batch=2, q_len=128, kv_len=256, num_q_heads=8, num_kv_heads=2, head_dim=64, v_head_dim=64)

dims = st.sampled_from(["b1ts", "1n1s", "bnts", "111s", None])
problems = st.builds(
    lambda kv_heads, group, segments, **kw: Problem(
        num_q_heads=kv_heads * group,
        num_kv_heads=kv_heads,
        has_segments=segments > 0,
        has_lengths=segments > 1,
        **kw,
    ),
    kv_heads=st.integers(1, 8),
    group=st.integers(1, 8),
    batch=st.integers(1, 64),
    q_len=st.integers(1, 5000),
    kv_len=st.integers(1, 5000),
    head_dim=st.integers(1, 256),
    v_head_dim=st.integers(1, 256),
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    causal=st.booleans(),
    window=st.tuples(st.none() | st.integers(0, 4096), st.none() | st.integers(0, 4096)),
    mask_dims=dims,
    bias_dims=dims,
    segments=st.integers(0, 2),
    has_positions=st.booleans(),
    has_sinks=st.booleans(),
    logits_dtype=st.sampled_from(["float32", "bfloat16"]),
    precision=st.sampled_from(["default", "highest"]),
)


@given(problems)
def test_text_problem_and_signature_round_trip(problem):
    signature = problem.signature
    assert Signature.parse(signature.text, FIELDS) == signature
    assert Problem.from_signature(signature).signature == signature


def test_text_is_readable_and_leaves_defaults_out():
    text = dataclasses.replace(BASE, causal=True).signature.text
    assert text == "flash_attention/v1 b=2 t=128 s=256 n=8 k=2 h=64 v=64 dtype=bfloat16 causal=1"


# Every field of a problem that changes what is computed, with another value; scale, the cap's value and the dropout
# rate are deliberately not in the key.
CHANGES = {
    "batch": 3,
    "q_len": 129,
    "kv_len": 257,
    "num_q_heads": 16,
    "num_kv_heads": 4,
    "head_dim": 128,
    "v_head_dim": 128,
    "dtype": "float16",
    "causal": True,
    "window": (7, None),
    "mask_dims": "b1ts",
    "bias_dims": "1nts",
    "has_segments": True,
    "has_positions": True,
    "has_sinks": True,
    "soft_cap": 50.0,
    "dropout_rate": 0.1,
    "logits_dtype": "bfloat16",
    "precision": "highest",
}


def test_every_field_but_scale_and_what_is_done_with_the_lse_is_in_the_key():
    outside = {"scale", "has_lse_gradient", "needs_lse"}
    assert {f.name for f in dataclasses.fields(Problem)} == set(CHANGES) | outside | {"has_lengths", "has_offsets"}
    keys = {dataclasses.replace(BASE, **{k: v}).signature.digest for k, v in CHANGES.items()}
    assert len(keys | {BASE.signature.digest}) == len(CHANGES) + 1
    padded = dataclasses.replace(BASE, has_segments=True, has_lengths=True)
    packed = dataclasses.replace(BASE, has_segments=True, batch=1)
    of_offsets = dataclasses.replace(packed, has_offsets=True)
    assert padded.signature.digest not in keys | {BASE.signature.digest}
    assert of_offsets.signature.text == f"{packed.signature.text} ids=0"
    other = dataclasses.replace(BASE, scale=0.5, has_lse_gradient=True, needs_lse=False)
    assert other.signature == BASE.signature


def test_lengths_come_with_the_segments_that_say_the_same():
    with pytest.raises(UsageError, match=r"len=1.*seg=1"):
        dataclasses.replace(BASE, has_lengths=True)


@pytest.mark.parametrize(
    ("other", "given"),
    [({"batch": 2}, "b=2"), ({"has_segments": False}, "seg=0"), ({"has_lengths": True}, "len=1")],
)
def test_offsets_come_with_the_segments_of_a_batch_of_one(other, given):
    packed = dataclasses.replace(BASE, batch=1, has_segments=True, has_offsets=True)
    with pytest.raises(UsageError, match=rf"ids=0.*got {given}; leave ids out"):
        dataclasses.replace(packed, **other)


def test_a_new_field_at_its_default_keeps_old_digests():
    new = (*FIELDS, Field(name="fresh", kind=FieldKind.CATEGORICAL, is_int=True, default=0))
    values = BASE.signature.values
    assert Signature.build("flash_attention", 1, new, values | {"fresh": 0}) == BASE.signature
    assert Signature.build("flash_attention", 1, new, values | {"fresh": 1}) != BASE.signature


@pytest.mark.parametrize("number", ["99999999999999999999999", "2147483648", "-2147483649"])
def test_a_number_beyond_int32_is_refused(number):
    text = f"flash_attention/v1 b={number} t=1 s=1 n=1 k=1 h=8 v=8 dtype=float32"
    with pytest.raises(UsageError, match=f"b={number} of flash_attention is out of range"):
        Signature.parse(text, FIELDS)


def test_a_number_of_many_digits_is_refused_in_few_words():
    rest = {"t": 1, "s": 1, "n": 1, "k": 1, "h": 8, "v": 8, "dtype": "float32"}
    for digits in ("9" * 4000, "9" * 5000):  # Python reads no more than 4300
        text = f"flash_attention/v1 b={digits} t=1 s=1 n=1 k=1 h=8 v=8 dtype=float32"
        with pytest.raises(UsageError) as error:
            Signature.parse(text, FIELDS)
        assert len(str(error.value)) < 300
    with pytest.raises(UsageError, match="out of range"):
        Signature.build("flash_attention", 1, FIELDS, rest | {"b": 10**5000})


def test_causal_makes_the_right_bound_redundant():
    one = dataclasses.replace(BASE, causal=True, window=(7, 3))
    other = dataclasses.replace(BASE, causal=True, window=(7, None))
    assert one == other
    assert one.bounds == (7, 0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense", "must start with OP/vN"),
        ("attention/v²", "must start with OP/vN"),
        ("attention/v" + "9" * 5000, "must start with OP/vN"),
        ("flash_attention/v1 b=1", "needs the field 't'"),
        ("flash_attention/v1 b=1 b=2", "appears twice"),
        ("flash_attention/v1 b=x", "is not an integer"),
        ("flash_attention/v1 zz=1", "unknown field 'zz'; known: b, "),
        (BASE.signature.text + " causl=1", r"unknown field 'causl'; did you mean 'causal'"),
        (BASE.signature.text + " causal", "'causal' must be FIELD=VALUE"),
        (BASE.signature.text + " causal=0", "not canonical"),
    ],
)
def test_a_malformed_text_is_refused(text, complaint):
    with pytest.raises(UsageError, match=complaint):
        Signature.parse(text, FIELDS)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"batch": 0}, r"b=0 \(batch\) must be a positive integer"),
        ({"num_q_heads": 7}, r"n=7 \(num_q_heads\) must be a multiple of k=2 \(num_kv_heads\)"),
        ({"dtype": "int8"}, "dtype='int8' must be one of bfloat16, float16, float32"),
        ({"dtype": "bfloat61"}, r"must be one of .*; did you mean 'bfloat16'"),
        ({"window": (-1, None)}, r"left=-1 \(window\) must be non-negative"),
        ({"mask_dims": "bnt"}, r"mask='bnt' \(mask_dims\)"),
        ({"soft_cap": 0.0}, "logits_soft_cap must be positive"),
        ({"dropout_rate": 1.0}, "dropout_rate"),
        (
            {"precision": "hihg"},
            r"prec='hihg' \(precision\) must be one of .*; did you mean 'high'",
        ),
        ({"logits_dtype": "int8"}, r"logits='int8' \(logits_dtype\) must be one of"),
    ],
)
def test_an_impossible_problem_is_refused(change, complaint):
    with pytest.raises(UsageError, match=complaint):
        dataclasses.replace(BASE, **change)


def pairs(problem, left, right):
    """The visible pairs, counted one by one."""
    count = 0
    for i in range(problem.q_len):
        p = i + problem.kv_len - problem.q_len
        for j in range(problem.kv_len):
            count += (left is None or j >= p - left) and (right is None or j <= p + right)
    return count


@given(problems)
def test_visible_pairs_agree_with_the_mask_written_out(problem):
    problem = dataclasses.replace(problem, q_len=problem.q_len % 40 + 1, kv_len=problem.kv_len % 40 + 1)
    assert problem.visible_pairs == pairs(problem, *problem.bounds)


@given(
    q_len=st.integers(1, 9),
    kv_len=st.integers(1, 9),
    causal=st.booleans(),
    window=st.tuples(*[st.none() | st.integers(0, 10)] * 2),
)
def test_bounds_that_hide_nothing_are_left_out_and_others_are_kept(q_len, kv_len, causal, window):
    said = Problem(
        batch=1, q_len=q_len, kv_len=kv_len, num_q_heads=1, num_kv_heads=1, head_dim=64,
        v_head_dim=64, scale=1.0, causal=causal, window=window,
    )  # fmt: skip
    left, right = window[0], 0 if causal else window[1]
    assert pairs(said, *said.bounds) == pairs(said, left, right)
    kept_left, kept_right = said.bounds
    if kept_left is not None:
        assert pairs(said, None, kept_right) > said.visible_pairs
    if kept_right is not None:
        assert pairs(said, kept_left, None) > said.visible_pairs
    positions = dataclasses.replace(said, causal=causal, window=window, has_positions=True)
    assert positions.bounds == (left, right)


def test_a_window_as_long_as_the_keys_is_looked_up_and_swept_as_none():
    plain = "flash_attention/v1 b=2 t=430 s=430 n=28 k=4 h=128 v=128 dtype=bfloat16 causal=1"
    assert get_op("flash_attention").problem_signature(f"{plain} left=1023").text == plain
    texts = (plain, f"{plain} left=429", f"{plain} left=428")
    points = merge_points(point for text in texts for point in load_grid(text).points)
    assert [point.signature.text for point in points] == [plain, f"{plain} left=428"]
