"""The public ``block_sparse_attention``: beside dense attention, gradients, forms of its mask, meshes, and refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.api.sharded_cases import kept
from tests.several_devices import run_with_devices

B, T, S, N, K, H = 2, 40, 56, 4, 2, 8
BLOCKS = (16, 32)


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def listed(seed, *shape):
    blocks = np.random.default_rng(seed).random((*shape, 3, 2)) < 0.6
    blocks[..., 0, :] = False
    return blocks


ARRAYS = (draw(1, B, T, N, H), draw(2, B, S, K, H), draw(3, B, S, K, H))
ROW = np.zeros((B, 1), int)
IDS = {"q_segment_ids": np.arange(T)[None] // 25 + ROW, "kv_segment_ids": np.arange(S)[None] // 30 + ROW}
CASES = {
    "of both": (listed(4, B, N), {"causal": True}),
    "of key heads": (listed(5, 1, K), {"sliding_window": (20, 5)}),
    "shared": (listed(6), IDS | {"logits_soft_cap": 2.0, "softmax_scale": 0.6}),
    "lengths": (
        listed(7, B, 1).astype(np.int64),
        {"mask_info": MaskInfo.from_lengths(np.array([50, 0]), np.array([40, 33]), q_len=T, kv_len=S)},
    ),
}


def sparse(q, k, v, blocks, **options):
    return attn_tune.block_sparse_attention(q, k, v, blocks, block_size=BLOCKS, return_lse=True, **options)


def dense(q, k, v, blocks, **options):
    blocks = blocks if blocks.ndim == 4 else blocks[None, None]
    spread = blocks.repeat(BLOCKS[0], 2)[:, :, :T].repeat(BLOCKS[1], 3)[..., :S]
    return attn_tune.flash_attention(q, k, v, attention_mask=spread, return_lse=True, **options)


def graded(call, name, arrays=ARRAYS):
    """Output and lse, and the gradients of a sum that weighs every element differently."""
    blocks, options = CASES[name]

    def loss(arrays):
        out, lse = call(*arrays, blocks, **options)
        return jnp.sum(jnp.cos(1.3 * out)) + jnp.sum(jnp.sin(jnp.where(jnp.isneginf(lse), 0.0, lse))), (out, lse)

    return jax.jit(jax.grad(loss, has_aux=True))(arrays)


@functools.cache
def expected(name):
    return graded(dense, name)


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_of_dense_attention_with_the_mask_spread(name):
    gradients, (out, lse) = graded(sparse, name)
    wanted, (wanted_out, wanted_lse) = expected(name)
    assert np.isneginf(lse).any()
    for one, other in zip((*gradients, out, lse), (*wanted, wanted_out, wanted_lse), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_with_64_bit_types_and_numpy_arrays_all_is_as_without():
    with jax.enable_x64(True):
        found = graded(sparse, "of both")
    assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype(np.float32)}
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected("of both")), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_a_mask_that_is_traced_and_another_in_each_call_is_compiled_once():
    call = jax.jit(lambda blocks: attn_tune.block_sparse_attention(*ARRAYS, blocks, block_size=BLOCKS))
    for seed in (8, 9):
        np.testing.assert_allclose(call(listed(seed)), dense(*ARRAYS, listed(seed))[0], atol=2e-5)
    assert call._cache_size() == 1


def test_vmap_folds_masks_into_the_batch():
    blocks = listed(10, B, 1, 1)
    found = jax.vmap(
        lambda q, k, v, m: attn_tune.block_sparse_attention(q[None], k[None], v[None], m, block_size=BLOCKS)
    )
    np.testing.assert_allclose(found(*ARRAYS, blocks)[:, 0], dense(*ARRAYS, blocks[:, 0])[0], atol=2e-5)


@pytest.mark.slow
@kept("shared-Explicit", "both-Auto", of=("shared", "both"))
def test_sharded_batch_and_heads_are_not_gathered(cases):
    assert run_with_devices(4, "-m", "tests.api.block_sparse_sharded", *cases).split() == [*cases, "specs"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_mask": listed(4)[:2]}, r"must be \[3, 2\] or \[1 \| 2, 1 \| 2 \| 4, 3, 2\] for blocks of 16 queries"),
        ({"block_mask": listed(4, 3, 1)}, r"got \[3, 1, 3, 2\]"),
        ({"block_mask": listed(4, 1, 3)}, "block_mask has 3 heads"),
        ({"block_mask": listed(4).astype(np.float32)}, "block_mask must be boolean or integer, got float32"),
        ({"block_size": 24}, r"block_size=24 \(bq\) must be a power of two of at least 16"),
        ({"block_size": (32, 8)}, r"block_size=8 \(bk\) must be"),
        ({"block_size": (16, 16, 16)}, "block_size must be an integer or a pair"),
        ({"mask_info": MaskInfo(attention_mask=np.ones((B, S), bool))}, "mask_info has attention_mask"),
        ({"workload": "randon"}, "unknown workload 'randon'; did you mean 'random'"),
        ({"platform": "cuda"}, "unknown kernel of block_sparse_attention 'cuda'"),
    ],
)  # fmt: skip
def test_a_malformed_argument_is_named(change, words):
    given = {"block_mask": listed(4), "block_size": BLOCKS} | change
    with pytest.raises(UsageError, match=words):
        attn_tune.block_sparse_attention(*ARRAYS, **given)


def test_a_mask_of_64_bits_lists_what_is_not_zero():
    mask = listed(4)
    for wide in (mask.astype(np.int64) * 2**40, mask.astype(np.uint64) << np.uint64(40)):
        np.testing.assert_array_equal(sparse(*ARRAYS, wide)[0], sparse(*ARRAYS, mask)[0])


def test_a_second_derivative_is_refused():
    with pytest.raises(UnsupportedError, match="block_sparse_attention has no second derivative"):
        jax.eval_shape(jax.hessian(lambda q: sparse(q, *ARRAYS[1:], listed(4))[0].sum()), ARRAYS[0])
