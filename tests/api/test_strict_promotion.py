"""Calls under ``jax.numpy_dtype_promotion("strict")``, where a boolean and a number have no common type, and under
``jax.numpy_rank_promotion("raise")``, where arrays of different ranks are not broadcast.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune import MaskInfo
from attn_tune.api.sparse.compressed import mean_pooling

Q = jnp.ones((2, 8, 2, 16))
MASKS = {
    "boolean": np.ones((2, 8), bool),
    "boolean of JAX": jnp.ones((2, 8, 8), bool),
    "integer": np.ones((2, 8), np.int64),
}
NARROW = jnp.ones((1, 8, 2, 16), jnp.bfloat16)
BOUNDARIES = jnp.array([0, 3, 8])
PAGES = jnp.ones((4, 16, 2, 16))
PAGE_TABLE, KV_LENS = jnp.arange(4).reshape(2, 2), jnp.array([3, 20])
WEIGHTS = jnp.full((2, 8, 2), 0.5)
STRICT = {"dtypes": (jax.numpy_dtype_promotion, "strict"), "ranks": (jax.numpy_rank_promotion, "raise")}


def _merged(x):
    return attn_tune.merge_attention([x, x], [WEIGHTS, WEIGHTS])[0]


CALLS = {
    "documents": lambda: attn_tune.flash_attention(
        NARROW, NARROW, NARROW, cum_seqlens_q=BOUNDARIES, cum_seqlens_k=BOUNDARIES
    ),
    "rows not normalised": lambda: attn_tune.flash_attention(NARROW, NARROW, NARROW, normalize_output=False),
    "lengths as in jax.nn": lambda: attn_tune.dot_product_attention(
        Q, Q, Q, query_seq_lengths=jnp.array([3, 8]), key_value_seq_lengths=jnp.array([3, 8])
    ),
    "paged decode": lambda: attn_tune.paged_decode(Q[:, 0], PAGES, PAGES, KV_LENS, PAGE_TABLE),
    "ragged paged": lambda: attn_tune.ragged_paged(Q[0], PAGES, PAGES, KV_LENS, jnp.array([0, 2, 8]), PAGE_TABLE),
    "gated delta rule": lambda: attn_tune.gated_delta_rule(Q, Q, Q, -WEIGHTS, WEIGHTS),
    "gradient of a merge": lambda: jax.grad(lambda x: _merged(x).sum())(Q),
    "means of blocks": lambda: mean_pooling(NARROW, block_size=16, cu_seqlens=BOUNDARIES),
    "selected blocks": lambda: attn_tune.select_blocks(jnp.ones((1, 512, 4, 16)), Q[:1], num_selected=4),
}


@pytest.mark.parametrize("strict", STRICT)
@pytest.mark.parametrize("call", CALLS)
def test_no_call_needs_promotion(call, strict):
    wanted = CALLS[call]()
    context, value = STRICT[strict]
    with context(value):
        found = CALLS[call]()
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("op", ["flash_attention", "attention"])
def test_masks_need_no_promotion(op, mask):
    with jax.numpy_dtype_promotion("strict"):
        out = getattr(attn_tune, op)(Q, Q, Q, attention_mask=MASKS[mask])
    assert np.allclose(out[0] if isinstance(out, tuple) else out, 1.0)


def test_lengths_and_masks_of_blocks_need_no_promotion():
    with jax.numpy_dtype_promotion("strict"):
        lengths = MaskInfo.from_lengths(np.array([3, 8]), q_len=8, kv_len=8)
        outs = [
            attn_tune.flash_attention(Q, Q, Q, mask_info=lengths),
            attn_tune.block_sparse_attention(Q, Q, Q, np.ones((1, 1), bool), block_size=16),
        ]
    assert all(np.allclose(out[:, :3], 1.0) for out in outs)
