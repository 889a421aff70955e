"""The public ``paged_append``: every layout, in place, padding, what decoding reads, meshes, refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.ops.paged_append.features import samples
from attn_tune.ops.paged_append.inputs import make_inputs
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.api.sharded_cases import kept
from tests.chosen import chosen
from tests.kernels.paged_append.numpy_append import assert_right
from tests.several_devices import run_with_devices


def call(problem, operands, **more):
    o = operands
    options = {"layout": problem.layout, "cu_q_lens": o.cu_q_lens, "k_scale": o.k_scale, "v_scale": o.v_scale}
    return attn_tune.paged_append(o.new_k, o.new_v, o.k, o.v, o.kv_lens, o.page_table, **options | more)


def outputs(problem, cache):
    found = {"k": cache.k_pages, "v": cache.v_pages}
    if problem.kv_scale == "token":
        found |= {"k_scale": cache.k_scale, "v_scale": cache.v_scale}
    return {name: x for name, x in found.items() if x is not None}


@functools.cache
def case(name):
    problem = samples()[name]
    return problem, jax.jit(functools.partial(make_inputs, problem, "fwd"))(1)


@pytest.mark.parametrize(
    "name",
    chosen(
        ["interleaved", "head_first", "contiguous_at_edges", "ragged", "int8_head", "everything"],
        ["interleaved", "contiguous_at_edges", "int8_head", "everything"],
    ),
)
def test_every_byte_is_right(name):
    problem, operands = case(name)
    cache = jax.jit(functools.partial(call, problem))(operands)
    assert_right(problem, operands, outputs(problem, cache))
    if problem.kv_scale != "token":
        np.testing.assert_array_equal(cache.k_scale, operands.k_scale)


def test_one_new_token_may_come_without_its_axis():
    problem, operands = case("one_new_token")
    cache = call(problem, operands._replace(new_k=operands.new_k[:, 0], new_v=operands.new_v[:, 0]))
    assert_right(problem, operands, outputs(problem, cache))


def test_arrays_of_numpy_are_taken_and_left_as_they_are():
    problem, operands = case("paged_at_edges")
    given = jax.tree.map(np.array, operands)
    before = jax.tree.map(np.copy, given)
    cache = call(problem, given)
    assert_right(problem, operands, outputs(problem, cache))
    for left, right in zip(jax.tree.leaves(given), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(left.view(np.uint8), right.view(np.uint8))


@pytest.mark.parametrize("name", ["paged", "ragged"])
def test_sequences_from_num_seqs_on_are_left_out(name):
    problem, operands = case(name)
    kept = 3
    row = jnp.arange(problem.batch)
    garbage = operands._replace(kv_lens=jnp.where(row < kept, operands.kv_lens, 2**31 - 1))
    if operands.cu_q_lens is not None:
        ends = jnp.where(jnp.arange(problem.batch + 1) <= kept, operands.cu_q_lens, -7)
        garbage = garbage._replace(cu_q_lens=ends)
    cache = jax.jit(lambda n: call(problem, garbage, num_seqs=n))(kept)
    wanted = operands._replace(kv_lens=jnp.where(row < kept, operands.kv_lens, -1000))
    assert_right(problem, wanted, outputs(problem, cache))


def test_a_donated_cache_is_written_where_it_is():
    problem, operands = case("paged_at_edges")
    k, v = jnp.copy(operands.k), jnp.copy(operands.v)
    places = k.unsafe_buffer_pointer(), v.unsafe_buffer_pointer()
    step = jax.jit(lambda k, v: call(problem, operands._replace(k=k, v=v)), donate_argnums=(0, 1))
    cache = step(k, v)
    assert k.is_deleted()
    assert v.is_deleted()
    assert (cache.k_pages.unsafe_buffer_pointer(), cache.v_pages.unsafe_buffer_pointer()) == places


@pytest.mark.parametrize(("dtype", "most"), [("same", 1e-5), ("float8_e4m3fn", 0.06)])
def test_decoding_reads_what_was_written(dtype, most):
    pages, size, heads, width, batch = 12, 4, 2, 16, 3
    keys = jax.random.split(jax.random.key(0), 3)
    q, new_k, new_v = (jax.random.normal(key, (batch, 9, heads, width)) for key in keys)
    table = jax.random.permutation(keys[0], pages)[: batch * 3].reshape(batch, 3)
    stored = jnp.float32 if dtype == "same" else dtype
    cache = [jnp.zeros((pages, size, heads, width), stored) for _ in "kv"]
    scales = [None, None] if dtype == "same" else [jnp.zeros((pages, size, heads)) for _ in "kv"]
    for begin, end in ((0, 5), (5, 6), (6, 9)):
        new = new_k[:, begin:end], new_v[:, begin:end]
        lengths = jnp.full(batch, end)
        cache_now = attn_tune.paged_append(*new, *cache, lengths, table, k_scale=scales[0], v_scale=scales[1])
        cache, scales = list(cache_now[:2]), list(cache_now[2:])
        out = attn_tune.paged_decode(q[:, begin:end], *cache, lengths, table, k_scale=scales[0], v_scale=scales[1])
        wanted = attn_tune.flash_attention(q[:, begin:end], new_k[:, :end], new_v[:, :end], causal=True)
        assert np.linalg.norm(out - wanted) <= most * np.linalg.norm(wanted)


@pytest.mark.slow
@kept("int8_token-Auto", "contiguous_even-Explicit", of=("paged_at_edges", "int8_token", "contiguous_even"))
def test_sharded_caches_are_not_gathered(cases):
    assert run_with_devices(2, "-m", "tests.api.paged_append_sharded", *cases).split() == cases


def test_elements_of_vmap_run_one_by_one():
    problem, operands = case("paged")
    new_k = jnp.stack([operands.new_k, 2 * operands.new_k])
    cache = jax.vmap(lambda new_k: call(problem, operands._replace(new_k=new_k)))(new_k)
    for i in range(2):
        found = {"k": cache.k_pages[i], "v": cache.v_pages[i]}
        assert_right(problem, operands._replace(new_k=new_k[i]), found)


def test_a_derivative_is_refused_with_the_way_out():
    problem, operands = case("paged")
    with pytest.raises(UnsupportedError, match="writing into a cache has no derivative; train with"):
        jax.grad(lambda x: call(problem, operands._replace(new_k=x)).k_pages.astype(jnp.float32).sum())(operands.new_k)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layout": "dnh"}, "unknown layout 'dnh'"),
        ({"new_keys": jnp.zeros((7, 5, 3, 32), jnp.bfloat16)}, "must agree in dtype and all axes but the last"),
        ({"new_keys": jnp.zeros((7, 5, 2, 16), jnp.bfloat16)}, r"must have the cache's 2 heads of 32"),
        ({"new_values": jnp.zeros((7, 5, 2, 32))}, "must agree in dtype"),
        ({"new_keys": jnp.zeros((7, 5, 2, 32), jnp.int32)}, "new_keys must have dtype"),
        ({"new_keys": jnp.zeros((6, 5, 2, 32), jnp.bfloat16)}, "new_keys has a batch of 6 and kv_lens one of 7"),
        ({"new_keys": jnp.zeros((7, 32), jnp.bfloat16)}, r"must be \[B, K, H\] or \[B, T, K, H\]"),
        ({"cu_q_lens": jnp.zeros(8, jnp.int32)}, r"must be \[tokens, K, H\] with cu_q_lens"),
        ({"v_pages": None}, "v_pages is missing"),
        ({"k_pages": jnp.zeros((9, 8, 2, 32))}, "k_pages must be bfloat16 as new_keys"),
        ({"kv_lens": jnp.zeros(7)}, "kv_lens must be integers"),
        ({"kv_lens": 3}, r"kv_lens must be integers \[B\]"),
        ({"page_table": None}, "not 7; a cache in pages needs page_table"),
        ({"new_keys": None}, "new_keys must be an array.*got None"),
        ({"kv_lens": "abc"}, "kv_lens must be an array.*got 'abc'"),
        ({"num_seqs": 2.5}, "num_seqs must be an integer, or an array of one, got 2.5"),
        ({"num_seqs": "two"}, "num_seqs must be an array.*got 'two'"),
        ({"k_scale": 1.0}, "v_scale is missing"),
        ({"k_scale": 1.0, "v_scale": 1.0}, "belong to a cache of"),
        ({"platform": "cuda"}, "unknown kernel of paged_append 'cuda'"),
    ],
)
def test_a_malformed_argument_is_named(change, words):
    _, o = case("paged_at_edges")
    given = {"new_keys": o.new_k, "new_values": o.new_v, "k_pages": o.k, "v_pages": o.v, "kv_lens": o.kv_lens}
    given |= {"page_table": o.page_table} | change
    with pytest.raises(UsageError, match=words):
        attn_tune.paged_append(**given)


def test_ragged_ends_and_scales_that_are_written_are_checked():
    problem, o = case("everything")
    with pytest.raises(UsageError, match=r"cu_q_lens must be integers \[8\]"):
        call(problem, o, cu_q_lens=o.cu_q_lens[1:])
    with pytest.raises(UsageError, match="k_scale must be float32 to be written in place, got bfloat16"):
        call(problem, o, k_scale=o.k_scale.astype(jnp.bfloat16), v_scale=o.v_scale)
