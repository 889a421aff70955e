"""From arguments to a problem and operands: every spelling, every refusal. No kernel runs here."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.api import call as call_path
from attn_tune.api.flash_attention import flash_attention
from attn_tune.kernels.flash_attention.cudnn.config import ForwardConfig as CudnnConfig
from attn_tune.ops.masks.mask_info import KV_PADDING, Q_PADDING, MaskInfo
from attn_tune.schema.errors import UsageError

B, T, S, N, K, H = 2, 6, 8, 4, 2, 16
MASK = np.random.default_rng(0).random((B, N, T, S)) < 0.7
QUERY, KEY, VALUE = (np.zeros((B, n, h, H), np.float32) for n, h in ((T, N), (S, K), (S, K)))
IDS_Q, IDS_KV = np.zeros((B, T), np.int32), np.zeros((B, S), np.int32)


@pytest.fixture
def seen(monkeypatch):
    """Call ``flash_attention`` without a kernel; gives (problem, operands, request)."""

    def run(*arrays, **arguments):
        caught = []

        def attend(call, problem, operands, request):
            caught.append((problem, operands, request))
            out = jnp.zeros((*operands.q.shape[:3], operands.v.shape[3]))
            return {"out": out, "lse": jnp.zeros((B, N, T))}

        monkeypatch.setattr(call_path, "differentiable", attend)
        flash_attention(*(arrays or (QUERY, KEY, VALUE)), **arguments)
        return caught[0]

    return run


@pytest.mark.parametrize(
    ("given", "want", "dims"),
    [
        (MASK, MASK, "bnts"),
        (MASK.astype(np.int32) * 3, MASK, "bnts"),
        (MASK[:, :1], MASK[:, :1], "b1ts"),
        (MASK[:1, :K], np.repeat(MASK[:1, :K], N // K, axis=1), "1nts"),
        (MASK[:, 0], MASK[:, :1], "b1ts"),
        (MASK[:, 0, 0], MASK[:, :1, :1], "b11s"),
    ],
)
def test_masks_of_every_rank_and_head_count(seen, given, want, dims):
    problem, operands, _ = seen(attention_mask=given)
    assert problem.mask_dims == dims
    np.testing.assert_array_equal(operands.mask, want)


def test_options_in_every_spelling(seen):
    problem, _, _ = seen()
    assert (problem.scale, problem.soft_cap, problem.precision) == (H**-0.5, None, "default")
    for value, name in (
        (jax.lax.Precision.HIGHEST, "highest"),
        ("HIGH", "high"),
        (1, "highest"),
        (2, "high"),
        (None, "default"),
        (("high", "high"), "high"),
    ):
        assert seen(precision=value)[0].precision == name
    for value, name in (
        (jnp.bfloat16, "bfloat16"),
        ("float16", "float16"),
        (2, "float32"),
        (1, "bfloat16"),
    ):
        assert seen(logits_dtype=value)[0].logits_dtype == name
    assert seen(sliding_window=3)[0].window == (3, 3)
    assert seen(sliding_window=(np.int64(3), None))[0].window == (3, None)
    assert seen(sliding_window=3, causal=True)[0].window == (3, None)
    assert seen(softmax_scale=np.float32(0.5), logits_soft_cap=20)[0].scale == 0.5


def test_dropout_is_left_out_at_rate_zero(seen):
    assert seen(dropout_seed=5)[1].dropout is None
    np.testing.assert_array_equal(seen(dropout_prob=0.1, dropout_seed=-1)[1].dropout, [2**32 - 1, 0, 0])


def test_packed_self_attention_needs_no_positions(seen):
    row = QUERY[:1], KEY[:1, :T], VALUE[:1, :T]
    problem, operands, _ = seen(*row, cum_seqlens_q=jnp.array([0, 2, 5]), causal=True)
    assert (problem.has_segments, problem.has_positions) == (True, False)
    np.testing.assert_array_equal(operands.q_segments, [[0, 0, 1, 1, 1, Q_PADDING]])
    np.testing.assert_array_equal(operands.kv_segments, [[0, 0, 1, 1, 1, KV_PADDING]])
    assert problem.has_offsets
    np.testing.assert_array_equal(operands.q_offsets, [0, 2, 5])
    np.testing.assert_array_equal(operands.kv_offsets, [0, 2, 5])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"kv_lengths": jnp.array([3])}, "lengths and offsets"),
        (
            {"q_offsets": jnp.array([[0, 5]])},
            r"two vectors of integers of one length, got int32\[1, 2\] and int32\[3\]",
        ),
        ({"kv_offsets": jnp.array([0.0, 2.0, 5.0])}, r"got int32\[3\] and float32\[3\]"),
    ],
)
def test_offsets_that_cannot_be_those_of_the_ids_are_refused(seen, other, message):
    row = QUERY[:1], KEY[:1, :T], VALUE[:1, :T]
    packed = MaskInfo.from_cum_seqlens(jnp.array([0, 2, 5]), q_len=T, kv_len=T)
    with pytest.raises(UsageError, match=message):
        seen(*row, mask_info=dataclasses.replace(packed, **other))
    assert not seen(*row, mask_info=dataclasses.replace(packed, kv_offsets=None))[0].has_offsets


def test_offsets_without_the_ids_that_say_the_same_are_not_read(seen):
    row = QUERY[:1], KEY[:1, :T], VALUE[:1, :T]
    ends = jnp.array([0, 2, 5])
    for mask in (MaskInfo(q_offsets=ends, kv_offsets=ends), MaskInfo(causal=True)):
        problem, operands, _ = seen(*row, mask_info=mask)
        assert (problem.has_offsets, operands.q_offsets, operands.kv_offsets) == (False, None, None)
    # Of a batch of several they would be those of each.
    packed = MaskInfo.from_cum_seqlens(ends, q_len=T, kv_len=T)
    assert not seen(QUERY, KEY[:, :T], VALUE[:, :T], mask_info=packed)[0].has_offsets


def test_packed_cross_attention_aligns_each_sequence_at_its_end(seen):
    row = QUERY[:1], KEY[:1], VALUE[:1]
    offsets = {"cum_seqlens_q": jnp.array([0, 2, 5]), "cum_seqlens_k": jnp.array([0, 4, 8])}
    problem, operands, _ = seen(*row, **offsets, causal=True)
    assert problem.has_positions
    np.testing.assert_array_equal(operands.q_positions[0, :5], [2, 3, 1, 2, 3])
    np.testing.assert_array_equal(operands.kv_positions, [[0, 1, 2, 3, 0, 1, 2, 3]])
    # Without a causal edge or a window no kernel reads positions, and the signature stays the plain one.
    assert not seen(*row, **offsets)[0].has_positions


def test_one_batch_entry_of_ids_serves_all(seen):
    _, operands, _ = seen(mask_info=MaskInfo.from_segments(IDS_Q[:1], IDS_KV[:1]))
    assert (operands.q_segments.shape, operands.kv_segments.shape) == ((B, T), (B, S))


def test_requests_reach_the_choice(seen):
    assert seen(platform="auto")[2].kernels == {}
    assert seen(platform="xla")[2].kernels == {"fwd": "xla", "bwd": "xla"}
    assert seen(platform={"fwd": "triton", "bwd": None})[2].kernels == {"fwd": "triton"}
    config = CudnnConfig()
    assert seen(cfg=config)[2].configs == {"fwd": config}
    assert seen(cfg={"bwd": {"chunk_q": 64}}, platform="xla")[2].configs == {"bwd": {"chunk_q": 64}}


ONE = {"query": QUERY[:1], "key": KEY[:1], "value": VALUE[:1]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"query": QUERY[0]}, "query must be a 4-D array"),
        ({"query": QUERY.astype(np.int32)}, "query must have dtype"),
        ({"query": jnp.asarray(QUERY, jnp.bfloat16)}, "share a dtype"),
        ({"key": KEY[:, :5]}, "key and value must agree"),
        ({"query": QUERY[:1]}, "query and key must agree"),
        ({"query": QUERY[:, :, :3]}, "multiple of key/value heads"),
        ({"query": QUERY[:, :, :0]}, "empty"),
        ({"bias": jnp.zeros((B, N, T))}, "bias must be"),
        ({"platform": {"forward": "xla"}}, "keys are fwd and bwd"),
        ({"platform": {"fwd": 3}}, "must be the name of a kernel"),
        ({"bias": jnp.zeros((B, 3, T, S))}, "bias has 3 heads"),
        ({"bias": jnp.zeros((B, N, T, 5))}, "bias has shape"),
        ({"attention_mask": MASK[:, :3]}, "attention_mask has 3 heads"),
        ({"attention_mask": MASK[0, 0, 0]}, "attention_mask must be"),
        ({"attention_mask": MASK.astype(np.float32)}, "additive masks go into bias"),
        ({"q_segment_ids": IDS_Q}, "kv_segment_ids must have shape"),
        ({"kv_segment_ids": IDS_KV}, "q_segment_ids is missing"),
        ({"q_segment_ids": IDS_KV, "kv_segment_ids": IDS_KV}, "q_segment_ids must have shape"),
        ({"mask_info": MaskInfo.from_lengths(jnp.ones(B + 1, int), q_len=T, kv_len=S)}, "^kv_lengths must have shape"),
        ({"softmax_scale": "big"}, "softmax_scale must be a number"),
        ({"logits_soft_cap": 0.0}, "logits_soft_cap must be positive"),
        ({"dropout_prob": 1.0}, "dropout_prob must be in"),
        ({"dropout_prob": 0.1, "dropout_seed": 1.5}, "dropout_seed"),
        ({"dropout_prob": 0.1, "dropout_seed": jnp.zeros(2, jnp.uint32)}, "dropout_seed"),
        ({"sliding_window": -1}, "sliding_window must be"),
        ({"sliding_window": (1, 2, 3)}, "sliding_window must be"),
        ({"sliding_window": (1, -2)}, "sliding_window must be"),
        ({"sliding_window": 1.5}, "sliding_window must be"),
        ({"precision": "exact"}, "precision must be"),
        ({"logits_dtype": jnp.float64}, "logits_dtype must be"),
        ({"logits_dtype": 3}, "logits_dtype must be"),
        ({"causal": "yes"}, "causal must be True or False"),
        ({"return_lse": "no"}, "return_lse must be True or False, got 'no'"),
        ({"normalize_output": None}, "normalize_output must be True or False, got None"),
        ({"mask_info": MASK}, "mask_info must be a MaskInfo"),
        ({"softmax_aux": jnp.zeros((3, 2))}, "softmax_aux must be"),
        ({"softmax_aux": jnp.zeros(3, jnp.int32)}, "floating-point"),
        ({"platform": "tritn"}, "unknown kernel of flash_attention 'tritn'"),
        ({"platform": "xl"}, "did you mean 'xla'"),
        ({"cfg": {"block": 64}}, "cfg must be"),
        ({"cfg": MaskInfo()}, "config of no kernel"),
        ({"mesh": jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))}, "in_specs is missing"),
        ({"in_specs": ()}, "mesh is missing"),
        ({"cum_seqlens_q": jnp.array([0, 3])}, "batch of 1"),
        ({**ONE, "cum_seqlens_k": jnp.array([0, 3])}, "cum_seqlens_q is missing"),
        ({**ONE, "cum_seqlens_q": jnp.array([0, 3])}, "cum_seqlens_k is needed"),
        (
            {**ONE, "cum_seqlens_q": jnp.array([1, 3]), "cum_seqlens_k": jnp.array([0, 3])},
            "start at 0",
        ),
        (
            {**ONE, "cum_seqlens_q": jnp.array([0, 3, 2]), "cum_seqlens_k": jnp.array([0, 3, 4])},
            "never decrease",
        ),
        (
            {**ONE, "cum_seqlens_q": jnp.array([0, 9]), "cum_seqlens_k": jnp.array([0, 3])},
            "at most at 6",
        ),
        (
            {**ONE, "cum_seqlens_q": jnp.array([0, 3, 6]), "cum_seqlens_k": jnp.array([0, 3])},
            "one length",
        ),
        (
            {**ONE, "cum_seqlens_q": jnp.array([0.0, 3.0]), "cum_seqlens_k": jnp.array([0, 3])},
            "integers",
        ),
    ],
)
def test_malformed_arguments_are_named(arguments, words):
    with pytest.raises(UsageError, match=words):
        flash_attention(**({"query": QUERY, "key": KEY, "value": VALUE} | arguments))


def test_traced_options_are_refused_in_words():
    with pytest.raises(UsageError, match="softmax_scale must be a Python number"):
        jax.jit(lambda s: flash_attention(QUERY, KEY, VALUE, softmax_scale=s))(0.5)
