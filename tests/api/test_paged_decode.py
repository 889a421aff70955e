"""The public ``paged_decode``: every layout, padding of the batch, prefixes, merges, meshes, and refusals."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.ops.paged_decode.features import samples
from attn_tune.ops.paged_decode.inputs import make_inputs
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.api.sharded_cases import kept
from tests.chosen import chosen
from tests.kernels.paged_decode.dense_numpy import assert_right
from tests.several_devices import run_with_devices


def call(problem, operands, **more):
    o, p = operands, problem
    options = {
        "layout": p.layout,
        "sliding_window": p.window,
        "softmax_scale": p.scale,
        "logits_soft_cap": p.soft_cap,
        "softmax_aux": o.sinks,
        "k_scale": o.k_scale,
        "v_scale": o.v_scale,
        "return_lse": True,
    }
    return attn_tune.paged_decode(o.q, o.k, o.v, o.kv_lens, o.page_table, **options | more)


@functools.cache
def case(name):
    problem = samples()[name]
    return problem, jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)


@pytest.mark.parametrize(
    "name",
    chosen(
        ["paged_at_edges", "interleaved", "head_first", "contiguous_ragged", "everything"],
        ["interleaved", "contiguous_ragged", "everything"],
    ),
)
def test_rows_are_right(name):
    problem, operands = case(name)
    out, lse = jax.jit(functools.partial(call, problem))(operands)
    assert_right(problem, operands, {"out": out, "lse": lse})


def test_one_query_may_come_without_its_axis():
    problem, operands = case("paged_at_edges")
    out, lse = call(problem, operands._replace(q=operands.q[:, 0]))
    whole, whole_lse = call(problem, operands)
    np.testing.assert_array_equal(out, whole[:, 0])
    np.testing.assert_array_equal(lse, whole_lse[:, 0])


def test_sequences_from_num_seqs_on_are_empty_and_lengths_are_clamped():
    problem, operands = case("paged_at_edges")
    lengths = jnp.where(jnp.arange(problem.batch) < 2, operands.kv_lens, 2**31 - 1)
    out, lse = jax.jit(lambda n: call(problem, operands._replace(kv_lens=lengths), num_seqs=n))(2)
    whole, _ = call(problem, operands)
    np.testing.assert_array_equal(out[:2], whole[:2])
    assert not np.asarray(out[2:], np.float32).any()
    assert np.isneginf(lse[2:]).all()
    out, _ = call(problem, operands._replace(kv_lens=jnp.full(problem.batch, -5)))
    assert not np.asarray(out, np.float32).any()


def test_sequences_longer_than_expected_keep_their_window():
    problem, operands = case("window")
    for expected in (1, problem.window + 1, 500):
        out, lse = call(problem, operands, max_kv_len=expected)
        assert_right(problem, operands, {"out": out, "lse": lse})


def test_rows_may_share_pages():
    problem, operands = case("paged")
    shared = operands._replace(
        q=jnp.broadcast_to(operands.q[:1], operands.q.shape),
        page_table=jnp.broadcast_to(operands.page_table[:1], operands.page_table.shape),
        kv_lens=jnp.broadcast_to(operands.kv_lens[:1], operands.kv_lens.shape),
    )
    out, _ = call(problem, shared)
    assert np.asarray(out, np.float32).any()
    np.testing.assert_array_equal(out, jnp.broadcast_to(out[:1], out.shape))


def test_halves_merged_by_their_lse_are_the_whole():
    problem = dataclasses.replace(samples()["float32"], at_edges=False, kv_len=64)
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)
    whole, whole_lse = call(problem, operands)
    half = operands.page_table.shape[1] // 2
    parts = [
        call(problem, operands._replace(page_table=operands.page_table[:, i : i + half], kv_lens=operands.kv_lens // 2))
        for i in (0, half)
    ]
    (a, la), (b, lb) = parts
    lse = jnp.logaddexp(la, lb)
    merged = a * jnp.exp(la - lse)[..., None] + b * jnp.exp(lb - lse)[..., None]
    np.testing.assert_allclose(merged, whole, atol=1e-5)
    np.testing.assert_allclose(lse, whole_lse, atol=1e-5)


@pytest.mark.slow
@kept(
    *("paged_at_edges-Auto", "contiguous_ragged-Explicit", "latent-Auto"),
    of=("paged_at_edges", "contiguous_ragged", "latent"),
)
def test_sharded_caches_are_not_gathered(cases):
    assert run_with_devices(2, "-m", "tests.api.paged_decode_sharded", *cases).split() == cases


def test_elements_of_vmap_run_one_by_one():
    problem, operands = case("paged_at_edges")
    q = jnp.stack([operands.q, 2 * operands.q])
    out, _ = jax.vmap(lambda q: call(problem, operands._replace(q=q)))(q)
    np.testing.assert_array_equal(out[1], call(problem, operands._replace(q=q[1]))[0])


def test_a_derivative_is_refused_with_the_way_out():
    problem, operands = case("paged_at_edges")
    with pytest.raises(UnsupportedError, match="decoding has no derivative; train with"):
        jax.grad(lambda q: call(problem, operands._replace(q=q))[0].astype(jnp.float32).sum())(operands.q)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layout": "dnh"}, "unknown layout 'dnh'"),
        ({"query": jnp.zeros((6, 9, 4, 32), jnp.bfloat16)}, "query has 9 new tokens"),
        ({"query": jnp.zeros((10, 1, 4, 32), jnp.int32)}, "query must have dtype"),
        ({"query": jnp.zeros((10, 1, 3, 32), jnp.bfloat16)}, r"query heads \(3\) must be a multiple"),
        ({"query": jnp.zeros((10, 1, 4, 16), jnp.bfloat16)}, "one head dim, got 16 and 32"),
        ({"v_pages": None}, "v_pages is missing"),
        ({"kv_lens": jnp.zeros(5, jnp.int32)}, r"kv_lens must be integers \[10\] beside query, got int32\[5\]"),
        ({"query": jnp.zeros((0, 1, 4, 32), jnp.bfloat16)}, "query is empty"),
        ({"max_kv_len": np.arange(500)}, r"max_kv_len .*, got an array int64\[500\], the first of them 0$"),
        ({"kv_lens": jnp.zeros(10)}, "kv_lens must be integers"),
        ({"page_table": jnp.zeros((6, 0), jnp.int32)}, "page_table is empty"),
        ({"page_table": None}, "a cache in pages needs page_table"),
        ({"query": None}, "query must be an array.*got None"),
        ({"num_seqs": 2.5}, "num_seqs must be an integer, or an array of one, got 2.5"),
        ({"k_scale": 1.0}, "v_scale is missing"),
        ({"k_scale": 1.0, "v_scale": 1.0}, "belong to a cache of"),
        ({"sliding_window": -1}, "sliding_window must be"),
        ({"max_kv_len": 0}, "max_kv_len must be a positive integer"),
        ({"workload": "even"}, "unknown workload 'even'"),
        ({"workload": None}, "workload must be one of eq, uni, exp, one, got None"),
        ({"platform": "cuda"}, "unknown kernel of paged_decode 'cuda'"),
    ],
)
def test_a_malformed_argument_is_named(change, words):
    _, o = case("paged_at_edges")
    given = {"query": o.q, "k_pages": o.k, "v_pages": o.v, "kv_lens": o.kv_lens, "page_table": o.page_table} | change
    with pytest.raises(UsageError, match=words):
        attn_tune.paged_decode(**given)


def test_the_scales_of_codes_need_one_shape_that_the_cache_knows():
    problem, o = case("everything")
    with pytest.raises(UsageError, match="k_scale must be one number"):
        call(problem, o, k_scale=jnp.ones(3))
    with pytest.raises(UsageError, match="must have one shape"):
        call(problem, o, k_scale=jnp.ones(()))


@pytest.mark.parametrize("kind", [float, np.float32, lambda value: np.full(2, value, np.float32)])
@pytest.mark.parametrize("value", [np.nan, np.inf, 0, -0.5])
def test_a_scale_of_codes_that_is_seen_not_to_be_positive_and_finite_is_refused(kind, value):
    query, codes = jnp.ones((1, 2, 8), jnp.bfloat16), jnp.ones((1, 4, 2, 8), jnp.int8)
    good, bad = kind(0.5), kind(value)
    for scales, name in (((bad, good), "k_scale"), ((good, bad), "v_scale")):
        with pytest.raises(UsageError, match=f"{name} must be positive and finite in float32, got"):
            attn_tune.paged_decode(query, codes, codes, jnp.array([4]), k_scale=scales[0], v_scale=scales[1])


def test_a_softmax_scale_of_decoding_must_be_finite():
    ones = jnp.ones((1, 4, 2, 8), jnp.bfloat16)
    with pytest.raises(UsageError, match="softmax_scale must be finite, got nan"):
        attn_tune.paged_decode(ones[:, 0], ones, ones, jnp.array([4]), softmax_scale=float("nan"))
