"""Calls of the page of names equal the references of JAX's Pallas kernels, and differ without what the page names."""

import importlib
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune

# Not at the top: the modules of GPU kernels warn that they are deprecated, all but Mosaic's.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    gpu = importlib.import_module("jax.experimental.pallas.ops.gpu.attention")
    attention_mgpu = importlib.import_module("jax.experimental.pallas.ops.gpu.attention_mgpu")
    decode_attention = importlib.import_module("jax.experimental.pallas.ops.gpu.decode_attention")
    paged_attention = importlib.import_module("jax.experimental.pallas.ops.gpu.paged_attention")
    tpu = importlib.import_module("jax.experimental.pallas.ops.tpu.flash_attention")

B, T, S, N, K, H, P = 2, 6, 9, 4, 2, 16, 4
SCALE = 0.37
LENS = jnp.array([5, 12])


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def arrays(heads, lengths=(T, S)):
    """Queries of ``N`` heads, keys and values of ``heads``."""
    return normal(0, B, lengths[0], N, H), normal(1, B, lengths[1], heads, H), normal(2, B, lengths[1], heads, H)


def is_near(ours, theirs):
    return np.allclose(ours, theirs, atol=2e-5, rtol=2e-5)


def tpu_reference(q, k, v, ab, **options):
    heads_first = (x.swapaxes(1, 2) for x in (q, k, v))
    return tpu.mha_reference_no_custom_vjp(*heads_first, ab, **options).swapaxes(1, 2)


def test_tpu_bias_is_added_before_the_scale_there():
    q, k, v = arrays(N)
    bias = normal(3, B, N, T, S)
    theirs = tpu_reference(q, k, v, bias, sm_scale=SCALE)
    assert is_near(attn_tune.flash_attention(q, k, v, bias * SCALE, softmax_scale=SCALE), theirs)
    assert not is_near(attn_tune.flash_attention(q, k, v, bias, softmax_scale=SCALE), theirs)


def test_tpu_scale_is_one_by_default():
    q, k, v = arrays(N)
    theirs = tpu_reference(q, k, v, None)
    assert is_near(attn_tune.flash_attention(q, k, v, softmax_scale=1.0), theirs)
    assert not is_near(attn_tune.flash_attention(q, k, v), theirs)


def test_tpu_causal_is_at_the_top_left():
    q, k, v = arrays(N)
    theirs = tpu_reference(q, k, v, None, causal=True, sm_scale=SCALE)
    assert is_near(attn_tune.dot_product_attention(q, k, v, is_causal=True, scale=SCALE), theirs)
    assert not is_near(attn_tune.flash_attention(q, k, v, causal=True, softmax_scale=SCALE), theirs)


def test_gpu_mha_has_scale_one_by_default_and_is_causal_at_the_top_left():
    q, k, v = arrays(N)
    plain = gpu.mha_reference(q, k, v, None)
    assert is_near(attn_tune.flash_attention(q, k, v, softmax_scale=1.0), plain)
    assert not is_near(attn_tune.flash_attention(q, k, v), plain)
    causal = gpu.mha_reference(q, k, v, None, causal=True)
    assert is_near(attn_tune.dot_product_attention(q, k, v, is_causal=True, scale=1.0), causal)
    assert not is_near(attn_tune.flash_attention(q, k, v, causal=True, softmax_scale=1.0), causal)


def test_attention_mgpu_has_no_scale_and_is_causal_at_the_top_left():
    q, k, v = arrays(K)
    plain = attention_mgpu.attention_reference(q, k, v)
    assert is_near(attn_tune.flash_attention(q, k, v, softmax_scale=1.0), plain)
    assert not is_near(attn_tune.flash_attention(q, k, v), plain)
    causal = attention_mgpu.attention_reference(q, k, v, causal=True)
    assert is_near(attn_tune.dot_product_attention(q, k, v, is_causal=True, scale=1.0), causal)
    assert not is_near(attn_tune.flash_attention(q, k, v, causal=True, softmax_scale=1.0), causal)


def test_lse_of_attention_mgpu_is_in_base_two():
    q, k, v = arrays(N)  # its reference reshapes the lse only where every query head has a key head
    _, (theirs,) = attention_mgpu.attention_reference(q, k, v, save_residuals=True)
    _, lse = attn_tune.flash_attention(q, k, v, softmax_scale=1.0, return_lse=True)
    assert theirs.shape == lse.shape
    assert is_near(lse, theirs * math.log(2))
    assert not is_near(lse, theirs)


def test_mqa_of_decoding_has_no_axis_of_key_heads():
    q, k, v = normal(0, B, N, H), normal(1, B, 12, H), normal(2, B, 12, H)
    theirs = decode_attention.mqa_reference(q, k, v, kv_seq_len=LENS)
    assert is_near(attn_tune.paged_decode(q, k[:, :, None], v[:, :, None], LENS), theirs)
    with pytest.raises(attn_tune.UsageError, match="k_pages must have four axes"):
        attn_tune.paged_decode(q, k, v, LENS)


def test_gqa_of_decoding_is_the_call_as_it_is():
    q, k, v = normal(0, B, N, H), normal(1, B, 12, K, H), normal(2, B, 12, K, H)
    theirs = decode_attention.gqa_reference(q, k, v, kv_seq_len=LENS)
    assert is_near(attn_tune.paged_decode(q, k, v, LENS), theirs)
    assert not is_near(attn_tune.paged_decode(q, k, v, LENS, softmax_scale=1.0), theirs)


def test_paged_attention_has_pages_of_head_first_and_no_scale():
    # As many heads as pages and slots, so that another layout has the same sizes.
    pages = P
    q = normal(0, B, 2 * pages, H)
    k_pages, v_pages = normal(1, pages, pages, P, H), normal(2, pages, pages, P, H)
    table, lens = jnp.array([[3, 0], [1, 2]]), jnp.array([5, 8])
    # Their reference takes what the pages hold in a row: [B, S, K, H].
    k, v = (jnp.moveaxis(x[:, table].reshape(pages, B, 2 * P, H), 0, 2) for x in (k_pages, v_pages))
    theirs = paged_attention.paged_attention_reference(q, k, v, lens)
    options = {"layout": "head_first", "softmax_scale": 1.0}
    assert is_near(attn_tune.paged_decode(q, k_pages, v_pages, lens, table, **options), theirs)
    for left_out in options:
        fewer = {name: value for name, value in options.items() if name != left_out}
        assert not is_near(attn_tune.paged_decode(q, k_pages, v_pages, lens, table, **fewer), theirs), left_out


def test_chunks_of_maxtext_are_segments_of_positions():
    q, k, v = arrays(K, (16, 16))
    chunk, position = 5, jnp.arange(16)
    ids = jnp.broadcast_to(position // chunk, (B, 16))
    same = (position[:, None] // chunk == position // chunk) & (position[:, None] >= position)
    dense = attn_tune.flash_attention(q, k, v, attention_mask=same[None, None])
    assert is_near(attn_tune.flash_attention(q, k, v, q_segment_ids=ids, causal=True), dense)
    assert not is_near(attn_tune.flash_attention(q, k, v, causal=True), dense)
    assert not is_near(attn_tune.flash_attention(q, k, v, q_segment_ids=ids), dense)
