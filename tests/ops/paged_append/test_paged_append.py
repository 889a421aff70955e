"""The contract of ``paged_append``: problems, inputs at the edges, the reference, and what is counted."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from attn_tune.ops.paged_append.features import features, samples
from attn_tune.ops.paged_append.inputs import make_inputs
from attn_tune.ops.paged_append.op import OP
from attn_tune.ops.paged_append.problem import MOST_BEFORE, Problem, bytes_moved, flops
from attn_tune.ops.paged_append.reference import baseline, reference
from attn_tune.ops.tolerance import compare
from attn_tune.schema.errors import UsageError
from tests.chosen import chosen
from tests.kernels.paged_append.numpy_append import append, assert_right, places

SMALL = Problem(batch=3, tokens=6, num_kv_heads=2, head_dim=16, v_head_dim=16, page_size=8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 0}, "b=0 (batch) must be a positive integer"),
        ({"tokens": 7}, "t=7 (tokens) must be a multiple of b=3 (batch), or the call ragged: ragged=1"),
        ({"page_size": -1}, "page=-1"),
        ({"layout": "hdn"}, "layout='hdn' must be one of"),
        ({"dtype": "int8"}, "dtype='int8' must be one of"),
        ({"kv_scale": "head"}, "needs a cache of codes"),
        ({"kv_dtype": "int8"}, "kv=int8 needs scales"),
        ({"layout": "interleaved", "v_head_dim": 8}, "one width, got h=16 and v=8"),
    ],
)
def test_an_impossible_problem_is_refused_by_name(change, words):
    with pytest.raises(UsageError) as refused:
        dataclasses.replace(SMALL, **change)
    assert words in str(refused.value)


def test_signatures_of_all_samples_are_read_back():
    for problem in samples().values():
        again = OP.from_signature(OP.parse_signature(problem.signature.text))
        assert again.signature == problem.signature


def made(problem, seed=1):
    return jax.jit(functools.partial(make_inputs, problem, "fwd"))(seed)


@pytest.mark.parametrize(
    "name",
    chosen(
        ["paged_at_edges", "float8_token_interleaved", "everything", "int8_head"],
        ["paged_at_edges", "float8_token_interleaved"],
    ),
)
def test_the_baseline_is_that_of_numpy(name):
    problem = samples()[name]
    operands = made(problem)
    assert_right(problem, operands, jax.jit(functools.partial(baseline, problem, "fwd"))(operands))


@pytest.mark.parametrize("name", ["ragged", "float8_tensor", "int8_token"])
def test_the_reference_holds_what_nothing_has_rounded(name):
    problem = samples()[name]
    operands = made(problem)
    found = jax.jit(functools.partial(reference, problem, "fwd"))(operands)
    wanted, quotients = append(problem, operands)
    for cache in ("k", "v"):
        exact = np.where(np.isnan(quotients[cache]), wanted[cache].astype(np.float32), quotients[cache])
        np.testing.assert_allclose(found[cache], exact, rtol=1e-6)


def test_inputs_at_the_edges_have_tokens_that_go_nowhere():
    for name in ("paged_at_edges", "ragged", "contiguous_at_edges"):
        problem = samples()[name]
        operands = made(problem)
        stored = len(list(places(problem, operands)))
        assert 0 < stored < sum(problem.new_lengths)
    assert sum(samples()["ragged"].new_lengths) < samples()["ragged"].tokens
    assert 0 in samples()["ragged"].new_lengths
    first = made(samples()["float8_token"]).new_k.reshape(-1, 2, 32)[0]
    assert not np.asarray(first, np.float32).any(), "a token without a largest value"
    # A page of padding would be written by a kernel that takes places before the first one for it.
    edges = made(samples()["paged_at_edges"])
    assert (np.asarray(edges.page_table)[:, 0] >= 0).any()
    assert len(list(places(samples()["paged"], made(samples()["paged"])))) == samples()["paged"].tokens


@pytest.mark.parametrize("defect", ["another slot", "padding too", "one bit elsewhere", "stale scale"])
def test_a_wrong_update_is_seen(defect):
    problem = samples()["everything"]
    operands = made(problem)
    answers = [jax.jit(functools.partial(f, problem, "fwd"))(operands) for f in (reference, baseline)]
    outputs = OP.outputs(problem, "fwd")
    originals = {output.name: getattr(operands, output.updates) for output in outputs}

    def worst(found):
        return max(error.ratio for error in compare(found, *answers, outputs, originals))

    right = answers[1]
    assert worst(right) <= 1
    if defect == "another slot":
        moved = operands._replace(kv_lens=operands.kv_lens.at[0].add(-1))
        wrong = baseline(problem, "fwd", moved)
    elif defect == "padding too":
        wrong = baseline(problem, "fwd", operands._replace(cu_q_lens=operands.cu_q_lens.at[-1].add(2)))
    elif defect == "one bit elsewhere":
        (*_, (_, page, slot)) = places(problem, operands)
        bits = jax.lax.bitcast_convert_type(right["k"], np.uint8)
        bits = bits.at[page, :, (slot + 1) % problem.page_size, 0].add(1)
        wrong = right | {"k": jax.lax.bitcast_convert_type(bits, right["k"].dtype)}
    else:
        wrong = right | {"k_scale": operands.k_scale}
    assert worst(wrong) > 1


def test_operations_and_bytes_are_those_of_the_new_tokens():
    assert flops(SMALL, "fwd") == 0
    assert bytes_moved(SMALL, "fwd") == 6 * 2 * 32 * 4
    codes = dataclasses.replace(SMALL, kv_dtype="int8", kv_scale="token")
    assert flops(codes, "fwd") == 6 * 2 * 32
    assert bytes_moved(codes, "fwd") == 6 * 2 * (32 * 3 + 8)


def test_feature_problems_keep_what_a_config_is_chosen_by():
    for problem in samples().values():
        small = features(problem)
        assert any(one.tokens == 1 for one in small)
        assert any(one.tokens == one.batch > 1 for one in small)
        assert all(one.num_kv_heads >= 2 for one in small)
        edges = [one for one in small if one.at_edges]
        assert edges
        assert all(one.input_capacity >= MOST_BEFORE + max(one.new_lengths) + one.page_size for one in edges)
        for one in small:
            kept = ("head_dim", "v_head_dim", "layout", "dtype", "kv_dtype", "kv_scale", "page_size", "ragged")
            assert [getattr(one, name) for name in kept] == [getattr(problem, name) for name in kept]
