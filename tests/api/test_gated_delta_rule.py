"""The public ``gated_delta_rule``: the recurrence, states passed on, packed sequences, gates, gradients, refusals."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals
from jax.sharding import PartitionSpec as P

import attn_tune
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.api.linear_arrays import B, H, K, N, T, V, arrays as linear_arrays, exact as linear_exact, part
from tests.chosen import chosen, exhaustive
from tests.several_devices import run_with_devices

arrays = functools.partial(linear_arrays, "gated_delta_rule")
recurrence = functools.partial(linear_exact, "gated_delta_rule")


@pytest.mark.parametrize("absent", [["g"], ["beta"], exhaustive(["g", "beta", "initial_state"])])
def test_the_output_and_the_state_are_those_of_the_recurrence(absent):
    given = {name: x for name, x in arrays().items() if name not in absent}
    out, state = attn_tune.gated_delta_rule(**given, return_state=True)
    exact, last = recurrence(given)
    np.testing.assert_allclose(out, exact, atol=2e-6)
    np.testing.assert_allclose(state, last, atol=4e-6)
    assert (out.dtype, state.dtype) == (jnp.float32, jnp.float32)


def test_one_call_is_two_calls_with_the_state_passed_on_and_so_are_its_gradients():
    given = arrays(2 * T)
    weights = jax.random.normal(jax.random.key(9), (B, 2 * T, N, V))

    def at_once(given):
        out, state = attn_tune.gated_delta_rule(**given, return_state=True)
        return jnp.sum(out * weights) + jnp.sum(state**2), (out, state)

    def in_turn(given):
        first, state = attn_tune.gated_delta_rule(
            **part(given, slice(T)), initial_state=given["initial_state"], return_state=True
        )
        second, state = attn_tune.gated_delta_rule(
            **part(given, slice(T, None)), initial_state=state, return_state=True
        )
        out = jnp.concatenate([first, second], axis=1)
        return jnp.sum(out * weights) + jnp.sum(state**2), (out, state)

    whole, parts = (jax.jit(jax.value_and_grad(f, has_aux=True))(given) for f in (at_once, in_turn))
    for one, other in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def test_decoding_token_by_token_is_the_whole_call():
    given = arrays(5)
    out, last = attn_tune.gated_delta_rule(**given, return_state=True)
    state = given["initial_state"]
    step = jax.jit(functools.partial(attn_tune.gated_delta_rule, return_state=True))
    for t in range(5):
        one, state = step(**part(given, slice(t, t + 1)), initial_state=state)
        np.testing.assert_allclose(one, out[:, t : t + 1], atol=3e-6)
    np.testing.assert_allclose(state, last, atol=3e-6)


def test_packed_sequences_are_calls_of_their_own():
    lengths = [7, 0, 1, 30, 2]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    given = arrays(int(ends[-1]) + 3, batch=1)
    given["initial_state"] = jax.random.normal(jax.random.key(4), (len(lengths), N, H, V))
    poisoned = {n: x if n == "initial_state" else x.at[:, ends[-1] :].set(jnp.nan) for n, x in given.items()}
    call = functools.partial(attn_tune.gated_delta_rule, cu_seqlens=jnp.asarray(ends), return_state=True)
    out, states = jax.jit(call)(**poisoned)
    assert not np.asarray(out[:, ends[-1] :]).any()
    for i, (begin, end) in enumerate(itertools.pairwise(ends)):
        if begin == end:
            continue
        exact, last = recurrence(part(given, slice(begin, end)) | {"initial_state": given["initial_state"][i : i + 1]})
        np.testing.assert_allclose(out[:, begin:end], exact, atol=3e-6)
        np.testing.assert_allclose(states[i : i + 1], last, atol=4e-6)
    np.testing.assert_array_equal(states[1], given["initial_state"][1])

    def loss(given):
        out, states = call(**given)
        return jnp.sum(out[:, : ends[-1]] ** 2) + jnp.sum(states**3)

    gradients = jax.jit(jax.grad(loss))(poisoned)
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(gradients))
    assert not np.asarray(gradients["v"][:, ends[-1] :]).any()
    np.testing.assert_allclose(gradients["initial_state"][1], 3 * given["initial_state"][1] ** 2, rtol=1e-6)


@pytest.mark.parametrize("gate", chosen([0.0, -1e-3, -20.0, -88.0, -1e4, -jnp.inf], [0.0, -88.0, -jnp.inf]))
def test_gates_of_every_size_are_right_and_have_gradients(gate):
    given = arrays()
    given["g"] = given["g"].at[:, ::3].set(gate)
    out, state = attn_tune.gated_delta_rule(**given, return_state=True)
    exact, last = recurrence(given)
    np.testing.assert_allclose(out, exact, atol=3e-6)
    np.testing.assert_allclose(state, last, atol=4e-6)
    gradients = jax.grad(lambda x: jnp.sum(attn_tune.gated_delta_rule(**x) ** 2))(given)
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(gradients))


def test_a_reset_forgets_everything_exactly():
    given = arrays()
    given["g"] = given["g"].at[:, 10].set(-jnp.inf)
    out = attn_tune.gated_delta_rule(**given)
    other = {**given, "v": given["v"].at[:, :10].mul(1e6), "initial_state": 1e30 * given["initial_state"]}
    np.testing.assert_array_equal(out[:, 10:], attn_tune.gated_delta_rule(**other)[:, 10:])


def test_gradients_are_those_of_the_recurrence_in_a_scan():
    given = arrays()

    def plain(given):
        def step(state, token):
            q, k, v, g, beta = token
            q, k = (jnp.repeat(x, N // K, axis=1) for x in (q, k))
            state = jnp.exp(g)[..., None, None] * state
            change = beta[..., None] * (v - jnp.einsum("bnh,bnhv->bnv", k, state, precision="highest"))
            state = state + k[..., None] * change[..., None, :]
            return state, H**-0.5 * jnp.einsum("bnh,bnhv->bnv", q, state, precision="highest")

        tokens = tuple(jnp.moveaxis(given[name], 1, 0) for name in ("q", "k", "v", "g", "beta"))
        state, out = jax.lax.scan(step, given["initial_state"], tokens)
        return jnp.moveaxis(out, 0, 1), state

    def loss(call, given):
        out, state = call(given)
        return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.cos(state))

    call = functools.partial(loss, lambda given: attn_tune.gated_delta_rule(**given, return_state=True))
    found, exact = (jax.jit(jax.grad(f))(given) for f in (call, functools.partial(loss, plain)))
    for name in given:
        np.testing.assert_allclose(found[name], exact[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_strengths_and_gates_may_have_the_dtype_of_the_queries_and_so_have_their_gradients():
    given = arrays(dtype=jnp.bfloat16)
    given |= {name: given[name].astype(jnp.bfloat16) for name in ("g", "beta")}
    gradients = jax.grad(lambda x: jnp.sum(attn_tune.gated_delta_rule(**x).astype(jnp.float32)))(given)
    assert {name: x.dtype for name, x in gradients.items()} == {name: x.dtype for name, x in given.items()}
    wide = {n: x.astype(jnp.float32) if n in ("g", "beta") else x for n, x in given.items()}
    np.testing.assert_array_equal(attn_tune.gated_delta_rule(**given), attn_tune.gated_delta_rule(**wide))


def test_a_mapped_call_is_one_of_a_larger_batch():
    given = arrays(batch=4)
    halves = {name: x.reshape(2, 2, *x.shape[1:]) for name, x in given.items()}
    call = functools.partial(attn_tune.gated_delta_rule, return_state=True)
    for one, other in zip(jax.vmap(lambda x: call(**x))(halves), call(**given), strict=True):
        np.testing.assert_allclose(one.reshape(other.shape), other, atol=2e-6)


@pytest.mark.parametrize("length", [0, T])
def test_no_tokens_or_no_sequences_leave_the_state_as_it_is(length):
    batch = B if length == 0 else 0
    given = arrays(max(length, 1), batch=max(batch, 1))
    given = {n: x[:batch] if n == "initial_state" else x[:batch, :length] for n, x in given.items()}
    out, state = attn_tune.gated_delta_rule(**given, return_state=True)
    assert out.shape == (batch, length, N, V)
    np.testing.assert_array_equal(state, given["initial_state"])


def test_configs_of_both_directions_can_be_given():
    from attn_tune.kernels.lang.xla.linear.config import (
        DeltaBackwardConfig as BackwardConfig,
        DeltaForwardConfig as ForwardConfig,
    )

    given = arrays()
    configs = {"fwd": ForwardConfig(chunk=8, solve="substitution"), "bwd": BackwardConfig(chunk=16)}
    loss = lambda x, **more: jnp.sum(attn_tune.gated_delta_rule(**x, **more) ** 2)  # noqa: E731
    value, gradients = jax.value_and_grad(functools.partial(loss, platform="xla", cfg=configs))(given)
    other, plain = jax.value_and_grad(loss)(given)
    np.testing.assert_allclose(value, other, rtol=1e-5)
    for one, two in zip(jax.tree.leaves(gradients), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"q": jnp.zeros((B, T, H))}, r"q must be \[batch, length, heads, head dim\]"),
        ({"k": jnp.zeros((B, T, K, H + 1))}, "q and k must have one shape"),
        ({"v": jnp.zeros((B, T, 3, V))}, r"value heads \(3\) must be a multiple of query/key heads \(2\)"),
        ({"v": jnp.zeros((B, T + 1, N, V))}, "q and v must agree in batch and length"),
        ({"v": jnp.zeros((B, T, N, V), jnp.bfloat16)}, "must share a dtype"),
        ({"v": jnp.zeros((B, T, N, V), jnp.int32)}, "v must have dtype bfloat16, float16, float32"),
        ({"g": jnp.zeros((B, T))}, r"g must be float32\[2, 22, 4\], one number for each token"),
        ({"beta": jnp.zeros((B, T, N), jnp.bfloat16)}, r"beta must be float32\[2, 22, 4\]"),
        ({"initial_state": jnp.zeros((B, N, V, H))}, r"initial_state must be float32\[2, 4, 8, 12\]"),
        ({"initial_state": jnp.zeros((B, N, H, V), jnp.bfloat16)}, "initial_state must be float32"),
        ({"cu_seqlens": jnp.asarray([0, T])}, "in a batch of 1, got a batch of 2"),
        ({"workload": "uni"}, "workload='uni' is a profile of lengths; it needs cu_seqlens"),
        ({"workload": "unit"}, "unknown workload 'unit'; did you mean 'uni'"),
        ({"scale": "one"}, "scale must be a number, got 'one'"),
        ({"scale": "0.5"}, "scale must be a number, got '0.5'"),
        ({"scale": True}, "scale must be a number, got True"),
        ({"scale": float("inf")}, "scale must be finite, got inf"),
        ({"scale": 1e39}, "scale must be a finite float32, got 1e\\+39"),
        ({"scale": 10**400}, "scale must be a finite number, got an integer beyond floats"),
        ({"q": "05"}, "q must be an array, .* got '05'"),
        ({"q": np.zeros((B, T, K, H), ">f4")}, r"q must be an array, of a dtype that JAX has .* got an array >f4\["),
        ({"slots": [2**32, 0], "return_state": True}, r"integers within int32, got \[4294967296, 0\]"),
        ({"slots": [1, 1], "return_state": True}, r"slots must differ, got 1 twice; one that is not in the pool"),
        ({"g": jnp.zeros(N)}, r"one gate for each head is jnp\.broadcast_to\(g, v\.shape\[:3\]\)$"),
        ({"mesh": "x", "in_specs": (P(),) * 3}, "mesh must be a jax.sharding.Mesh, got 'x'"),
        ({"mesh": jax.make_mesh((1,), ("x",)), "in_specs": 5}, "in_specs must be a sequence of specs, got 5"),
        ({"return_state": "yes"}, "return_state must be True or False, got 'yes'"),
    ],
)
def test_malformed_arguments_are_refused_by_name(change, words):
    with pytest.raises(UsageError, match=words):
        attn_tune.gated_delta_rule(**arrays() | change)


def test_the_name_that_an_argument_has_elsewhere_leads_to_the_one_here():
    with pytest.raises(TypeError, match="'output_final_state': here it is 'return_state'"):
        attn_tune.gated_delta_rule(**arrays(), output_final_state=True)


def test_ends_of_one_number_are_refused():
    with pytest.raises(UsageError, match=r"\[sequences \+ 1\], got int32\[1\]; at least one sequence, .* two ends"):
        attn_tune.gated_delta_rule(**part(arrays(batch=1), slice(None)), cu_seqlens=jnp.asarray([0]))
    with pytest.raises(UsageError, match=r"cu_seqlens must be int32 \[sequences \+ 1\], got float32\[2\]"):
        attn_tune.gated_delta_rule(**part(arrays(batch=1), slice(None)), cu_seqlens=jnp.asarray([0.0, 4.0]))


def test_a_second_derivative_is_refused_with_a_way_out():
    given = arrays(4)
    loss = lambda v: jnp.sum(attn_tune.gated_delta_rule(**{**given, "v": v}) ** 2)  # noqa: E731
    with pytest.raises(UnsupportedError, match=r"no second derivative .* jax\.lax\.scan over the tokens"):
        jax.eval_shape(jax.hessian(loss), given["v"])


@pytest.mark.parametrize("op", [attn_tune.kda, attn_tune.gla])
def test_a_backward_keeps_the_operands_and_flags_of_gates(op, capsys):
    q = jnp.ones((1, 64, 2, 8))
    g = jnp.full((1, 64, 2, 8), -1.0, jnp.float32)
    print_saved_residuals(lambda *x: op(*x).sum(), q, q, q, g)
    lines = capsys.readouterr().out.splitlines()
    # Constants are not kept: XLA makes them.
    kept = [line.split()[0] for line in lines if "[]" not in line.split()[0] and "broadcast_in_dim" not in line]
    # Beside the operands there are flags: which gates are the lowest.
    assert sorted(kept) == ["bool[1,64,2,8]", *["f32[1,64,2,8]"] * 4]


def test_gates_that_forget_everything_have_a_gradient_of_zero():
    given = arrays()
    given["g"] = given["g"].at[:, 3].set(-jnp.inf).at[:, 5].set(-128.0)
    dg = jax.grad(lambda g: jnp.sum(attn_tune.gated_delta_rule(**given | {"g": g}) ** 2))(given["g"])
    assert not dg[:, [3, 5]].any()
    assert jnp.isfinite(dg).all()
    assert dg[:, 6].any()
    with pytest.raises(UnsupportedError, match="no second derivative"):
        jax.hessian(lambda g: jnp.sum(attn_tune.gated_delta_rule(**given | {"g": g}) ** 2))(given["g"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "ways", chosen([["automatic", "manual", "pool"], ["explicit", "packed"]], [["automatic", "manual", "pool"]])
)
def test_batch_and_heads_stay_sharded(ways):
    assert run_with_devices(4, "-m", "tests.api.linear_sharded", "gated_delta_rule", *ways).split() == ways
