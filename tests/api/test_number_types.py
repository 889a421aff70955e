"""64-bit types enabled, and numpy arrays in place of jax's: the same results in the documented dtypes."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import attn_tune
from attn_tune.api.attention import attention
from attn_tune.api.flash_attention import flash_attention
from attn_tune.ops.fields.integers import as_integer
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import UsageError
from tests.chosen import chosen

B, T, S, N, K, H = 1, 4, 6, 2, 1, 4


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


Q, KEYS, V = draw(1, B, T, N, H), draw(2, B, S, K, H), draw(3, B, S, K, H)
BIAS, SINKS = draw(4, 1, N, T, S), draw(5, N, 2)
MASK = np.arange(S)[None] < 5
Q_IDS, KV_IDS = np.array([[0, 0, 1, 1]]), np.array([[0, 0, 0, 1, 1, 1]])

# As numpy made them: some of 64 bits.
CASES = {
    "sinks": {"softmax_aux": SINKS.astype(np.float64)},
    "sinks and bias": {"bias": BIAS, "softmax_aux": SINKS},
    "wide bias": {"bias": BIAS.astype(np.float64)},
    "mask": {"attention_mask": MASK, "causal": True},
    "segments": {"q_segment_ids": Q_IDS, "kv_segment_ids": KV_IDS, "softmax_aux": SINKS},
    "lengths": {"mask_info": MaskInfo.from_lengths(np.array([5]), np.array([3]), q_len=T, kv_len=S)},
    "cumulative": {
        "cum_seqlens_q": np.array([0, 1, 4]),
        "cum_seqlens_k": np.array([0, 3, 6]),
        "causal": True,
    },
    "options": {
        "logits_soft_cap": np.float64(2.0),
        "dropout_prob": 0.2,
        "dropout_seed": np.int64(3),
        "sliding_window": 3,
        "logits_dtype": np.float16,
    },
}


def outputs_and_gradients(name, op, asarray):
    """``(out, lse or weights)`` and the gradients of q, k, v and of what the case has of bias and sinks."""
    given = dict(CASES[name])
    own = {n: asarray(given.pop(n)) for n in ("bias", "softmax_aux") if n in given}

    def call(q, k, v, own):
        if op == "dense":
            return attention(q, k, v, **own, **given, dtype=jnp.float32)
        normalised = op != "unnormalised"
        return flash_attention(q, k, v, **own, **given, normalize_output=normalised, return_lse=True)

    arrays = (*map(asarray, (Q, KEYS, V)), own)
    outputs = call(*arrays)
    grads = jax.jit(jax.grad(lambda *x: call(*x)[0].astype(jnp.float32).sum(), (0, 1, 2, 3)))(*arrays)
    return outputs, grads


@pytest.mark.parametrize(
    ("op", "name"),
    chosen(
        [
            *(("flash", name) for name in CASES),
            ("unnormalised", "sinks and bias"),
            ("unnormalised", "cumulative"),
            *(("dense", name) for name in ("sinks and bias", "mask", "lengths")),
        ],
        [
            *(("flash", name) for name in ("wide bias", "segments", "cumulative", "options")),
            *(("unnormalised", "sinks and bias"), ("dense", "mask")),
        ],
    ),
)
def test_with_64_bit_types_and_numpy_arrays_all_is_as_without(op, name):
    # Compiled as a whole for the sake of time; numpy arrays that a function closes over reach the op as they are.
    want, want_grads = jax.jit(lambda: outputs_and_gradients(name, op, jnp.asarray))()
    with jax.enable_x64(True):
        got, grads = jax.jit(lambda: outputs_and_gradients(name, op, np.asarray))()
    assert [x.dtype for x in got] == [jnp.float32] * 2
    assert [g.dtype for g in grads[:3]] == [jnp.float32] * 3
    assert {n: g.dtype for n, g in grads[3].items()} == {n: CASES[name][n].dtype for n in grads[3]}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5),
        (got, grads),
        (want, want_grads),
    )


def test_numpy_arrays_of_16_bits_without_normalising():
    arrays = [x.astype(ml_dtypes.bfloat16) for x in (Q, KEYS, V)]

    @jax.jit
    def both(*traced):
        return tuple(flash_attention(*x, BIAS, softmax_aux=SINKS, normalize_output=False) for x in (arrays, traced))

    got, want = both(*arrays)
    assert got.dtype == jnp.bfloat16
    np.testing.assert_array_equal(got, want)


# Calls of zeros by the integer that decides their program, with the one that Python would write.
SIXTEEN, BLOCKS, ROWS = np.zeros((1, 32, 2, 16), np.float32), np.zeros((1, 32, 2, 2), np.int32), np.zeros((1, 32, 16))
PAGES, LENGTHS = np.zeros((2, 16, 1, 16), np.float32), np.array([5], np.int32)
DECIDED = {
    "topk": (4, lambda n: attn_tune.indexer_topk(SIXTEEN, ROWS.astype(np.float32), SIXTEEN[..., 0], topk=n)),
    "block_size": (16, lambda n: attn_tune.native_sparse_attention(*[SIXTEEN] * 3, BLOCKS, block_size=n)),
    "window_size": (
        8,
        lambda n: attn_tune.native_sparse_attention(
            *[SIXTEEN] * 3, BLOCKS, block_size=16, g_swa=SIXTEEN[..., 0], window_size=n
        ),
    ),
    "block_size of means": (16, lambda n: attn_tune.mean_pooling(SIXTEEN, block_size=n)),
    "kv_len": (32, lambda n: attn_tune.select_blocks(SIXTEEN, SIXTEEN[:, :2], num_selected=3, block_size=16, kv_len=n)),
    "num_selected": (3, lambda n: attn_tune.select_blocks(SIXTEEN, SIXTEEN[:, :2], num_selected=n, block_size=16)),
    "num_near": (
        1,
        lambda n: attn_tune.select_blocks(SIXTEEN, SIXTEEN[:, :2], num_selected=2, num_near=n, block_size=16),
    ),
    "block_size of a mask": (
        16,
        lambda n: attn_tune.block_sparse_attention(*[SIXTEEN] * 3, np.ones((2, 2), bool), block_size=n),
    ),
    "block_size of two": (
        16,
        lambda n: attn_tune.block_sparse_attention(*[SIXTEEN] * 3, np.ones((2, 2), bool), block_size=(n, n)),
    ),
    "n": (2, lambda n: attn_tune.zigzag_shard(SIXTEEN, 1, n)),
    "axis": (1, lambda n: attn_tune.striped_shard(SIXTEEN, n, 2)),
    "max_kv_len": (8, lambda n: paged(max_kv_len=n)),
    "sliding_window": (8, lambda n: paged(sliding_window=n)),
}


def paged(**given):
    return attn_tune.paged_decode(SIXTEEN[:, 0, :1], PAGES, PAGES, LENGTHS, np.array([[0, 1]], np.int32), **given)


@pytest.mark.parametrize("name", DECIDED)
def test_an_integer_of_numpy_decides_the_program_that_pythons_does(name):
    number, call = DECIDED[name]
    want = str(jax.make_jaxpr(lambda: call(number))())
    for kind in (np.int64, np.int32, np.uint8, np.array):
        assert str(jax.make_jaxpr(lambda kind=kind: call(kind(number)))()) == want


@pytest.mark.parametrize("name", DECIDED)
@pytest.mark.parametrize("wrong", [True, np.True_, 4.0, "4"], ids=repr)
def test_what_is_no_integer_is_refused_by_name(name, wrong):
    with pytest.raises(UsageError, match=name.split()[0]):
        DECIDED[name][1](wrong)


def test_traced_integers_bools_and_fractions_are_no_integers():
    assert [as_integer(x) for x in (3, np.uint8(3), jnp.int32(3), np.array(3))] == [3] * 4
    assert [as_integer(x) for x in (None, True, np.False_, 3.0, np.float64(3), "3", np.array([3]))] == [None] * 7
    jax.jit(lambda x: x if as_integer(x) is None else pytest.fail("a traced number decides a program"))(3)
