"""The contract that all ops of linear attention share: gates of every kind, and both forms of the reference."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from attn_tune.devices.identity import current_device, device_from_kind
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.contract import load
from attn_tune.ops.fields.rounding import round_to
from attn_tune.ops.gated_delta_rule.samples import samples as gated_delta_rule
from attn_tune.ops.gla.samples import samples as gla
from attn_tune.ops.kda.samples import samples as kda
from attn_tune.ops.linear_attention.samples import samples as linear_attention
from attn_tune.ops.recurrent.chunked import forward_in_chunks
from attn_tune.ops.recurrent.contract import bytes_moved, flops
from attn_tune.ops.recurrent.features import features
from attn_tune.ops.recurrent.inputs import CONSTANT_GATES, make_inputs
from attn_tune.ops.recurrent.problem import LOWEST_GATE
from attn_tune.ops.recurrent.reference import forward_in_steps, reference
from attn_tune.ops.registry import get_op
from attn_tune.runtime.lookup.dispatch import choose
from attn_tune.schema.direction import WHOLE
from attn_tune.schema.errors import UsageError
from attn_tune.tuner.work.case_functions import compile_case_functions
from attn_tune.tuner.work.validate import validate
from tests.chosen import chosen
from tests.ops.recurrent.recurrence_numpy import recurrence

SAMPLES = {"gated_delta_rule": gated_delta_rule, "gla": gla, "kda": kda, "linear_attention": linear_attention}
# Of each op the kinds of gates that it has, with states in and out. ``gated_delta_rule`` has tests of its own.
KINDS = chosen(
    [
        *(("gla", "states"), ("kda", "states"), ("kda", "ragged_no_beta")),
        *(("linear_attention", name) for name in ("states", "ragged_constant", "no_gate")),
    ],
    [("gla", "states"), ("kda", "ragged_no_beta"), ("linear_attention", "ragged_constant")],
)


def inputs_of(problem, direction):
    return jax.jit(functools.partial(make_inputs, problem, direction))(2)


@pytest.mark.parametrize(("op", "name"), KINDS)
def test_the_reference_is_the_recurrence_of_numpy_and_its_gradients_are_slopes(op, name):
    problem = SAMPLES[op]()[name]
    sizes = {"num_value_heads": 4, "num_key_heads": 2, "head_dim": 8, "v_head_dim": 6}
    problem = dataclasses.replace(problem, dtype="float32", batch=3, length=14, **sizes)
    inputs = inputs_of(problem, "bwd")
    both = jax.jit(lambda x: {"fwd": reference(problem, "fwd", x.operands), "bwd": reference(problem, "bwd", x)})
    found = both(inputs)
    out, state = recurrence(problem, inputs.operands)
    np.testing.assert_allclose(found["fwd"]["out"], out, atol=2e-6)
    np.testing.assert_allclose(found["fwd"]["state"], state, atol=1e-5)
    # Outputs of tokens of no sequence are zero.
    dout = np.nan_to_num(np.asarray(inputs.dout, np.float64))

    def loss(operands):
        out, state = recurrence(problem, operands)
        return np.sum(out * dout) + np.sum(state * np.asarray(inputs.dstate, np.float64))

    rng = np.random.default_rng(0)
    for gradient, slope in found["bwd"].items():
        given = np.asarray(getattr(inputs.operands, gradient[1:]), np.float64)
        way = np.where(np.isfinite(given), rng.standard_normal(given.shape), 0)
        ends = [loss(inputs.operands._replace(**{gradient[1:]: given + step * way})) for step in (1e-5, -1e-5)]
        exact = (ends[0] - ends[1]) / 2e-5
        np.testing.assert_allclose(np.sum(slope * way), exact, rtol=2e-4, atol=2e-4, err_msg=gradient)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "name"),
    chosen(
        [("gla", "states"), ("kda", "states"), ("linear_attention", "constant")],
        [("kda", "states")],
    ),
)
def test_chunks_of_the_reference_are_its_steps_and_so_are_their_gradients(op, name):
    problem = dataclasses.replace(SAMPLES[op]()[name], dtype="float32", length=70, batch=1, at_edges=True)
    inputs = inputs_of(problem, "bwd")
    reals = {name: x for name, x in inputs.operands._asdict().items() if x is not None}

    def run(forward, reals):
        def call(reals):
            return forward(problem, inputs.operands._replace(**reals), np.dtype("float32"), lambda x: x)

        found, pull = jax.vjp(call, reals)
        return found, pull((inputs.dout, inputs.dstate))

    chunks, steps = (jax.jit(functools.partial(run, f))(reals) for f in (forward_in_chunks, forward_in_steps))
    for one, other in zip(jax.tree.leaves(chunks), jax.tree.leaves(steps), strict=True):
        assert np.linalg.norm(one - other) < 2e-6 * np.linalg.norm(other)


def test_gates_of_channels_at_the_edges_are_of_every_kind_beside_one_another():
    problem = features(kda()["plain"])[0]
    gates = np.asarray(inputs_of(problem, "fwd").g)[0]
    every = {0.0, -20.0, -88.0, LOWEST_GATE}
    # In one head each token has them all; in the next a channel has one for all tokens.
    assert every <= set(gates[5, 0].tolist())
    assert every <= set(gates[5, 1].tolist())
    assert np.ptp(gates[:, 1], axis=0).max() == 0
    assert len(np.unique(gates[:, 2])) > 1000


def test_constant_gates_at_the_edges_are_of_every_kind():
    problem = features(linear_attention()["constant"])[0]
    assert set(inputs_of(problem, "fwd").g.tolist()) == set(np.float32(CONSTANT_GATES).tolist())


@pytest.mark.parametrize("op", SAMPLES)
def test_signatures_of_all_samples_are_read_back_and_have_fields_that_mean_something(op):
    for problem in SAMPLES[op]().values():
        again = type(problem).from_signature(problem.signature)
        assert again == dataclasses.replace(problem, scale=again.scale, at_edges=False)
    words = {field.name for field in problem.FIELDS}
    assert ("beta" in words) == problem.has_delta
    assert ("gate" in words) == (len(problem.GATES) > 1)


def test_strengths_of_an_op_without_the_delta_rule_are_refused():
    with pytest.raises(UsageError, match=r"beta=1 \(has_beta\) is of ops with the delta rule; gla has none"):
        dataclasses.replace(gla()["plain"], has_beta=True)


def test_operations_and_bytes_are_those_of_the_rule_and_of_the_gates():
    sizes = {"batch": 3, "length": 20, "num_value_heads": 4, "num_key_heads": 2, "head_dim": 16, "v_head_dim": 24}
    of = {op: dataclasses.replace(SAMPLES[op]()["plain"], **sizes) for op in SAMPLES}
    tokens = 3 * 20
    assert flops(of["gla"], "fwd") == 4 * tokens * 4 * 16 * 24
    assert flops(of["kda"], "fwd") == 6 * tokens * 4 * 16 * 24
    plain = dataclasses.replace(of["linear_attention"], gate="none")
    gates = {"head": tokens * 4, "constant": 4}
    for gate, numbers in gates.items():
        gated = dataclasses.replace(plain, gate=gate)
        assert bytes_moved(gated, "fwd") - bytes_moved(plain, "fwd") == 4 * numbers
    assert bytes_moved(of["gla"], "bwd") - bytes_moved(plain, "bwd") == 2 * 4 * tokens * 4 * 16
    assert bytes_moved(of["kda"], "fwd") - bytes_moved(of["gla"], "fwd") == 4 * tokens * 4


@pytest.mark.parametrize("op", SAMPLES)
@pytest.mark.parametrize("sample", ["one_token", "four_tokens", "ragged_tokens"])
def test_a_state_that_is_rounded_in_a_step_of_decoding_is_wrong(op, sample):
    declared, problem = get_op(op), SAMPLES[op]()[sample]
    made = compile_case_functions(declared, problem, "fwd")
    kernel = get_kernel(f"{op}/xla").searches["fwd"]
    config = kernel.heuristic(problem, current_device())

    def decode(inputs, dtype):
        found = dict(load(kernel.call)(problem, config, inputs))
        return found | {"state": round_to(found["state"], dtype)}

    exact, rounded = (
        validate(jax.jit(functools.partial(decode, dtype=np.dtype(dtype))), [made.make(3)])
        for dtype in ("float32", problem.dtype)
    )
    assert exact.correct, exact.remark
    assert [error.output for error in rounded.errors if error.ratio > 10] == ["state"]


@pytest.mark.parametrize(
    ("op", "kernel"), [("gated_delta_rule", "triton"), ("gated_delta_rule", "triton_hopper"), ("kda", "triton")]
)
def test_kernels_over_chunks_leave_steps_of_decoding_to_others(op, kernel):
    h200, sizes = device_from_kind("nvidia-h200"), {"head_dim": 128, "v_head_dim": 128}
    one = dataclasses.replace(SAMPLES[op]()["one_token"], **sizes)
    spec = get_kernel(f"{op}/{kernel}")
    for tokens in (1, 8):
        step = dataclasses.replace(one, length=tokens)
        assert "it is a step of decoding" in str(spec.unsupported(step, "fwd", h200))
        assert choose(op, "fwd", step, device=h200).spec.name == "triton_steps"
    for other in ({"length": 9}, {"has_final_state": False}, {"dtype": "float32"}):
        assert "decoding" not in str(spec.unsupported(dataclasses.replace(one, **other), "fwd", h200))


@pytest.mark.parametrize(
    ("op", "sizes", "chunk", "seeds"),
    [
        # Rows of which queries and keys are nearly at right angles, and sums of gates over hundreds of tokens.
        ("gla", "b=1 t=1 n=4 k=2 h=8 v=8 dtype=float32", 16, [1009]),
        ("gated_delta_rule", "b=4 t=333 n=8 k=4 h=16 v=16 dtype=float32 state=both", 8, [3, 5]),
    ],
)
def test_float32_kernels_are_right_where_their_sums_cancel(op, sizes, chunk, seeds):
    declared, search = get_op(op), get_kernel(f"{op}/xla").searches["fwd"]
    problem = declared.from_signature(declared.parse_signature(f"{op}/v1 {sizes}"))
    problem = dataclasses.replace(problem, scale=0.2121 if chunk == 16 else 0.15)
    made = compile_case_functions(declared, problem, "fwd")
    config = dataclasses.replace(search.heuristic(problem, current_device()), chunk=chunk)
    call = jax.jit(functools.partial(load(search.call), problem, config))
    for seed in seeds:
        found = validate(call, [made.make(seed)])
        assert found.correct, found.remark
    coarse = lambda x: call(jax.tree.map(lambda y: jax.lax.reduce_precision(y, 8, 10), x))  # noqa: E731
    assert not validate(coarse, [made.make(seeds[0])]).correct, "one pass of tf32"


@pytest.mark.parametrize("op", SAMPLES)
def test_steps_of_decoding_have_products_of_float32_on_every_device(op):
    step, search = SAMPLES[op]()["four_tokens"], get_kernel(f"{op}/xla").searches["fwd"]
    h200 = device_from_kind("nvidia-h200")
    untuned = search.heuristic(step, h200)
    assert untuned.products == "float32"
    assert {config.products for config in search.candidates[WHOLE](step, h200)} == {"float32"}
    coarse = dataclasses.replace(untuned, products="working")
    assert "products=working would round states" in str(search.infeasible(step, h200, coarse))
    for other in ({"length": 9}, {"has_final_state": False}):
        longer = dataclasses.replace(step, **other)
        assert search.heuristic(longer, h200).products == "working"
    assert search.infeasible(dataclasses.replace(step, dtype="float32"), h200, coarse) is None
