"""The public ``merge_attention``: halves of keys, order of merges, empty parts, gradients, meshes, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.schema.errors import UsageError
from tests.api.sharded_cases import kept
from tests.several_devices import run_with_devices

N, V = 4, 16


def parts_of(count, *rows, dtype=jnp.float32):
    keys = jax.random.split(jax.random.key(5), 2 * count)
    outs = [jax.random.normal(key, (*rows, N, V)).astype(dtype) for key in keys[:count]]
    return outs, [2 * jax.random.normal(key, (*rows, N)) for key in keys[count:]]


def test_parts_of_the_keys_are_the_whole():
    q, k, v = (jax.random.normal(jax.random.key(i), (2, 6, heads, V)) for i, heads in enumerate((N, 2, 2)))
    whole, lse = attn_tune.flash_attention(q, k, v, return_lse=True)
    found = [attn_tune.flash_attention(q, k[:, a:b], v[:, a:b], return_lse=True) for a, b in ((0, 1), (1, 4), (4, 6))]
    out, log = attn_tune.merge_attention([o for o, _ in found], [x.swapaxes(1, 2) for _, x in found])
    np.testing.assert_allclose(out, whole, atol=1e-5)
    np.testing.assert_allclose(log, lse.swapaxes(1, 2), atol=1e-5)


def test_what_was_merged_is_a_part_again():
    outs, logs = parts_of(4, 7)
    at_once = attn_tune.merge_attention(outs, logs)
    first = attn_tune.merge_attention(outs[2:], logs[2:])
    again = attn_tune.merge_attention([outs[1], first[0], outs[0]], [logs[1], first[1], logs[0]])
    for one, other in zip(at_once, again, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_a_part_that_saw_nothing_leaves_the_other_as_it_is():
    outs, logs = parts_of(2, 3, 2, dtype=jnp.bfloat16)
    logs[0] = logs[0].at[1].set(-jnp.inf)
    outs[0] = outs[0].at[1].set(jnp.nan)
    logs[1] = logs[1].at[1, 1].set(-jnp.inf)
    outs[1] = outs[1].at[1, 1].set(jnp.inf)
    out, lse = attn_tune.merge_attention(outs, logs)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out[1, 0], outs[1][1, 0])
    np.testing.assert_array_equal(lse[1, 0], logs[1][1, 0])
    assert not np.asarray(out[1, 1], np.float32).any()
    assert np.isneginf(lse[1, 1]).all()
    assert np.isfinite(np.asarray(out, np.float32)).all()


@pytest.mark.parametrize("wild", [jnp.nan, jnp.inf])
def test_an_lse_that_is_no_number_or_plus_infinity_makes_its_row_nan(wild):
    outs, logs = parts_of(2, 3)
    logs[1] = logs[1].at[1, 2].set(wild)
    for out, lse in (attn_tune.merge_attention(outs, logs), attn_tune.merge_attention(outs[::-1], logs[::-1])):
        is_wild = np.zeros((3, N), bool)
        is_wild[1, 2] = True
        np.testing.assert_array_equal(np.isnan(out), np.broadcast_to(is_wild[..., None], out.shape))
        np.testing.assert_array_equal(np.isnan(lse), is_wild)


def test_the_output_has_the_dtype_that_is_asked_for():
    outs, logs = parts_of(2, 5)
    out, lse = attn_tune.merge_attention(outs, logs, out_dtype=jnp.float16)
    assert (out.dtype, lse.dtype) == (jnp.float16, jnp.float32)
    np.testing.assert_array_equal(out, attn_tune.merge_attention(outs, logs)[0].astype(jnp.float16))


def test_gradients_are_those_of_the_formula():
    outs, logs = parts_of(3, 4)
    logs[0] = logs[0].at[:2].set(-jnp.inf)
    logs[1] = logs[1].at[:1].set(-jnp.inf)
    logs[2] = logs[2].at[:1].set(-jnp.inf)
    weights = jax.random.normal(jax.random.key(9), (4, N, V))

    def loss(merge, outs, logs):
        out, lse = merge(outs, logs)
        return jnp.sum(out * weights) + jnp.sum(jnp.where(jnp.isneginf(lse), 0, lse) ** 2)

    def formula(outs, logs):
        # Row 0 sees nothing; of the others this is defined.
        outs, logs = jnp.stack(outs)[:, 1:], jnp.stack(logs)[:, 1:]
        lse = jax.nn.logsumexp(logs, axis=0)
        out = jnp.sum(jnp.exp(logs - lse)[..., None] * outs, axis=0)
        return jnp.pad(out, [(1, 0), (0, 0), (0, 0)]), jnp.pad(lse, [(1, 0), (0, 0)], constant_values=-jnp.inf)

    ours, theirs = (
        jax.jit(jax.grad(lambda given, merge=merge: loss(merge, *given)))((outs, logs))
        for merge in (attn_tune.merge_attention, formula)
    )
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.slow
@kept("queries-Explicit", "both-Auto", of=("queries", "heads", "both"))
def test_sharded_queries_and_heads_are_not_gathered(cases):
    assert run_with_devices(4, "-m", "tests.api.merge_attention_sharded", *cases).split() == cases


def test_vmap_folds_into_the_rows():
    outs, logs = parts_of(2, 3, 5)
    out, lse = jax.vmap(lambda o, x: attn_tune.merge_attention(o, x))(outs, logs)
    whole, whole_lse = attn_tune.merge_attention(outs, logs)
    np.testing.assert_array_equal(out, whole)
    np.testing.assert_array_equal(lse, whole_lse)


@pytest.mark.parametrize(
    ("outs", "lses", "words"),
    [
        (0, 0, "outs must be a list or tuple with an array for each part, got int"),
        (slice(1), slice(1), "outs must have 2 to 4 parts, got 1"),
        (slice(2), slice(1), "lses has 1 parts and outs 2"),
        (lambda x: x.astype(jnp.int32), slice(2), r"outs\[0\] must have dtype"),
        (lambda x: x[0], slice(2), r"outs\[0\] must be \[tokens, N, V\] or"),
        (lambda x: x[:, :3], slice(2), r"lses\[0\] must be float32\[3, 3\], the axes of outs\[0\] but the last"),
        (slice(2), lambda x: x.astype(jnp.bfloat16), r"lses\[0\] must be float32"),
    ],
)
def test_a_malformed_argument_is_named(outs, lses, words):
    given = [
        kind if kind == 0 else array[kind] if isinstance(kind, slice) else [kind(x) for x in array]
        for kind, array in zip((outs, lses), parts_of(2, 3), strict=True)
    ]
    with pytest.raises(UsageError, match=words):
        attn_tune.merge_attention(*given)


def test_parts_of_unlike_shapes_and_an_unknown_dtype_are_refused():
    outs, logs = parts_of(2, 3)
    with pytest.raises(UsageError, match=r"one shape and dtype, got float32\[3, 4, 16\] and outs\[1\] float32\[2"):
        attn_tune.merge_attention([outs[0], outs[1][:2]], logs)
    with pytest.raises(UsageError, match="out_dtype must be one of"):
        attn_tune.merge_attention(outs, logs, out_dtype=jnp.int8)
    with pytest.raises(UsageError, match="unknown kernel of merge_attention 'cuda'"):
        attn_tune.merge_attention(outs, logs, platform="cuda")
