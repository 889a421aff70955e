"""The public native sparse attention: beside dense attention, its branches, gates, packed sequences, and refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.several_devices import run_with_devices

B, T, N, K, H, V, SIZE = 2, 70, 6, 2, 16, 24, 16
BLOCKS = 5
ENDS = jnp.array([0, 21, 21, 64], jnp.int32)


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), jnp.float32)


ARRAYS = (draw(1, B, T, N, H), draw(2, B, T, K, H), draw(3, B, T, K, V))
GATES = {name: jax.nn.sigmoid(draw(i, B, T, N)) for i, name in enumerate(("g_slc", "g_cmp", "g_swa"))}
ALL = jnp.broadcast_to(jnp.arange(BLOCKS - 1, -1, -1), (B, T, K, BLOCKS))
SPARSE = functools.partial(attn_tune.native_sparse_attention, block_size=SIZE)


def chosen(seed=4, top=3):
    return np.random.default_rng(seed).permuted(np.array(ALL), axis=-1)[..., :top]


def dense(q, k, v, seen, **options):
    """Attention of the pairs of ``seen``, ``[B, K, T, keys]``."""
    seen = seen.repeat(N // K, axis=1)
    return attn_tune.flash_attention(q, k, v, attention_mask=seen, platform="xla", return_lse=True, **options)


def selected(indices):
    """The pairs that distinct entries name."""
    token = np.arange(T)
    named = (np.asarray(indices)[..., None] == token // SIZE).any(-2)
    return np.moveaxis(named & (token <= token[:, None, None]), 1, 2)


def test_all_blocks_are_dense_causal_attention():
    out, lse = SPARSE(*ARRAYS, ALL, return_lse=True)
    wanted, log = attn_tune.flash_attention(*ARRAYS, causal=True, return_lse=True)
    np.testing.assert_allclose(out, wanted, atol=2e-6)
    np.testing.assert_allclose(lse, log.swapaxes(1, 2), atol=2e-6)


def test_selected_blocks_and_gradients_are_those_of_dense_attention_with_a_mask():
    def loss(call, arrays):
        out, lse = call(*arrays)
        return jnp.sum(jnp.cos(1.3 * out)) + jnp.sum(jnp.sin(jnp.where(jnp.isneginf(lse), 0.0, lse)))

    indices = chosen()

    def masked(*arrays):
        out, lse = dense(*arrays, selected(indices))
        return out, lse.swapaxes(1, 2)

    found = jax.jit(jax.value_and_grad(lambda x: loss(functools.partial(SPARSE, return_lse=True), (*x, indices))))
    value, gradients = found(ARRAYS)
    wanted, exact = jax.value_and_grad(lambda x: loss(masked, x))(ARRAYS)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for one, other in zip(gradients, exact, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_with_64_bit_integers_the_gradients_of_native_sparse_attention_are_as_without():
    def gradients():
        loss = jax.grad(lambda x: jnp.sum(jnp.cos(SPARSE(*x, chosen(), block_size=np.int64(SIZE)))))
        return jax.jit(loss)(ARRAYS)

    with jax.enable_x64(True):
        found = gradients()
    for one, other in zip(found, gradients(), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_counts_cut_rows_and_a_block_that_is_named_twice_counts_twice():
    counts = np.random.default_rng(0).integers(0, 4, (B, T, K))
    cut = jnp.where(jnp.arange(3) < counts[..., None], chosen(), -1)
    np.testing.assert_array_equal(SPARSE(*ARRAYS, chosen(), block_counts=counts), SPARSE(*ARRAYS, cut))
    np.testing.assert_array_equal(SPARSE(*ARRAYS, chosen(), block_counts=0), 0)
    _, lse = SPARSE(*ARRAYS, jnp.zeros((B, T, K, 2), jnp.int32), return_lse=True)
    _, once = SPARSE(*ARRAYS, jnp.zeros((B, T, K, 1), jnp.int32), return_lse=True)
    np.testing.assert_allclose(lse, once + np.log(2), atol=2e-6)


def test_the_sum_of_the_gated_branches_is_that_of_its_parts():
    q, k, v = ARRAYS
    out = SPARSE(q, k, v, chosen(), **GATES, window_size=7)
    means = [np.stack([x[:, i : i + SIZE].mean(1) for i in range(0, T, SIZE)], 1) for x in (k, v)]
    ends = (np.arange(BLOCKS) + 1) * SIZE - 1
    whole = np.broadcast_to(ends <= np.arange(T)[:, None], (B, K, T, BLOCKS))
    near = np.tril(np.ones((T, T), bool)) & ~np.tril(np.ones((T, T), bool), -7)
    parts = (
        dense(q, k, v, selected(chosen())),
        dense(q, *(jnp.asarray(x) for x in means), whole),
        dense(q, k, v, np.broadcast_to(near, (B, K, T, T))),
    )
    wanted = sum(gate[..., None] * part for gate, (part, _) in zip(GATES.values(), parts, strict=True))
    np.testing.assert_allclose(out, wanted, atol=1e-5)
    gradients = jax.grad(lambda g: jnp.sum(SPARSE(q, k, v, chosen(), **g, window_size=7) ** 2))(GATES)
    for name, (part, _) in zip(GATES, parts, strict=True):
        np.testing.assert_allclose(gradients[name], 2 * jnp.sum(wanted * part, -1), atol=2e-4, err_msg=name)


def test_packed_sequences_are_as_if_each_were_alone():
    q, k, v = (x[:1] for x in ARRAYS)
    gates = {name: gate[:1] for name, gate in GATES.items()}
    indices = jnp.broadcast_to(jnp.arange(3), (1, T, K, 3))
    key = attn_tune.mean_pooling(k, block_size=SIZE, cu_seqlens=ENDS)
    named = attn_tune.select_blocks(q, key, num_selected=2, num_near=1, block_size=SIZE, cu_seqlens=ENDS)
    out = SPARSE(q, k, v, indices, **gates, window_size=9, cu_seqlens=ENDS)
    own = slice(21, 64)
    alone = [x[:, own] for x in (q, k, v)]
    its = {name: gate[:, own] for name, gate in gates.items()}
    single = SPARSE(*alone, indices[:, own], **its, window_size=9)
    np.testing.assert_allclose(out[:, own], single, atol=2e-6)
    pooled = attn_tune.mean_pooling(alone[1], block_size=SIZE)
    found = attn_tune.select_blocks(alone[0], pooled, num_selected=2, num_near=1, block_size=SIZE)
    np.testing.assert_array_equal(named[:, own], found)
    assert not np.asarray(out[:, 64:]).any()
    assert (np.asarray(named[:, 64:]) == -1).all()


@pytest.mark.parametrize("call", [lambda run: run, jax.jit], ids=["known", "traced"])
def test_tokens_before_the_first_of_packed_sequences_are_of_none(call):
    q, k, v = (x[:1] for x in ARRAYS)
    gates = {name: gate[:1] for name, gate in GATES.items()}
    run = call(lambda ends: SPARSE(q, k, v, chosen()[:1], **gates, window_size=9, cu_seqlens=ends))
    found, whole = run(jnp.array([7, 21, 64], jnp.int32)), run(jnp.array([0, 7, 21, 64], jnp.int32))
    np.testing.assert_array_equal(found[:, 7:], whole[:, 7:])
    assert not np.asarray(found[:, :7]).any()


def test_numbers_of_64_bits_count_all_entries_and_tokens():
    q, k, v = (x[:1] for x in ARRAYS)
    many = {"block_counts": np.full((1, T, K), 2**33), "cu_seqlens": jnp.array([0, 2**31 - 1])}
    np.testing.assert_array_equal(SPARSE(q, k, v, chosen()[:1], **many), SPARSE(q, k, v, chosen()[:1]))
    with pytest.raises(UsageError, match=f"cu_seqlens ends at {2**33}, but there are {T} tokens"):
        SPARSE(q, k, v, chosen()[:1], cu_seqlens=np.array([0, 2**33]))


def test_selection_names_own_near_and_first_blocks_and_those_of_the_highest_shares():
    q, k, _ = ARRAYS
    pooled = attn_tune.mean_pooling(k, block_size=SIZE)
    named = np.asarray(attn_tune.select_blocks(q, pooled, num_selected=4, block_size=SIZE))
    own = np.arange(T) // SIZE
    for row in range(T):
        count = min(own[row] + 1, 4)
        assert (named[:, row, :, :count] >= 0).all()
        assert (named[:, row, :, count:] == -1).all()
    assert (named[..., 0] == own[:, None]).all()
    # Without fixed blocks: the two of the highest mean share of those that end before the query.
    free = attn_tune.select_blocks(q, pooled, num_selected=2, num_first=0, num_near=0, block_size=SIZE)
    logits = np.einsum("btkgh,bskh->btkgs", np.asarray(q).reshape(B, T, K, N // K, H), pooled) * H**-0.5
    shares = np.exp(logits[:, 64:, ..., :4])
    shares = (shares / shares.sum(-1, keepdims=True)).mean(3)
    np.testing.assert_array_equal(free[:, 64:], np.argsort(-shares, axis=-1)[..., :2])
    assert (np.asarray(free[:, : SIZE - 1]) == -1).all()
    longer = attn_tune.select_blocks(q[:, -3:], pooled, num_selected=4, block_size=SIZE, kv_len=T)
    np.testing.assert_array_equal(longer, named[:, -3:])


def test_fewer_queries_than_keys_are_the_last_ones():
    whole = SPARSE(*ARRAYS, chosen(), g_cmp=GATES["g_cmp"])
    q, last = ARRAYS[0][:, -9:], chosen()[:, -9:]
    found = SPARSE(q, *ARRAYS[1:], last, g_cmp=GATES["g_cmp"][:, -9:])
    np.testing.assert_allclose(found, whole[:, -9:], atol=2e-6)


def test_vmap_folds_selected_blocks_into_the_batch():
    folded = jax.vmap(SPARSE)(*(x[:, None] for x in (*ARRAYS, chosen())))
    np.testing.assert_allclose(folded[:, 0], SPARSE(*ARRAYS, chosen()), atol=2e-6)


@pytest.mark.slow
def test_sharded_native_sparse_attention_is_not_gathered():
    printed = run_with_devices(4, "-m", "tests.api.native_sparse_sharded")
    assert printed.split() == ["Auto", "Explicit", "specs"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block_indices": chosen()[:, :9]}, r"block_indices must be integers \[2, 70, 2, 3\] beside query"),
        ({"block_indices": chosen().astype(np.float32)}, "block_indices must be integers"),
        ({"block_size": 24}, r"block_size=24 \(block\) must be a power of two between 16 and 256"),
        ({"block_size": 16.0}, "block_size must be an integer"),
        ({"block_counts": np.ones((B, T))}, r"block_counts must be an integer or integers \[2, 70, 2\]"),
        ({"g_cmp": GATES["g_cmp"][..., :2]}, r"g_cmp must be numbers \[2, 70, 6\]"),
        ({"window_size": 8}, "window_size and g_swa belong together"),
        ({"g_slc": GATES["g_slc"], "return_lse": True}, "return_lse is the lse of the selected branch alone"),
        ({"cu_seqlens": np.array([0.0, 70.0])}, "a batch of 1"),
        ({"cu_seqlens": ENDS}, "a batch of 1, got a batch of 2"),
        ({"workload": "eq"}, "unknown workload 'eq'"),
    ],
)
def test_a_malformed_argument_of_native_sparse_attention_is_named(change, words):
    given = {"block_indices": chosen(), "block_size": SIZE} | change
    with pytest.raises(UsageError, match=words):
        attn_tune.native_sparse_attention(*ARRAYS, **given)


def test_compressed_keys_of_another_number_of_blocks_are_refused():
    q, k, v = ARRAYS
    with pytest.raises(UsageError, match="key must have 5 blocks of 16 tokens beside 70 keys"):
        attn_tune.compressed_attention(q, k, v, block_size=SIZE)
    with pytest.raises(UsageError, match="key must have 5 blocks beside 70 keys"):
        attn_tune.select_blocks(q, k, block_size=SIZE)
    with pytest.raises(UsageError, match="num_selected=2 is less than num_first=1 and num_near=2 together"):
        attn_tune.select_blocks(q, k, num_selected=2, block_size=SIZE)


def test_compressed_attention_refuses_a_mask_beside_that_of_its_blocks():
    q, k, v = ARRAYS
    with pytest.raises(UsageError, match="mask_info is that of the blocks here"):
        attn_tune.compressed_attention(q, k, v, block_size=SIZE, mask_info=attn_tune.MaskInfo(causal=True))


def test_a_second_derivative_of_selected_blocks_is_refused():
    with pytest.raises(UnsupportedError, match="native_sparse_attention has no second derivative"):
        jax.eval_shape(jax.hessian(lambda q: SPARSE(q, *ARRAYS[1:], chosen()).sum()), ARRAYS[0])
