"""The contract of ``gated_delta_rule``: problems, inputs at the edges, the reference, and what is counted."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from attn_tune.ops.gated_delta_rule.op import OP
from attn_tune.ops.gated_delta_rule.problem import Problem
from attn_tune.ops.gated_delta_rule.samples import samples
from attn_tune.ops.recurrent.chunked import forward_in_chunks
from attn_tune.ops.recurrent.contract import bytes_moved, flops
from attn_tune.ops.recurrent.features import features
from attn_tune.ops.recurrent.inputs import make_inputs
from attn_tune.ops.recurrent.problem import LOWEST_GATE, WORKLOADS
from attn_tune.ops.recurrent.reference import baseline, forward_in_steps, reference
from attn_tune.ops.tolerance import compare
from attn_tune.schema.errors import UsageError
from tests.chosen import chosen
from tests.ops.recurrent.recurrence_numpy import recurrence

SMALL = Problem(batch=3, length=20, num_value_heads=4, num_key_heads=2, head_dim=16, v_head_dim=24)
PACKED = dataclasses.replace(SMALL, ragged=True, length=150, batch=8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 0}, "b=0 (batch) must be a positive integer"),
        ({"num_value_heads": 3}, "n=3 (num_value_heads) must be a multiple of k=2 (num_key_heads)"),
        ({"dtype": "int8"}, "dtype='int8' must be one of"),
        ({"gate": "heads"}, "gate='heads' must be one of head, none; did you mean 'head'"),
        ({"workload": "mix"}, "workload=mix is one of ragged sequences; it needs ragged=1"),
        ({"workload": "many", "ragged": True}, "workload='many' must be one of"),
    ],
)
def test_an_impossible_problem_is_refused_by_name(change, words):
    with pytest.raises(UsageError) as refused:
        dataclasses.replace(SMALL, **change)
    assert words in str(refused.value)


def test_a_state_that_is_none_of_the_words_is_refused():
    text = SMALL.signature.text + " state=inout"
    with pytest.raises(UsageError, match="state='inout' must be one of none, in, out, both"):
        OP.from_signature(OP.parse_signature(text))


def test_signatures_of_all_samples_are_read_back_and_tell_them_apart():
    for problem in samples().values():
        again = OP.from_signature(OP.parse_signature(problem.signature.text))
        assert again.signature == problem.signature
        states = ("has_initial_state", "has_final_state")
        assert [getattr(again, name) for name in states] == [getattr(problem, name) for name in states]


@pytest.mark.parametrize("workload", [w.name for w in WORKLOADS])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (8, 5), (16, 1000)])
def test_lengths_of_a_workload_are_all_tokens(workload, batch, length):
    lengths = dataclasses.replace(PACKED, workload=workload, batch=batch, length=length).lengths
    assert len(lengths) == batch
    assert sum(lengths) == length
    assert min(lengths) >= 0


def test_lengths_at_the_edges_have_empty_sequences_single_tokens_and_padding():
    lengths = dataclasses.replace(PACKED, at_edges=True).lengths
    assert {0, 1} < set(lengths)
    assert sum(lengths) == PACKED.length - 3
    many = dataclasses.replace(PACKED, at_edges=True, length=333)
    # More than a tile of 128 tokens.
    assert sum(many.lengths) == many.length - many.padding < many.length - 128


def test_inputs_at_the_edges_have_every_gate_repeated_keys_and_strengths_up_to_two():
    problem = dataclasses.replace(PACKED, at_edges=True, batch=8, num_value_heads=6)
    inputs = jax.jit(functools.partial(make_inputs, problem, "bwd"))(1)
    operands, starts = inputs.operands, np.asarray(inputs.operands.cu_seqlens)
    assert starts[0] > 0
    used = slice(starts[0], starts[-1])
    for name in ("q", "k", "v", "g", "beta"):
        array = np.asarray(getattr(operands, name), np.float32)
        assert np.isfinite(array[:, used]).all()
        assert np.isnan(np.delete(array, used, axis=1)).all()
    gates = np.asarray(operands.g)[0, used]
    assert {0.0, LOWEST_GATE, -88.0, -20.0} <= set(gates[:, 0].tolist())
    assert not gates[:, 1].any()
    assert np.exp(np.float32(LOWEST_GATE)) == 0
    strengths = np.asarray(operands.beta)[0, used]
    assert strengths.min() > 0
    assert 1.5 < strengths.max() < 2
    keys = np.asarray(operands.k, np.float32)[0, used]
    lengths = np.linalg.norm(keys, axis=-1, keepdims=True)
    assert lengths.max() < 1.01
    same = np.abs(keys[1:] / lengths[1:] - keys[:-1] / lengths[:-1]).max((1, 2)) < 0.01
    assert same.mean() > 0.3


@pytest.mark.parametrize("name", chosen(["states", "ragged_states", "no_beta"], ["ragged_states"]))
def test_the_reference_is_the_recurrence_of_numpy(name):
    problem = dataclasses.replace(samples()[name], dtype="float32")
    operands = jax.jit(functools.partial(make_inputs, problem, "fwd"))(2)
    found = jax.jit(functools.partial(reference, problem, "fwd"))(operands)
    out, state = recurrence(problem, operands)
    np.testing.assert_allclose(found["out"], out, atol=2e-6)
    if problem.has_final_state:
        np.testing.assert_allclose(found["state"], state, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", chosen(["states", "delta_rule"], ["states"]))
def test_chunks_of_the_reference_are_its_steps_and_so_are_their_gradients(name):
    problem = dataclasses.replace(samples()[name], dtype="float32", length=150, batch=1)
    inputs = jax.jit(functools.partial(make_inputs, problem, "bwd"))(2)
    reals = {name: x for name, x in inputs.operands._asdict().items() if x is not None}

    def run(forward, reals):
        def call(reals):
            return forward(problem, inputs.operands._replace(**reals), np.dtype("float32"), lambda x: x)

        found, pull = jax.vjp(call, reals)
        return found, pull((inputs.dout, inputs.dstate))

    chunks, steps = (jax.jit(functools.partial(run, f))(reals) for f in (forward_in_chunks, forward_in_steps))
    for one, other in zip(jax.tree.leaves(chunks), jax.tree.leaves(steps), strict=True):
        assert np.linalg.norm(one - other) < 1e-6 * np.linalg.norm(other)


def test_gradients_of_the_reference_are_slopes_of_the_recurrence():
    problem = dataclasses.replace(samples()["ragged_states"], dtype="float32", batch=3, length=12, num_value_heads=2)
    inputs = jax.jit(functools.partial(make_inputs, problem, "bwd"))(2)
    found = jax.jit(functools.partial(reference, problem, "bwd"))(inputs)
    # Outputs of tokens of no sequence are zero.
    dout = np.nan_to_num(np.asarray(inputs.dout, np.float64))

    def loss(operands):
        out, state = recurrence(problem, operands)
        return np.sum(out * dout) + np.sum(state * np.asarray(inputs.dstate, np.float64))

    rng = np.random.default_rng(0)
    for name in ("q", "k", "v", "g", "beta", "initial_state"):
        given = np.asarray(getattr(inputs.operands, name), np.float64)
        way = np.where(np.isfinite(given), rng.standard_normal(given.shape), 0)
        # At the lowest gate there is no slope, and below zero alone a gate is one.
        ends = [loss(inputs.operands._replace(**{name: given + step * way})) for step in (1e-5, -1e-5)]
        slope = np.sum(np.asarray(found[f"d{name}"], np.float64) * way)
        np.testing.assert_allclose(slope, (ends[0] - ends[1]) / 2e-5, rtol=2e-4, atol=2e-4, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("direction", chosen(["fwd", "bwd"], ["fwd"]))
def test_the_comparison_sees_a_lost_gate_and_one_wrong_row(direction):
    problem = dataclasses.replace(samples()["states"], batch=1)
    inputs = jax.jit(functools.partial(make_inputs, problem, direction))(3)
    exact, plain = (jax.jit(functools.partial(f, problem, direction))(inputs) for f in (reference, baseline))
    declared = OP.outputs(problem, direction)
    assert max(error.ratio for error in compare(plain, exact, plain, declared)) <= 1
    name = "state" if direction == "fwd" else "dg"
    wrong = dict(plain)
    wrong[name] = wrong[name].at[0, 1].multiply(1.5)
    assert {error.output for error in compare(wrong, exact, plain, declared) if error.ratio > 1} == {name}
    ungated = dataclasses.replace(problem, gate="none")
    operands = inputs if direction == "fwd" else inputs.operands
    operands = operands._replace(g=None)
    lost = operands if direction == "fwd" else inputs._replace(operands=operands)
    found = jax.jit(functools.partial(baseline, ungated, direction))(lost)
    assert all(error.ratio > 1 for error in compare(found, exact, plain, declared))


def test_operations_and_bytes_are_those_of_the_sequences():
    tokens, both = 3 * 20, dataclasses.replace(SMALL, has_initial_state=True, has_final_state=True)
    assert flops(SMALL, "fwd") == 6 * tokens * 4 * 16 * 24
    assert flops(SMALL, "bwd") == 2 * flops(SMALL, "fwd")
    keys, values, numbers, state = tokens * 2 * 16 * 2, tokens * 4 * 24 * 2, tokens * 4 * 4, 3 * 4 * 16 * 24 * 4
    assert bytes_moved(SMALL, "fwd") == 2 * keys + 2 * values + 2 * numbers
    assert bytes_moved(both, "fwd") - bytes_moved(SMALL, "fwd") == 2 * state
    assert bytes_moved(both, "bwd") == 4 * keys + 3 * values + 4 * numbers + 3 * state
    bare = dataclasses.replace(SMALL, gate="none", has_beta=False, dtype="float32")
    assert bytes_moved(bare, "fwd") == 2 * (2 * keys + 2 * values)
    packed = dataclasses.replace(PACKED, at_edges=True)
    assert flops(packed, "fwd") == 6 * (150 - 3) * 4 * 16 * 24


@pytest.mark.parametrize("name", samples())
def test_feature_problems_keep_what_decides_a_config(name):
    problem = samples()[name]
    small = features(problem)
    assert any(one.at_edges and one.length > 256 for one in small)
    assert any(one.length == 1 for one in small)
    for one in small:
        for kept in ("head_dim", "v_head_dim", "dtype", "gate", "has_beta", "ragged"):
            assert getattr(one, kept) == getattr(problem, kept)
        assert one.has_final_state == problem.has_final_state
        assert one.num_value_heads >= 3
