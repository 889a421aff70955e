"""Calls under ``jax.numpy_dtype_promotion("strict")``, where a boolean and a number have no common type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune import MaskInfo

Q = jnp.ones((2, 8, 2, 16))
MASKS = {
    "boolean": np.ones((2, 8), bool),
    "boolean of JAX": jnp.ones((2, 8, 8), bool),
    "integer": np.ones((2, 8), np.int64),
}


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


def test_selected_blocks_need_no_promotion():
    q, k = jnp.ones((1, 512, 4, 16)), jnp.ones((1, 8, 2, 16))
    with jax.numpy_dtype_promotion("strict"):
        strict = attn_tune.select_blocks(q, k, num_selected=4)
    assert np.array_equal(strict, attn_tune.select_blocks(q, k, num_selected=4))
