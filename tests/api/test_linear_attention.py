"""The public ``linear_attention``, ``gla`` and ``kda``; more of what all share is tried with ``gated_delta_rule``."""

import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.api.linear.other_names import NAMES
from attn_tune.schema.errors import AttnTuneWarning, UnsupportedError, UsageError
from tests.api.linear_arrays import KINDS, B, H, K, N, T, V, arrays, call, exact, part
from tests.chosen import chosen
from tests.several_devices import run_with_devices

# Of each size one, in turn.
GATES = jnp.asarray([0.0, -1e-3, -0.3, -20.0, -0.1, -88.0, -1e4, -0.2, -jnp.inf, -0.5, -1e-3])


def with_every_gate(kind):
    """Arguments whose gates have every size: some tokens of a channel and some channels of a token, or some heads."""
    given = arrays(kind)
    if kind == "constant":
        given["g"] = jnp.asarray([0.0, -1e-3, -20.0, -jnp.inf])
    elif kind != "none":
        turn = sum(jnp.indices(given["g"].shape))
        given["g"] = jnp.where(turn % 3 == 0, GATES[turn % len(GATES)], given["g"])
    return given


def plain(given):
    """The recurrence in a scan, differentiated by JAX."""

    def step(state, token):
        q, k, v, g, beta = token
        q, k = (jnp.repeat(x, N // K, axis=1) for x in (q, k))
        state = jnp.exp(g.reshape(*g.shape, *[1] * (4 - g.ndim))) * state
        if beta is not None:
            v = beta[..., None] * (v - jnp.einsum("bnh,bnhv->bnv", k, state, precision="highest"))
        state = state + k[..., None] * v[..., None, :]
        return state, H**-0.5 * jnp.einsum("bnh,bnhv->bnv", q, state, precision="highest")

    g = given.get("g", jnp.zeros(N))
    g = jnp.broadcast_to(g, (*given["v"].shape[:2], N)) if g.ndim == 1 else g
    tokens = (given["q"], given["k"], given["v"], g, given.get("beta"))
    state, out = jax.lax.scan(step, given["initial_state"], jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), tokens))
    return jnp.moveaxis(out, 0, 1), state


def gradients(function, given):
    def loss(given):
        out, state = function(given)
        return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.cos(state)), (out, state)

    return jax.jit(jax.grad(loss, has_aux=True))(given)


@pytest.mark.parametrize("kind", chosen(["head", "constant", "none", "gla", "kda"], ["constant", "gla", "kda"]))
def test_outputs_states_and_gradients_are_those_of_the_recurrence_whatever_the_gates_are(kind):
    given = with_every_gate(kind)
    found, outputs = gradients(lambda given: call(kind)(**given, return_state=True), given)
    for one, other in zip(outputs, exact(kind, given), strict=True):
        np.testing.assert_allclose(one, other, atol=4e-6)
    wanted, _ = gradients(plain, given)
    assert found.keys() == given.keys()
    for name in given:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", chosen(["constant", "kda"], []))
def test_packed_sequences_are_calls_of_their_own_and_have_gradients(kind):
    lengths = [7, 0, 1, 20, 2]
    ends = np.concatenate([[0], np.cumsum(lengths)])
    given = arrays(kind, int(ends[-1]) + 3, batch=1)
    given["initial_state"] = jax.random.normal(jax.random.key(4), (len(lengths), N, H, V))
    poisoned = {n: x if x.shape[0] != 1 else x.at[:, ends[-1] :].set(jnp.nan) for n, x in given.items()}

    def loss(given):
        out, states = call(kind)(**given, cu_seqlens=jnp.asarray(ends), return_state=True)
        return jnp.sum(out[:, : ends[-1]] ** 2) + jnp.sum(states**3), (out, states)

    found, (out, states) = jax.jit(jax.grad(loss, has_aux=True))(poisoned)
    assert not np.asarray(out[:, ends[-1] :]).any()
    for i, (begin, end) in enumerate(itertools.pairwise(ends)):
        if begin < end:
            one = part(given, slice(begin, end)) | {"initial_state": given["initial_state"][i : i + 1]}
            single, last = exact(kind, one)
            np.testing.assert_allclose(out[:, begin:end], single, atol=3e-6)
            np.testing.assert_allclose(states[i : i + 1], last, atol=4e-6)
    np.testing.assert_array_equal(states[1], given["initial_state"][1])
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(found))
    assert not np.asarray(found["v"][:, ends[-1] :]).any()
    np.testing.assert_allclose(found["initial_state"][1], 3 * given["initial_state"][1] ** 2, rtol=1e-6)
    # A token that is its sequence: by hand, with the output's weights and those of its state.
    single = part(given, slice(7, 8)) | {"initial_state": given["initial_state"][2:3]}
    alone = jax.grad(lambda x: (lambda o, s: jnp.sum(o**2) + jnp.sum(s**3))(*plain(x)))(single)
    for name in ("q", "k", "v"):
        np.testing.assert_allclose(found[name][:, 7:8], alone[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("kind", chosen(["head", "constant", "gla", "kda"], ["head", "kda"]))
def test_one_call_is_two_calls_with_the_state_passed_on_and_the_second_may_be_tokens_one_by_one(kind):
    given = arrays(kind, T)
    run = jax.jit(functools.partial(call(kind), return_state=True))
    whole, last = run(**given)
    first, state = run(**part(given, slice(T - 3)), initial_state=given["initial_state"])
    found = [first]
    for t in range(T - 3, T):
        one, state = run(**part(given, slice(t, t + 1)), initial_state=state)
        found.append(one)
    np.testing.assert_allclose(jnp.concatenate(found, axis=1), whole, atol=3e-6)
    np.testing.assert_allclose(state, last, atol=3e-6)


def test_no_tokens_leave_the_state_as_it_is():
    given = {n: x if n == "initial_state" else x[:, :0] for n, x in arrays("kda").items()}
    out, state = attn_tune.kda(**given, return_state=True)
    assert out.shape == (B, 0, N, V)
    np.testing.assert_array_equal(state, given["initial_state"])


@pytest.mark.parametrize("kind", chosen(["gated_delta_rule", "head", "gla", "kda"], ["head", "kda"]))
def test_what_is_not_finite_in_a_sequence_reaches_no_sequence_beside_it(kind):
    given = part(arrays(kind, 40, batch=1), slice(None))
    poisoned = given | {"v": given["v"].at[:, 12:30].set(jnp.nan), "k": given["k"].at[:, 20].set(jnp.inf)}

    @jax.jit
    @functools.partial(jax.grad, has_aux=True)
    def both(given):
        outputs = call(kind)(**given, cu_seqlens=jnp.asarray([0, 11, 12, 30, 40]), return_state=True)
        return sum(jnp.sum(jnp.sin(x)) for x in outputs), outputs

    (found, (out, states)), (wanted, (whole, kept)) = both(poisoned), both(given)
    assert jnp.isnan(out[:, 12:30]).all()
    others, last = np.r_[0:12, 30:40], np.asarray([0, 1, 3])
    np.testing.assert_array_equal(out[:, others], whole[:, others])
    np.testing.assert_array_equal(states[last], kept[last])
    for name in given:
        np.testing.assert_array_equal(found[name][:, others], wanted[name][:, others], err_msg=name)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("head", {"g": jnp.zeros((B, T))}, r"g must be float32\[2, 22, 4\], one number for each token and value head"),
        ("head", {"g": jnp.zeros((B, T))}, r"head, or \[4\], one number for each value head, got float32\[2, 22\]"),
        ("head", {"g": jnp.zeros((B, T, N, H))}, r"got float32\[2, 22, 4, 8\]; a gate for each channel .* g of gla$"),
        (
            "gated_delta_rule",
            {"g": jnp.zeros((B, T, N, H))},
            r"got float32\[2, 22, 4, 8\]; a gate .* channel .* g of kda$",
        ),
        (
            "kda",
            {"g": jnp.zeros((B, T, N))},
            r"got float32\[2, 22, 4\]; a gate for each head is the g of gated_delta_rule$",
        ),
        ("kda", {"g": None}, r"got None; without a gate call gated_delta_rule\(\.\.\., g=None\)"),
        ("gla", {"g": None}, r"got None; without a gate call linear_attention\("),
        ("constant", {"g": jnp.zeros(K)}, r"g must be float32\[4\], one number for each value head, got float32\[2\]"),
        ("gla", {"g": jnp.zeros((B, T, N))}, r"g must be float32\[2, 22, 4, 8\], .* and channel of the keys"),
        ("kda", {"beta": jnp.zeros((B, T))}, r"beta must be float32\[2, 22, 4\]"),
        ("kda", {"v": jnp.zeros((B, T, 3, V))}, r"value heads \(3\) must be a multiple of query/key heads \(2\)"),
        ("head", {"workload": None}, "workload must be one of"),
        ("gla", {"workload": "uni"}, "workload='uni' is a profile of lengths; it needs cu_seqlens"),
    ],
)
def test_malformed_arguments_are_refused_by_name(kind, change, words):
    with pytest.raises(UsageError, match=words):
        call(kind)(**arrays(kind) | change)


@pytest.mark.parametrize(
    ("kind", "name", "here"),
    [
        ("constant", "g_gamma", "here it is 'g'; 'g_gamma' is an argument of like functions of flash-linear-attention"),
        ("constant", "gk", "gates for each channel of the keys are the 'g' of gla"),
        ("gla", "gk", "here it is 'g'"),
        ("gla", "softmax_scale", "here it is 'scale'"),
        ("kda", "cu_seqlens_q", "here it is 'cu_seqlens'"),
        ("kda", "use_qk_l2norm_in_kernel", "normalise q and k before the call"),
        ("kda", "A_log", r"compute the gates before the call: g = -exp\(A_log\) \* softplus\(a \+ dt_bias\)"),
        ("none", "initial_states", "here it is 'initial_state', with the last two axes swapped"),
        ("none", "D", r"add D \* x to the output; 'D' is"),
        ("head", "seq_idx", "give gates of minus infinity where sequences begin, or for one row 'cu_seqlens'"),
    ],
)
def test_the_name_that_an_argument_has_elsewhere_leads_to_the_one_here(kind, name, here):
    with pytest.raises(TypeError, match=f"{name!r}: {here}"):
        call(kind)(**arrays(kind), **{name: None})


@pytest.mark.parametrize("kind", ["gated_delta_rule", "head", "gla", "kda"])
def test_names_of_other_packages_all_have_a_way_out(kind):
    for name in NAMES:
        assert name not in inspect.signature(call(kind)).parameters
        with pytest.raises(TypeError, match=f"{name!r}: .+; {name!r} is an argument of"):
            call(kind)(**arrays(kind), **{name: None})


@pytest.mark.parametrize("kind", ["gated_delta_rule", "head", "gla", "kda"])
def test_heads_before_tokens_get_a_warning(kind):
    x = jax.ShapeDtypeStruct((1, 4, 300, 16), jnp.float32)
    gate = jax.ShapeDtypeStruct(x.shape if KINDS[kind][1] == "channel" else x.shape[:3], jnp.float32)
    with pytest.warns(AttnTuneWarning, match=r"^query .* 4 tokens of 300 heads.* swap axes 1 and 2") as warned:
        jax.eval_shape(call(kind), x, x, x, gate)
    assert len(warned) == 1


@pytest.mark.parametrize("kind", ["gated_delta_rule", "head", "gla", "kda"])
def test_a_kernel_of_the_backward_that_cannot_run_is_an_error_that_says_why(kind):
    given = arrays(kind)

    def loss(v):
        return jnp.sum(call(kind)(**given | {"v": v}, platform={"fwd": "xla", "bwd": "triton"}))

    jax.eval_shape(loss, given["v"])
    with pytest.raises(UnsupportedError, match=r"^triton cannot do the bwd of .*: Triton kernels need an NVIDIA GPU"):
        jax.eval_shape(jax.grad(loss), given["v"])


def test_a_traced_scale_is_refused_with_a_way_out():
    given = arrays("none")
    with pytest.raises(UsageError, match=r"scale must .* compiled into the kernel; .* multiply q or the output"):
        jax.jit(lambda scale: attn_tune.linear_attention(**given, scale=scale))(2.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "ways"),
    chosen(
        [("constant", ["packed"]), ("kda", ["automatic"]), ("constant", ["automatic"]), ("kda", ["packed"])],
        [("kda", ["automatic"])],
    ),
)
def test_batch_and_heads_stay_sharded(kind, ways):
    assert run_with_devices(4, "-m", "tests.api.linear_sharded", kind, *ways).split() == ways
