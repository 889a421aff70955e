"""Masks of builders, rings and sharded calls by ejkernel's names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import attn_tune
import attn_tune.integrations.ejkernel as ours
from attn_tune.ops.masks.mask_info import MaskInfo
from attn_tune.schema.errors import UsageError
from tests.integrations.ejkernel.calls import attend, causal, floats

LENGTH, HEADS = 192, 2
BLOCKS = np.array([[[1, 0, 0], [0, 1, 0], [1, 1, 1]], [[1, 1, 1], [0, 1, 0], [1, 0, 1]]], bool)
WHOLE = BLOCKS.repeat(64, axis=1).repeat(64, axis=2)


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    return floats(rng, 1, HEADS, LENGTH, 16), floats(rng, 1, 1, LENGTH, 16), floats(rng, 1, 1, LENGTH, 16)


def expected(arrays, mask):
    q, k, v = (x[0].swapaxes(0, 1) for x in arrays)
    return attend(q, k, v, mask=mask)[0].swapaxes(0, 1)[None]


def builder(masks):
    return lambda q_len, kv_len, heads, head, repeats: masks[head % len(masks)]


@pytest.fixture
def seen(monkeypatch):
    """The names of the ops that are called."""
    names = []

    def recorded(name):
        op = getattr(attn_tune, name)

        def run(*arguments, **keywords):
            names.append(name)
            return op(*arguments, **keywords)

        return run

    for name in ("block_sparse_attention", "flash_attention"):
        monkeypatch.setitem(vars(attn_tune), name, recorded(name))
    return names


@pytest.mark.parametrize("is_causal", [True, False])
def test_a_builder_of_blocks_is_a_mask_of_blocks(arrays, seen, is_causal):
    out = ours.blocksparse_attention(*arrays, mask_builder=builder(WHOLE), causal=is_causal, sliding_window=(100, 100))
    mask = WHOLE & causal(LENGTH, LENGTH, left=100) if is_causal else WHOLE
    if not is_causal:
        at = np.arange(LENGTH)
        mask = WHOLE & (abs(at[:, None] - at) <= 100)
    np.testing.assert_allclose(out, expected(arrays, mask), atol=2e-4)
    assert seen == ["block_sparse_attention"]


def test_a_builder_of_anything_else_and_sinks_are_a_dense_mask(arrays, seen):
    band = causal(LENGTH, LENGTH, left=70)
    out = ours.blocksparse_attention(*arrays, mask_builder=builder([band]), chunk_size=64)
    chunks = np.arange(LENGTH) // 64
    mask = band & (chunks[:, None] == chunks)
    np.testing.assert_allclose(out, expected(arrays, mask), atol=2e-4)
    sinks = np.array([0.5, 1.0], np.float32)
    out = ours.blocksparse_attention(*arrays, softmax_aux=jnp.asarray(sinks), mask_builder=builder(WHOLE))
    q, k, v = (x[0].swapaxes(0, 1) for x in arrays)
    with_sinks = attend(q, k, v, mask=WHOLE & causal(LENGTH, LENGTH), sinks=sinks[:, None])[0]
    np.testing.assert_allclose(out[0], with_sinks.swapaxes(0, 1), atol=2e-4)
    assert seen == ["flash_attention"] * 2


def test_segments_and_positions_mask_blocksparse_attention(arrays):
    ids = jnp.asarray(np.arange(LENGTH) // 100)[None]
    out = ours.blocksparse_attention(*arrays, mask_info=MaskInfo.from_segments(ids))
    same = np.asarray(ids[0])[:, None] == np.asarray(ids[0])
    np.testing.assert_allclose(out, expected(arrays, same & causal(LENGTH, LENGTH)), atol=2e-4)
    placed = MaskInfo(q_positions=jnp.arange(LENGTH)[None] - 20, kv_positions=jnp.arange(LENGTH)[None])
    out = ours.blocksparse_attention(*arrays, mask_info=placed, causal=True)
    np.testing.assert_allclose(out, expected(arrays, causal(LENGTH, LENGTH, offset=-20)), atol=2e-4)


@pytest.mark.parametrize("kind", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit])
def test_ring_attention_is_attention_with_a_mesh_in_a_shard_map_and_without_an_axis(arrays, kind):
    q, k, v = (jnp.asarray(x.swapaxes(1, 2)) for x in arrays)
    ids = jnp.asarray(np.arange(LENGTH) // 100)[None]
    sinks = np.array([[0.5], [1.0]], np.float32)
    keywords = {"causal": True, "mask_info": MaskInfo.from_segments(ids), "sliding_window": (90, 0)}
    of_mask = {"mask_info": MaskInfo.from_segments(ids, causal=True, sliding_window=(90, 0))}
    alone = ours.ring_attention(q, k, v, jnp.asarray(sinks), **keywords)
    same = np.asarray(ids[0])[:, None] == np.asarray(ids[0])
    one = attend(*(np.asarray(x[0]) for x in (q, k, v)), mask=same & causal(LENGTH, LENGTH, left=90), sinks=sinks)
    np.testing.assert_allclose(alone[0], one[0], atol=2e-4)
    mesh = jax.make_mesh((1,), ("sp",), axis_types=(kind,))
    rows = PartitionSpec(None, "sp")
    sharded = ours.ring_attention(
        q, k, v, jnp.asarray(sinks), axis_name="sp", mesh=mesh, in_specs=(rows,) * 3, out_specs=rows, **keywords
    )
    np.testing.assert_allclose(sharded, alone, atol=2e-4)
    np.testing.assert_array_equal(ours.ring_attention(q, k, v, jnp.asarray(sinks), **of_mask), alone)
    options = {"axis_name": "sp", "mesh": mesh, "in_specs": (rows,) * 3, "out_specs": rows, **of_mask}
    np.testing.assert_array_equal(ours.ring_attention(q, k, v, jnp.asarray(sinks), **options), sharded)
    with pytest.raises(UsageError, match="in_specs"):
        ours.ring_attention(q, k, v, axis_name="sp", mesh=mesh)
    with pytest.raises(UsageError, match="no dense mask and no positions"):
        ours.ring_attention(q, k, v, axis_name="sp", mask_info=MaskInfo(attention_mask=jnp.ones((1, 1, 2, 2))))


def test_tokens_before_the_first_sequence_are_in_no_mean():
    rows = np.arange(10, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(ours.mean_pooling(jnp.asarray(rows), [2, 6, 6, 8]), [[3.5], [0.0], [6.5]])


def test_gradients_flow_through_flash_mla_and_linear_attention():
    rng = np.random.default_rng(0)
    q, kv, w = (jnp.asarray(floats(rng, *shape)) for shape in ((1, 4, 2, 16), (1, 4, 8), (8, 1, 16)))
    gradients = jax.jit(jax.grad(lambda *x: ours.flash_mla(*x, causal=True).sum(), (0, 1, 2, 3)))(q, kv, w, w)
    gamma = -jnp.ones(2)
    gated = jax.grad(lambda g: jnp.sum(jnp.asarray(ours.gla_attention(q, q, q, None, g, reverse=True))))(gamma)
    assert all(np.isfinite(x).all() and np.any(x) for x in (*gradients, gated))
