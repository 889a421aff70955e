"""The public ``ragged_paged``: every layout, padding, chunks beside whole prompts, meshes, and refusals."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.ops.ragged_paged.features import samples
from attn_tune.ops.ragged_paged.inputs import make_inputs
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.api.sharded_cases import kept
from tests.chosen import chosen
from tests.kernels.ragged_paged.dense_numpy import assert_right
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
        "q_scale": o.q_scale,
        "out_dtype": p.dtype,
        "return_lse": True,
        "causal": p.causal,
    }
    return attn_tune.ragged_paged(o.q, o.k, o.v, o.kv_lens, o.cu_q_lens, o.page_table, **options | more)


@functools.cache
def case(name):
    problem = samples()[name]
    return problem, jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)


NAMES = ("paged_at_edges", "interleaved", "head_first", "contiguous_ragged", "everything", "not_causal")
QUERIES = tuple(name for name in samples() if name.startswith("queries_"))
TESTED = ["interleaved", "contiguous_ragged", "everything", "not_causal", "queries_float8", "queries_int8_contiguous"]


@pytest.mark.parametrize("name", chosen(NAMES + QUERIES, TESTED))
def test_rows_are_right(name):
    problem, operands = case(name)
    out, lse = jax.jit(functools.partial(call, problem))(operands)
    assert_right(problem, operands, {"out": out, "lse": lse})


def test_codes_of_queries_have_a_bfloat16_output_by_default():
    problem, operands = case("queries_float8")
    out, _ = call(problem, operands, out_dtype=None)
    assert out.dtype == jnp.bfloat16
    assert call(problem, operands, out_dtype=jnp.float32)[0].dtype == jnp.float32


def test_queries_of_sixteen_bits_have_no_word_of_their_own_in_a_signature():
    text = samples()["float8_token"].signature.text
    assert "qscale" not in text
    assert f"{text} qscale=token" == dataclasses.replace(samples()["float8_token"], q_scale="token").signature.text


def test_sequences_from_num_seqs_on_count_for_nothing():
    problem, operands = case("sinks")
    wild = operands._replace(
        kv_lens=operands.kv_lens.at[6:].set(2**31 - 1), cu_q_lens=operands.cu_q_lens.at[7:].set(2**31 - 1)
    )
    out, lse = jax.jit(lambda n: call(problem, wild, num_seqs=n))(6)
    whole, whole_lse = call(problem, operands)
    end = int(operands.cu_q_lens[6])
    np.testing.assert_array_equal(out[:end], whole[:end])
    np.testing.assert_array_equal(lse[:end], whole_lse[:end])
    assert not np.asarray(out[end:], np.float32).any()
    assert np.isneginf(lse[end:]).all()


def test_ends_beyond_the_queries_are_those_of_the_queries():
    problem, operands = case("paged_at_edges")
    ends = operands.cu_q_lens.at[-1].set(10**6)
    out, _ = call(problem, operands._replace(cu_q_lens=ends))
    begin = int(ends[-2])
    whole, _ = call(problem, operands)
    np.testing.assert_array_equal(out[:begin], whole[:begin])


def test_lengths_are_clamped():
    problem, operands = case("paged_at_edges")
    out, lse = call(problem, operands._replace(kv_lens=jnp.full(problem.batch, -5)))
    assert not np.asarray(out, np.float32).any()
    assert np.isneginf(lse).all()


def test_sequences_longer_than_expected_keep_their_window():
    problem, operands = case("window")
    for expected in (1, problem.window + 1, 500):
        out, lse = call(problem, operands, max_kv_len=expected)
        assert_right(problem, operands, {"out": out, "lse": lse})


def test_a_prompt_in_chunks_is_the_prompt_at_once():
    """Three calls that write and read a chunk each, of two sequences of different lengths, beside plain attention."""
    keys = jax.random.split(jax.random.key(4), 4)
    lengths, width = (23, 9), 16
    q, new_k, new_v = (
        jax.random.normal(key, (2, 23, heads, width)) for key, heads in zip(keys[:3], (4, 2, 2), strict=True)
    )
    table = jax.random.permutation(keys[3], 12)[:12].reshape(2, 6)
    cache = (jnp.full((12, 4, 2, width), jnp.nan),) * 2
    rows = {0: [], 1: []}
    done = [0, 0]
    for steps in ((10, 4), (1, 4), (12, 1)):
        parts = [slice(done[i], done[i] + steps[i]) for i in range(2)]
        done = [part.stop for part in parts]
        ends = jnp.array([0, steps[0], sum(steps)])
        step_q, step_k, step_v = (jnp.concatenate([x[i, parts[i]] for i in range(2)]) for x in (q, new_k, new_v))
        kv_lens = jnp.array(done)
        cache = attn_tune.paged_append(step_k, step_v, *cache, kv_lens, table, cu_q_lens=ends)[:2]
        out = attn_tune.ragged_paged(step_q, *cache, kv_lens, ends, table)
        rows[0].append(out[: steps[0]])
        rows[1].append(out[steps[0] :])
    for i, length in enumerate(lengths):
        wanted = attn_tune.flash_attention(
            q[i : i + 1, :length], new_k[i : i + 1, :length], new_v[i : i + 1, :length], causal=True
        )
        np.testing.assert_allclose(jnp.concatenate(rows[i]), wanted[0], atol=1e-4)


def test_one_new_token_of_each_sequence_is_decoding():
    problem, operands = case("decodes")
    out, lse = call(problem, operands)
    o = operands
    wanted = attn_tune.paged_decode(
        o.q, o.k, o.v, o.kv_lens, o.page_table, softmax_scale=problem.scale, return_lse=True, platform="xla"
    )
    np.testing.assert_allclose(np.asarray(out, np.float32), np.asarray(wanted[0], np.float32), atol=2e-2)
    np.testing.assert_allclose(lse, wanted[1], atol=1e-4)


@pytest.mark.slow
@kept("paged_at_edges-Auto", "contiguous_ragged-Explicit", of=("paged_at_edges", "contiguous_ragged"))
def test_sharded_heads_gather_no_cache(cases):
    assert run_with_devices(2, "-m", "tests.api.ragged_paged_sharded", *cases).split() == cases


def test_a_derivative_is_refused_with_the_way_out():
    problem, operands = case("paged")
    with pytest.raises(UnsupportedError, match="attention over a cache has no derivative; train with"):
        jax.grad(lambda q: call(problem, operands._replace(q=q))[0].astype(jnp.float32).sum())(operands.q)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": jnp.zeros((60, 4, 2, 32), jnp.bfloat16)}, r"query must be \[tokens, N, H\]"),
        ({"query": jnp.zeros((60, 4, 32), jnp.int32)}, "query must have dtype"),
        ({"query": jnp.zeros((60, 3, 32), jnp.bfloat16)}, r"query heads \(3\) must be a multiple"),
        ({"query": jnp.zeros((60, 4, 16), jnp.bfloat16)}, "must have one head dim, got 16 and 32"),
        ({"query": None}, "query must be an array.*got None"),
        ({"layout": "dnh"}, "unknown layout 'dnh'"),
        ({"v_pages": None}, "v_pages is missing"),
        ({"kv_lens": jnp.zeros(13)}, "kv_lens must be integers"),
        ({"kv_lens": jnp.zeros(0, jnp.int32)}, "kv_lens is empty"),
        ({"query": jnp.zeros((0, 4, 32), jnp.bfloat16)}, "query is empty"),
        ({"kv_lens": 3}, r"kv_lens must be integers \[B\]"),
        ({"cu_q_lens": jnp.zeros(9, jnp.int32)}, r"cu_q_lens must be integers \[14\]"),
        ({"page_table": jnp.zeros((8, 10), jnp.int32)}, r"page_table must be integers \[13, pages of a sequence\]"),
        ({"page_table": None}, "not 13; a cache in pages needs page_table"),
        ({"num_seqs": 2.5}, "num_seqs must be an integer"),
        ({"max_kv_len": 0}, "max_kv_len must be a positive integer, got 0"),
        ({"workload": "mixed"}, "unknown workload 'mixed'"),
        ({"sliding_window": -1}, "sliding_window must be a number of tokens"),
        ({"sliding_window": 3, "causal": False}, "sliding_window=3 counts from a query's own position"),
        ({"causal": 1}, "causal must be True or False, got 1"),
        ({"return_lse": "no"}, "return_lse must be True or False, got 'no'"),
        ({"k_scale": 1.0}, "v_scale is missing"),
        ({"platform": "cuda"}, "unknown kernel of ragged_paged 'cuda'"),
        ({"q_scale": 0.5}, "q_scale belongs to a query of float8_e4m3fn or int8, not of bfloat16"),
        ({"out_dtype": "float16"}, "out_dtype=float16 needs a query of codes; of a bfloat16 query it is bfloat16"),
        ({"query": jnp.zeros((60, 4, 32), jnp.int8)}, "query holds int8 codes and k_pages bfloat16"),
    ],
)
def test_a_malformed_argument_is_named(change, words):
    _, o = case("paged_at_edges")
    given = {"query": o.q, "k_pages": o.k, "v_pages": o.v, "kv_lens": o.kv_lens, "cu_q_lens": o.cu_q_lens}
    given |= {"page_table": o.page_table} | change
    with pytest.raises(UsageError, match=words):
        attn_tune.ragged_paged(**given)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q_scale": None}, r"q_scale is missing: a query of float8_e4m3fn codes needs one number, or \[tokens, N\]"),
        ({"q_scale": jnp.ones(4)}, r"q_scale must be one number or \[60, 4\], got \[4\]"),
        ({"q_scale": float("inf")}, "q_scale must be finite, got inf"),
        ({"query": jnp.zeros((60, 4, 32), jnp.int8)}, "query holds int8 codes and k_pages float8_e4m3fn"),
        ({"out_dtype": "int8"}, "out_dtype must be one of bfloat16, float16, float32, got 'int8'"),
    ],
)
def test_a_malformed_argument_beside_codes_of_queries_is_named(change, words):
    _, o = case("queries_float8")
    given = {"query": o.q, "k_pages": o.k, "v_pages": o.v, "kv_lens": o.kv_lens, "cu_q_lens": o.cu_q_lens}
    given |= {"page_table": o.page_table, "k_scale": o.k_scale, "v_scale": o.v_scale, "q_scale": o.q_scale} | change
    with pytest.raises(UsageError, match=words):
        attn_tune.ragged_paged(**given)
