"""The public flash_attention against plain dense attention: every feature, forward and every gradient."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.api.attention import attention
from attn_tune.api.flash_attention import flash_attention
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import AttnTuneWarning, UsageError
from tests.chosen import chosen, exhaustive
from tests.kernels.dense import bounds, dense_attention, keep_mask

B, T, S, N, K, H = 2, 9, 13, 4, 2, 8


def draw(seed, *shape, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), dtype)


def qkv(batch=B, q_len=T, kv_len=S, heads=N, kv_heads=K, dim=H, v_dim=H, dtype=jnp.float32):
    return (
        draw(1, batch, q_len, heads, dim, dtype=dtype),
        draw(2, batch, kv_len, kv_heads, dim, dtype=dtype),
        draw(3, batch, kv_len, kv_heads, v_dim, dtype=dtype),
    )


def segments(length, cuts):
    ids = np.searchsorted(np.array(cuts), np.arange(length), side="right")
    return jnp.asarray(np.broadcast_to(ids, (B, length)))


MASK = np.random.default_rng(0).random((B, N, T, S)) < 0.7
Q_IDS, KV_IDS = segments(T, [4]), segments(S, [6])
SAME = np.asarray(Q_IDS)[:, None, :, None] == np.asarray(KV_IDS)[:, None, None, :]
PADDING = np.arange(S)[None] < np.array([[7], [13]])

# name: (arguments of flash_attention, arguments of dense_attention)
CASES = {
    "window": ({"sliding_window": (2, 4)}, {"visible": bounds(T, S, left=2, right=4)}),
    "everything": (
        {
            "q_segment_ids": Q_IDS,
            "kv_segment_ids": KV_IDS,
            "attention_mask": jnp.asarray(MASK),
            "causal": True,
            "sliding_window": (6, 1),
            "logits_soft_cap": 3.0,
            "softmax_scale": 0.5,
        },
        {"visible": SAME & MASK & bounds(T, S, causal=True, left=6), "cap": 3.0, "scale": 0.5},
    ),
    "mask_info_twice": (
        {
            "mask_info": MaskInfo.from_lengths(jnp.array([7, 13]), q_len=T, kv_len=S, causal=True),
            "q_segment_ids": Q_IDS,
            "kv_segment_ids": KV_IDS,
        },
        {"visible": SAME & PADDING[:, None, None] & bounds(T, S, causal=True)},
    ),
}


def both(ours, theirs, values, argnums, has_aux=False):
    """Value and gradient of two functions, compiled together: compiling is most of what these tests cost."""

    def run(*values):
        return tuple(jax.value_and_grad(f, argnums, has_aux=has_aux)(*values) for f in (ours, theirs))

    return jax.jit(run)(*values)


def assert_close(got, want, tolerance=2e-5):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance), got, want)


def check(arguments, plain, arrays, extra=(), tolerance=2e-5):
    """Forward, lse and the gradient of q, k, v and ``extra`` (name in ours, name in dense, array)."""
    names = [(ours, theirs) for ours, theirs, _ in extra]
    values = (*arrays, *(array for _, _, array in extra))
    weight, lse_weight = (
        draw(7, *arrays[0].shape[:3], arrays[2].shape[3]),
        draw(8, 1, 1, arrays[0].shape[1]),
    )

    def loss(out, lse):
        return jnp.sum(out * weight) + jnp.sum(jnp.where(jnp.isneginf(lse), 0.0, lse) * lse_weight)

    def ours(q, k, v, *rest):
        more = {name: x for (name, _), x in zip(names, rest, strict=True)}
        out, lse = flash_attention(q, k, v, **arguments, **more, return_lse=True)
        return loss(out, lse), (out, lse)

    def theirs(q, k, v, *rest):
        more = {name: x for (_, name), x in zip(names, rest, strict=True)}
        out, lse, _ = dense_attention(q, k, v, **plain, **more)
        return loss(out, lse), (out, lse)

    every = tuple(range(len(values)))
    ((_, got), got_grads), ((_, want), want_grads) = both(ours, theirs, values, every, has_aux=True)
    for a, b in zip((*got, *got_grads), (*want, *want_grads), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_each_feature_equals_dense_attention_with_all_gradients(name):
    arguments, plain = CASES[name]
    check(arguments, plain, qkv())


@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "v_dim"),
    chosen([(4, 1, 8, 8), (6, 2, 8, 12)], [(6, 2, 8, 12)]),
)
def test_head_groupings_and_value_head_dim(heads, kv_heads, dim, v_dim):
    arrays = qkv(heads=heads, kv_heads=kv_heads, dim=dim, v_dim=v_dim)
    check({"causal": True}, {"visible": bounds(T, S, causal=True)}, arrays)


@pytest.mark.parametrize("shape", [(1, 1, T, 1), (B, K, T, S), *map(exhaustive, [(B, 1, T, S), (1, N, 1, S)])])
def test_bias_gradient_keeps_the_bias_shape(shape):
    bias, weight, arrays = draw(4, *shape), draw(7, B, T, N, H), qkv()
    visible = bounds(T, S, causal=True)

    def ours(b):
        return jnp.sum(flash_attention(*arrays, b, causal=True) * weight)

    def theirs(b):
        grown = jnp.repeat(b, N // K, axis=1) if b.shape[1] == K else b
        return jnp.sum(dense_attention(*arrays, bias=grown, visible=visible)[0] * weight)

    got, want = both(ours, theirs, (bias,), 0)
    assert got[1].shape == shape
    assert_close(got, want)


def test_bias_comes_after_the_soft_cap():
    check({"logits_soft_cap": 1.5}, {"cap": 1.5}, qkv(), [("bias", "bias", draw(4, B, N, T, S))])


@pytest.mark.parametrize("shape", [(3,), (K, 2), exhaustive((N, 3))])
def test_sinks_of_every_shape_with_their_gradient(shape):
    aux = draw(5, *shape)

    def one_per_head(a):
        a = a[:, None] if a.shape == (N,) else a[None] if a.ndim == 1 else a
        return jnp.repeat(jax.nn.logsumexp(a, axis=1), N // a.shape[0])

    weight, arrays = draw(7, B, T, N, H), qkv()
    visible = bounds(T, S, causal=True, left=2)

    def ours(a, q):
        out = flash_attention(q, *arrays[1:], softmax_aux=a, causal=True, sliding_window=2)
        return jnp.sum(out * weight)

    def theirs(a, q):
        out = dense_attention(q, *arrays[1:], sinks=one_per_head(a), visible=visible)[0]
        return jnp.sum(out * weight)

    assert_close(*both(ours, theirs, (aux, arrays[0]), (0, 1)))


def test_sinks_take_part_in_lse_and_its_gradient():
    check(
        {"causal": True},
        {"visible": bounds(T, S, causal=True)},
        qkv(),
        [("softmax_aux", "sinks", draw(5, N))],
    )


@pytest.mark.parametrize("with_sinks", [False, True])
def test_rows_that_see_nothing_give_zeros_and_zero_gradients(with_sinks):
    arrays = qkv(q_len=S, kv_len=T)  # causal with T > S: the first rows stand before every key
    aux = draw(5, N) if with_sinks else None

    def loss(q, k, v):
        out, lse = flash_attention(q, k, v, softmax_aux=aux, causal=True, return_lse=True)
        return jnp.sum(out), (out, lse)

    (_, (out, lse)), grads = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*arrays)
    assert all(jnp.isfinite(g).all() for g in grads)
    assert not out[:, : S - T].any()
    assert not grads[0][:, : S - T].any()
    empty = lse[:, :, : S - T]
    np.testing.assert_array_equal(empty, aux[None, :, None] + 0 * empty if with_sinks else -jnp.inf)


@pytest.mark.parametrize(("batch", "t"), [(0, 4), (2, 0)])
def test_no_rows_give_no_rows_and_zero_gradients(batch, t):
    q, k, v = (jnp.ones((batch, n, 4, width)) for n, width in ((t, 8), (5, 8), (5, 16)))

    def loss(*arrays):
        out, lse = flash_attention(*arrays[:3], softmax_aux=arrays[3], causal=True, return_lse=True)
        return out.sum() + lse.sum(), (out.shape, lse.shape)

    arrays = (q, k, v, jnp.ones((4, 1)))
    gradients, shapes = jax.grad(loss, (0, 1, 2, 3), has_aux=True)(*arrays)
    assert shapes == ((batch, t, 4, 16), (batch, 4, t))
    jax.tree.map(np.testing.assert_array_equal, gradients, tuple(map(jnp.zeros_like, arrays)))
    with pytest.raises(UsageError, match="batch and head dim"):
        flash_attention(q, k[:1, :, :, :7], v[:1])


def test_no_keys_are_refused():
    with pytest.raises(UsageError, match=r"key is empty: shape \(2, 0, 4, 8\)"):
        flash_attention(*(jnp.ones((2, n, 4, 8)) for n in (3, 0, 0)))


def test_dropout_follows_the_published_recipe_forward_and_backward():
    rate = 0.3
    keep = keep_mask(1234, rate, B, N, T, S)
    assert 0 < keep.mean() < 1
    check({"dropout_prob": rate, "dropout_seed": 1234}, {"keep": keep, "rate": rate}, qkv())


def test_dropout_seeds_of_every_kind():
    arrays = qkv()
    key = jax.random.key(3)

    @jax.jit
    def run(traced, key):
        def call(seed):
            return flash_attention(*arrays, dropout_prob=0.4, dropout_seed=seed)

        return (
            call(7),
            call(traced),
            call(None),
            call(0),
            call(8),
            call(key),
            call(jax.random.bits(key)),
        )

    seven, traced, nothing, zero, eight, of_key, of_bits = run(jnp.uint32(7), key)
    assert_close((seven, nothing, of_key), (traced, zero, of_bits), 1e-6)
    assert not np.allclose(seven, eight)


def test_without_dropout_the_seed_does_not_matter():
    arrays = qkv()
    np.testing.assert_array_equal(flash_attention(*arrays, dropout_seed=3), flash_attention(*arrays))


SAME_ENDS, OWN_ENDS = ((0, 3, 9), (0, 3, 9)), ((0, 2, 7), (0, 6, 11))


@pytest.mark.parametrize(
    ("offsets", "window", "causal"),
    chosen(
        itertools.product((((0, 3, 9), None), SAME_ENDS, OWN_ENDS), (None, 2), (False, True)),
        [(((0, 3, 9), None), None, True), (SAME_ENDS, 2, False), (OWN_ENDS, 2, True)],
    ),
)
def test_packed_sequences_equal_one_call_each(causal, window, offsets):
    q_offsets, kv_offsets = offsets
    q_len, kv_len = (T, T) if kv_offsets is None or kv_offsets == q_offsets else (T, S)
    q, k, v = qkv(batch=1, q_len=q_len, kv_len=kv_len)
    arrays = [jnp.array(o) for o in offsets if o is not None]
    arguments = {"causal": causal, "sliding_window": window}
    weight = draw(7, 1, q_len, N, H)

    def packed(q, k, v):
        out = flash_attention(q, k, v, None, *arrays, **arguments)
        return jnp.sum(weight * out), out

    def one_by_one(q, k, v):
        total = 0.0
        starts = kv_offsets or q_offsets
        for r in range(len(q_offsets) - 1):
            a, b = q_offsets[r], q_offsets[r + 1]
            c, d = starts[r], starts[r + 1]
            part = flash_attention(q[:, a:b], k[:, c:d], v[:, c:d], **arguments)
            total += jnp.sum(weight[:, a:b] * part)
        return total, total

    ((total, out), gradients), ((wanted, _), slopes) = both(packed, one_by_one, (q, k, v), (0, 1, 2), has_aux=True)
    assert_close((total, gradients), (wanted, slopes))
    assert not out[:, q_offsets[-1] :].any()


@pytest.mark.parametrize("dtype", [jnp.bfloat16])
def test_low_precision_keeps_its_dtypes(dtype):
    arrays = qkv(dtype=dtype)
    bias = draw(4, 1, N, T, S, dtype=dtype)
    out, lse = flash_attention(*arrays, bias, return_lse=True)
    assert (out.dtype, lse.dtype) == (dtype, jnp.float32)
    gradient = jax.grad(lambda *a: flash_attention(*a).astype(jnp.float32).sum(), (0, 1, 2, 3))
    grads = jax.jit(gradient)(*arrays, bias)
    assert [g.dtype for g in grads] == [dtype] * 4
    want = dense_attention(*arrays, bias=bias)[0]
    np.testing.assert_allclose(out.astype(jnp.float32), want, atol=3e-2, rtol=3e-2)


def test_rounded_logits_differ_from_float32_ones_by_their_rounding():
    arrays = qkv()
    exact, rounded = flash_attention(*arrays), flash_attention(*arrays, logits_dtype="bfloat16")
    assert 1e-5 < float(jnp.abs(exact - rounded).max()) < 3e-2


def test_checkpoint_recomputes_the_same_gradient():
    arrays = qkv()
    loss = lambda q: flash_attention(q, *arrays[1:], causal=True).sum()  # noqa: E731
    np.testing.assert_array_equal(jax.grad(jax.checkpoint(loss))(arrays[0]), jax.grad(loss)(arrays[0]))


def test_checkpoint_policy_can_save_the_residuals_by_name(capsys):
    arrays = qkv()
    policy = jax.checkpoint_policies.save_only_these_names("flash_attention_out", "flash_attention_lse")
    loss = jax.checkpoint(lambda q: jnp.sin(flash_attention(q, *arrays[1:])).sum(), policy=policy)
    jax.ad_checkpoint.print_saved_residuals(loss, arrays[0])
    saved = capsys.readouterr().out
    assert f"f32[{B},{T},{N},{H}]" in saved
    assert f"f32[{B},{N},{T}]" in saved


def test_swapped_axes_get_a_warning_and_many_heads_none():
    def trace(q, kv):
        jax.eval_shape(flash_attention, *(jax.ShapeDtypeStruct(s, jnp.float32) for s in (q, kv, kv)))

    with pytest.warns(AttnTuneWarning, match=r"8 tokens of 512 heads.* swap axes 1 and 2") as warned:
        trace((1, 8, 512, 64), (1, 8, 512, 64))
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace((1, 1, 512, 64), (1, 2048, 512, 64))
        trace((1, 1, 512, 64), (1, 8, 128, 64))


def test_a_config_as_a_mapping_needs_its_kernel_s_name():
    config = {"chunk_q": 8, "chunk_k": 8}
    with pytest.raises(UsageError, match="name one too, by platform= in a call"):
        flash_attention(*qkv(), cfg={"fwd": config})
    out = flash_attention(*qkv(), cfg={"fwd": config}, platform="xla")
    np.testing.assert_allclose(out, flash_attention(*qkv()), atol=1e-5)


def test_segment_ids_that_are_no_numbers_are_refused_by_name():
    with pytest.raises(UsageError, match=r"kv_segment_ids must be integers \[B, length\], got <U3\[\]"):
        flash_attention(*qkv(), q_segment_ids=np.zeros((B, T), int), kv_segment_ids="foo")


def test_wide_integers_are_not_cut_to_32_bits():
    q, k, v = qkv()
    wide = np.where(np.asarray(SAME[0, 0]).any(0)[None], 2**40, 0) * np.ones((B, 1), np.int64)
    padding = flash_attention(q, k, v, attention_mask=wide)
    np.testing.assert_array_equal(padding, flash_attention(q, k, v, attention_mask=wide != 0))
    ids = np.array([[1] * T] * B) + 2**32
    with pytest.raises(UsageError, match="q_segment_ids must fit int32, got values from 4294967297"):
        flash_attention(q, k, v, q_segment_ids=ids, kv_segment_ids=np.ones((B, S), np.int64))
    same = flash_attention(q, k, v, q_segment_ids=ids - 2**32, kv_segment_ids=np.ones((B, S), int))
    np.testing.assert_allclose(same, flash_attention(q, k, v), atol=1e-6)


def test_traced_ids_of_64_bits_are_not_cut_to_32_bits():
    q, k, v = qkv()
    small = np.arange(T) * 3 // T, np.arange(S) * 3 // S
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.array([-(2**40), 0, 2**32])[ids])[None].repeat(B, 0) for ids in small]
        call = jax.jit(lambda a, b: flash_attention(q, k, v, q_segment_ids=a, kv_segment_ids=b))
        found = call(*wide)
        np.testing.assert_array_equal(found, call(*(jnp.asarray(ids)[None].repeat(B, 0) for ids in small)))
    assert np.abs(found - flash_attention(q, k, v)).max() > 0.1


@pytest.mark.parametrize("op", ["flash_attention", "attention"])
def test_the_largest_of_logits_up_to_two_billion_takes_all_and_up_to_ten_thousand_has_the_gradient(op):
    value = draw(1, 1, S, 1, H)

    def out(value, largest):
        query = jnp.zeros((1, 3, 1, H)).at[..., 0].set(2.0**16)
        key = jnp.zeros((1, S, 1, H)).at[0, :, 0, 0].set(jnp.linspace(0, largest / 0.3 / 2**16, S))
        if op == "attention":
            return attention(query, key, value, softmax_scale=0.3, dtype=jnp.float32)[0]
        return flash_attention(query, key, value, softmax_scale=0.3)

    found = jax.jit(out)(value, 2e9)
    np.testing.assert_allclose(found, jnp.broadcast_to(value[:, -1:], found.shape), rtol=1e-6)
    gradient = jax.jit(jax.grad(lambda value: out(value, 1e4).sum()))(value)
    np.testing.assert_allclose(gradient, jnp.zeros_like(value).at[:, -1].set(3.0), rtol=1e-3)


def test_a_symbolic_batch_is_refused_by_name():
    (batch,) = jax.export.symbolic_shape("batch")
    arrays = [jax.ShapeDtypeStruct((batch, T, N, H), jnp.float32)] * 3
    with pytest.raises(UsageError, match=r"batch=batch must be a positive integer; .* none may be symbolic"):
        jax.export.export(jax.jit(flash_attention))(*arrays)


@pytest.mark.parametrize("op", [flash_attention, lambda *x, **more: attention(*x, **more)[0]], ids=["flash", "dense"])
@pytest.mark.parametrize("window", [2**31, (2**40, None), (T + S, T + S)])
def test_windows_wider_than_all_keys_hide_nothing(op, window):
    np.testing.assert_array_equal(op(*qkv(), sliding_window=window), op(*qkv()))
