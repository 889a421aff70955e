"""Arguments of ejkernel are refused by name, left out with one warning, or converted."""

import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune.integrations.ejkernel as ours
from attn_tune.integrations.ejkernel.arguments import kernel_of, leave_out, mask_of, window_before
from attn_tune.ops.masks.mask_info import KV_PADDING, Q_PADDING, MaskInfo
from attn_tune.schema.errors import AttnTuneWarning, UsageError
from tests.integrations.ejkernel.linear_calls import CALLS

ONE = jnp.ones(4)
REFUSED = {
    "flash_attention__sinks_window_cap": [{"logits_dtype": jnp.int32}],
    "flash_attention__causal_bias": [{"logits_soft_cap": 2.0}],
    "scaled_dot_product_attention__lengths": [{"in_specs": ()}],
    "flash_mla__rotary": [{"softmax_dtype": jnp.bfloat16}],
    "page_attention__hnd": [{"mask_value": -1.0}],
    "prefill_page_attention__window": [{"sliding_window": (1, 1)}],
    "ragged_page_attention_v2__sinks": [{"compute_dtype": jnp.float16}, {"out_specs": ()}],
    "chunked_prefill_paged_decode__causal": [{"causal": False}],
    "decode_attention__pool": [{"page_size": 7}],
    "ragged_page_attention_v3__padded": [{"q_scale": 2.0}],
    "multi_latent_ragged_page_attention__mixed": [{"mask_value": 0.0}],
    "blocksparse_attention__window": [
        {"qkv_layouts": ()},
        {"mask_builder": lambda: None},
        {"mask_builder": lambda *sizes: 1},
        {"sequence_parallelism_mesh_axis_name": "sp"},
        {"chunk_size": 0},
        {"chunk_size": 64.0},
    ],
    "gla_attention__reversed": [{"platform": "cuda12"}],
    "lightning_attention__layer": [
        *({"layer_idx": wrong} for wrong in ("1", None, 1.0, True, 3, -1)),
        *({"num_layers": wrong} for wrong in (0, "3")),
    ],
    "gated_delta_rule__segments": [{"mesh": 1}],
}
CASES = [(name, one) for name, several in REFUSED.items() for one in several]


@pytest.mark.parametrize(("name", "wrong"), CASES, ids=[f"{name}-{next(reversed(one))}" for name, one in CASES])
def test_an_argument_that_cannot_be_honoured_is_refused_by_name(name, wrong):
    arguments, keywords, _ = CALLS[name](np.random.default_rng(0))
    arguments = tuple(jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in arguments)
    with pytest.raises(UsageError, match=next(reversed(wrong))):
        getattr(ours, name.partition("__")[0])(*arguments, **keywords | wrong)


@pytest.mark.parametrize(
    ("function", "place", "name"),
    [
        ("flash_attention", 7, "block_tables"),
        ("unified_attention", 6, "alibi_slopes"),
        ("unified_attention", 7, "qq_bias"),
        ("ring_attention", 4, "bias"),
        ("recurrent_attention", 6, "gv"),
        ("chunked_prefill_paged_decode", 8, "alibi_slopes"),
    ],
)
def test_an_array_that_no_op_takes_is_refused_by_name(function, place, name):
    with pytest.raises(UsageError, match=name):
        getattr(ours, function)(*(None,) * place, ONE)


def test_a_raw_key_and_a_window_of_one_number_are_taken():
    q, kv, w = jnp.ones((1, 2, 2, 4)), jnp.ones((1, 2, 3)), jnp.ones((3, 2, 4))
    typed = jax.random.key(3)
    one, other = (
        ours.flash_mla(q, kv, w, w, dropout_prob=0.5, dropout_rng=key, deterministic=False)
        for key in (typed, jax.random.key_data(typed))
    )
    np.testing.assert_array_equal(one, other)
    cache, ends = jnp.arange(8.0).reshape(1, 4, 2, 1), (jnp.zeros(1, jnp.int32), jnp.array([4]))
    one, other = (
        ours.ragged_decode_attention(q[:, :1, :, :1], cache, cache, *ends, sliding_window=w) for w in (1, (1, 0))
    )
    np.testing.assert_array_equal(one, other)
    with pytest.raises(UsageError, match="sliding_window must be a non-negative integer"):
        ours.ragged_decode_attention(q[:, :1, :, :1], cache, cache, *ends, sliding_window=(2, "x"))


def test_a_missing_partner_is_named():
    q, kv, w = jnp.ones((1, 2, 2, 4)), jnp.ones((1, 2, 3)), jnp.ones((3, 2, 4))
    with pytest.raises(UsageError, match="b_k"):
        ours.flash_mla(q, kv, w, w, q[:, :, 0])
    with pytest.raises(UsageError, match="b_k"):
        ours.deepseek_attn(q, kv, w, w, q, q[:, :, 0], q[..., 0])
    rotary = jnp.ones((1, 2, 1))
    indexer = (jnp.ones((1, 2, 1, 4)), jnp.ones((1, 2, 4)), jnp.ones((1, 2, 1)))
    with pytest.raises(UsageError, match="query must be 4 wide with b_q, got 5"):
        ours.deepseek_attn(jnp.ones((1, 2, 2, 5)), kv, w, w, *indexer, rotary, rotary)
    with pytest.raises(UsageError, match="query must be 5 wide without b_q, got 4"):
        ours.deepseek_attn(q, kv, w, w, *indexer, None, rotary)
    with pytest.raises(UsageError, match=r"b_q must have shape \(1, 2, 1\), as b_k, got \(1, 2, 2\)"):
        ours.deepseek_attn(q, kv, w, w, *indexer, jnp.ones((1, 2, 2)), rotary)
    with pytest.raises(UsageError, match=r"x must be \[tokens, width\] with cu_seqlens, got \[1, 2, 3\]"):
        ours.mean_pooling(kv, jnp.array([0, 2]))
    with pytest.raises(UsageError, match=r"dropout_prob must be in \[0, 1\), got -0.1"):
        ours.flash_mla(q, kv, w, w, dropout_prob=-0.1, dropout_rng=jax.random.key(0), deterministic=False)
    with pytest.raises(UsageError, match="state_indices"):
        ours.ragged_gated_delta_rule(q[0], q[0], q[0], q[0, ..., 0])
    with pytest.raises(UsageError, match=r"state_indices must be integers \[1\] beside query_start_loc, got float32"):
        ours.ragged_gated_delta_rule(q[0], q[0], q[0], q[0, ..., 0], None, ONE, np.array([0, 2]), np.array([0.0]))
    state = np.zeros((1, q.shape[2], q.shape[3], q.shape[3]), np.float32)
    with pytest.raises(UsageError, match=f"query_start_loc ends at 99, but there are {q.shape[1]} tokens"):
        ours.ragged_gated_delta_rule(q[0], q[0], q[0], q[0, ..., 0], None, state, np.array([0, 99]), np.array([0]))
    for ends in ([[0, 2]], [], 3):
        with pytest.raises(UsageError, match="query_start_loc must be int32"):
            ours.ragged_gated_delta_rule(
                q[0], q[0], q[0], q[0, ..., 0], None, state, np.array(ends, int), np.array([0])
            )
    with pytest.raises(UsageError, match="reverse"):
        ours.gla_attention(q, q, q, None, None, None, jnp.array([0, 2]), reverse=True)
    for given, name in (
        ((None,), "block_indices"),
        ((ONE, None, ONE), "block_indices"),
        ((ONE, None, None, ONE), "block_counts"),
    ):
        with pytest.raises(UsageError, match=name):
            ours.native_sparse_attention(q, q, q, *given)
    with pytest.raises(UsageError, match="one token"):
        ours.ragged_decode_attention(q, q, q, jnp.array([0]), jnp.array([2]))


def test_a_layer_that_is_no_integer_is_refused_with_what_is_accepted():
    arguments, keywords, _ = CALLS["lightning_attention__layer"](np.random.default_rng(0))
    with pytest.raises(UsageError, match=r"layer_idx must be an integer from 0 to 2 of num_layers=3, got '1'$"):
        ours.lightning_attention(*arguments, **keywords | {"layer_idx": "1"})
    with pytest.raises(UsageError, match=r"layer_idx must be .* got an array float32\[\] of 1.0$"):
        ours.lightning_attention(*arguments, **keywords | {"layer_idx": np.float32(1)})
    with pytest.raises(UsageError, match=r"num_layers must be a positive integer, got '3'$"):
        ours.lightning_attention(*arguments, **keywords | {"num_layers": "3"})


def test_platforms_of_ejkernel_are_kernels_here_or_one_warning():
    assert [kernel_of("f", name) for name in (None, "auto", "xla", "triton")] == [None, None, "xla", "triton"]
    for name in ("pallas", "cuda", "cute", "tilelang"):
        with pytest.warns(AttnTuneWarning, match=name) as seen:
            assert kernel_of("f", name) is None
        assert len(seen) == 1
    with pytest.warns(AttnTuneWarning, match="cfg"):
        assert kernel_of("f", None, types.SimpleNamespace(platform="xla", num_warps=4)) == "xla"
    with pytest.raises(UsageError, match="platform"):
        kernel_of("f", "mosaic")


def test_arguments_that_tune_are_named_in_one_warning_and_defaults_in_none():
    with pytest.warns(AttnTuneWarning, match="a, b tune") as seen:
        leave_out("f", a=1, b=True, c=None, d=False)
    assert len(seen) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leave_out("f", c=None, d=False)


def test_a_window_that_counts_its_own_token_is_one_less_here():
    assert [window_before("f", w) for w in (None, 0, -1, 1, np.int64(4))] == [None, None, None, 0, 3]
    with pytest.raises(UsageError, match="sliding_window must be an integer, got True"):
        window_before("f", True)


def foreign(**fields):
    """An object with the fields of ejkernel's ``MaskInfo``."""
    names = ("_attention_mask", "_q_segment_ids", "_kv_segment_ids", "q_positions", "kv_positions")
    return types.SimpleNamespace(**dict.fromkeys(names) | fields)


def test_segments_of_ejkernels_mask_stay_segments_and_padding_sees_nothing():
    ids = jnp.array([[0, 1, -1]])
    mask = mask_of(foreign(_q_segment_ids=ids, q_positions=ids, kv_positions=ids))
    assert mask is not None
    assert mask.attention_mask is None
    assert mask.q_positions is None
    assert np.asarray(mask.q_segment_ids).tolist() == [[0, 1, Q_PADDING]]
    assert np.asarray(mask.kv_segment_ids).tolist() == [[0, 1, KV_PADDING]]
    placed = mask_of(foreign(_q_segment_ids=ids, q_positions=ids, kv_positions=ids), positions=True)
    assert placed is not None
    assert placed.q_positions is ids
    own = MaskInfo(causal=True)
    assert mask_of(own) is own
    assert mask_of(None) is None
    with pytest.raises(UsageError, match="mask_info"):
        mask_of(np.ones((2, 2)))
    with pytest.raises(UsageError, match="of each head"):
        mask_of(foreign(_q_segment_ids=ids[None]))


def test_a_dense_mask_of_ejkernels_mask_is_dense_here():
    dense = jnp.ones((1, 1, 2, 2), bool)
    computed = foreign(get_or_compute_attention_mask=lambda: dense)
    for given in (foreign(_attention_mask=dense), computed):
        mask = mask_of(given)
        assert mask is not None
        assert mask.attention_mask is dense
