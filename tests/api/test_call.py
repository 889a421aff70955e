"""The call path with ops that are not attention: choice, derivatives, vmap, shards, and errors in words."""

import dataclasses
import functools
import json
import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.api import direction
from attn_tune.api.call import run
from attn_tune.api.declaration import Call
from attn_tune.api.request import Request
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.api import probe_ops
from tests.api.probe_ops import (
    LAUNCHES,
    PLAIN_PAIR_SUMS,
    PROBES,
    SCALE_ROWS,
    Config,
    Problem,
    Rows,
    RowsBackward,
    pair_sums,
    register,
    scale_rows,
)
from tests.ops.known import more_kernels

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
X, Y = (jnp.asarray(np.random.default_rng(i).standard_normal((3, 5), np.float32)) for i in range(2))
W = Y[0]


@pytest.fixture(autouse=True)
def probes(monkeypatch):
    register(monkeypatch)
    # Launches of equal problems share one trace; every test counts its own.
    jax.clear_caches()
    LAUNCHES.clear()


def test_an_op_of_one_direction_is_called_by_its_declaration_alone():
    np.testing.assert_allclose(pair_sums(X, Y), jnp.sum(X * Y, axis=1), rtol=1e-6)
    assert LAUNCHES == [("pair_sums", 3, 8)]


@pytest.mark.parametrize(
    "differentiated",
    [
        jax.grad,
        lambda f: jax.jit(jax.grad(f)),
        lambda f: jax.grad(jax.jit(f)),
        lambda f: jax.grad(jax.checkpoint(f)),
        lambda f: lambda x: jax.vjp(f, x)[1](jnp.float32(1))[0],
        lambda f: lambda x: jax.grad(lambda xs: jax.vmap(f)(xs).sum())(x[None])[0],
        lambda f: lambda x: jax.vmap(jax.grad(jax.jit(f)))(x[None])[0],
        lambda f: lambda x: jax.vmap(jax.jit(jax.grad(f)))(x[None])[0],
        lambda f: (
            lambda x: jax.vmap(jax.grad(lambda x: jax.lax.scan(lambda c, _: (c + f(x), None), 0.0, None, 1)[0]))(
                x[None]
            )[0]
        ),
    ],
    ids=["grad", "jit of grad", "grad of jit", "checkpoint", "vjp", "vmap", "vmap of jit", "vmap of trace", "scan"],
)
def test_a_block_around_a_call_holds_for_its_derivative_too(differentiated):
    def loss(x):
        with (
            attn_tune.use_config("scale_rows", "plain", {"block": 24}, direction="fwd"),
            attn_tune.use_config("scale_rows", "plain", {"block": 40}, direction="bwd"),
        ):
            return scale_rows(x, W).sum()

    expected = jax.grad(lambda x: (x * W).sum())(X)
    for _ in range(2):
        np.testing.assert_allclose(differentiated(loss)(X), expected, rtol=1e-6)
    assert {(way, block) for way, _, block in LAUNCHES} == {("fwd", 24), ("bwd", 40)}
    LAUNCHES.clear()
    differentiated(lambda x: scale_rows(x, W).sum())(X)
    assert {block for *_, block in LAUNCHES} == {8}


@pytest.mark.parametrize("is_first", [True, False], ids=["block first", "block last"])
def test_ops_that_a_kernel_is_made_of_share_no_trace_with_those_of_other_blocks(monkeypatch, is_first):
    def of_block(x):
        with attn_tune.use_config("pair_sums", "plain", {"block": 24}):
            return scale_rows(x, W).sum()

    def plain(x):
        return scale_rows(x, W).sum()

    def parts(loss):
        LAUNCHES.clear()
        jax.grad(loss)(X)
        return [block for way, _, block in LAUNCHES if way == "pair_sums"]

    monkeypatch.setattr(probe_ops, "PARTS", [pair_sums])
    order = [of_block, plain] if is_first else [plain, of_block]
    found = {loss: parts(loss) for loss in order}
    assert found == {of_block: [24], plain: [8]}


def test_a_kernel_may_open_a_block_of_its_own(monkeypatch):
    def part(x, y):
        with attn_tune.use_config("pair_sums", "plain", {"block": 32}):
            return pair_sums(x, y)

    def loss(x):
        with attn_tune.use_config("pair_sums", "plain", {"block": 24}):
            return scale_rows(x, W).sum()

    monkeypatch.setattr(probe_ops, "PARTS", [part])
    jax.grad(loss)(X)
    assert ("pair_sums", 3, 32) in LAUNCHES
    assert ("pair_sums", 3, 24) not in LAUNCHES


def test_a_block_holds_where_a_plain_derivative_runs_the_forward_again():
    def loss(x):
        with attn_tune.use_config("pair_sums", "plain", {"block": 24}):
            return pair_sums(x, Y, PLAIN_PAIR_SUMS).sum()

    for differentiated in (jax.grad(jax.jit(loss)), jax.grad(jax.checkpoint(loss)), jax.jit(jax.grad(loss))):
        np.testing.assert_allclose(differentiated(X), Y, rtol=1e-6)
    assert {block for *_, block in LAUNCHES} == {24}


@pytest.fixture
def overrides_file(monkeypatch, tmp_path):
    path = tmp_path / "overrides.json"
    path.write_text('{"format": 1}')
    monkeypatch.setenv("ATTN_TUNE_OVERRIDES", str(path))
    attn_tune.reload()
    yield path
    monkeypatch.undo()
    attn_tune.reload()


def test_a_backward_sees_settings_that_were_reloaded_since_its_forward(overrides_file):
    _, pull = jax.vjp(lambda x: scale_rows(x, W).sum(), X)
    never = {"op": "scale_rows", "kernel": "plain", "direction": "bwd", "reason": "wrong"}
    overrides_file.write_text(json.dumps({"format": 1, "never": [never]}))
    attn_tune.reload()
    with pytest.raises(UnsupportedError, match="an override forbids it"):
        pull(jnp.float32(1))


def test_vmap_folds_the_mapped_axis_into_the_first_parallel_letter():
    got = jax.vmap(pair_sums, (0, None))(jnp.stack([X, Y]), Y)
    np.testing.assert_allclose(got, jnp.stack([(X * Y).sum(1), (Y * Y).sum(1)]), rtol=1e-6)
    assert ("pair_sums", 6, 8) in LAUNCHES


def test_vmap_of_a_shared_operand_runs_element_by_element():
    got = jax.vmap(scale_rows, (None, 0))(X, Y)
    np.testing.assert_allclose(got, X[None] * Y[:, None], rtol=1e-6)
    assert {rows for _, rows, _ in LAUNCHES} == {3}


def test_an_op_without_a_backward_refuses_a_derivative_with_the_way_out():
    with pytest.raises(UnsupportedError, match=r"pair_sums has no derivative.*stop_gradient"):
        jax.grad(lambda x: pair_sums(x, Y).sum())(X)
    stopped = jax.grad(lambda x: pair_sums(jax.lax.stop_gradient(x), Y).sum() + x.sum())(X)
    np.testing.assert_array_equal(stopped, jnp.ones_like(X))


def test_an_op_may_take_the_derivatives_of_its_plain_computation():
    def loss(x):
        return jnp.sum(jnp.sin(pair_sums(x, Y, PLAIN_PAIR_SUMS)))

    def plain(x):
        return jnp.sum(jnp.sin(jnp.sum(x * Y, axis=1)))

    for derivative in (jax.grad, jax.hessian, jax.jacfwd):
        np.testing.assert_allclose(derivative(loss)(X), derivative(plain)(X), atol=1e-5)
    assert LAUNCHES[0] == ("pair_sums", 3, 8)


def test_forward_and_backward_take_the_configs_that_the_caller_gives():
    def loss(x, weight, **how):
        return jnp.sum(jnp.sin(scale_rows(x, weight, **how)))

    cfg = {"fwd": Config(block=16), "bwd": Config(block=32)}
    got = jax.grad(loss, (0, 1))(X, W, cfg=cfg)
    want = jax.grad(lambda x, weight: jnp.sum(jnp.sin(x * weight)), (0, 1))(X, W)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)
    assert LAUNCHES == [("fwd", 3, 16), ("bwd", 3, 32)]


def test_forward_and_backward_take_the_configs_that_are_pinned():
    loss = lambda x: scale_rows(x, W).sum()  # noqa: E731
    with (
        attn_tune.use_config("scale_rows", "plain", Config(block=64)),
        attn_tune.use_config("scale_rows", "plain", Config(block=128), "bwd"),
    ):
        jax.grad(loss)(X)
    assert LAUNCHES == [("fwd", 3, 64), ("bwd", 3, 128)]


def plain_gradients(x, weight):
    return jax.grad(lambda x, weight: jnp.sum(jnp.sin(x * weight)), (0, 1))(x, weight)


def probe_gradients(x, weight, **how):
    return jax.grad(lambda x, weight: jnp.sum(jnp.sin(scale_rows(x, weight, **how))), (0, 1))(x, weight)


def assert_close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, want)


@pytest.mark.parametrize("axes", [(0, None), (0, 0)])
def test_gradients_with_names_of_their_own_are_mapped(axes):
    weight = W if axes[1] is None else jnp.stack([W, -W])
    got, want = (jax.vmap(f, axes)(jnp.stack([X, Y]), weight) for f in (probe_gradients, plain_gradients))
    assert_close(got, want)


def test_gradients_with_names_of_their_own_are_summed_over_a_mesh():
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jnp.tile(X[:1], (2 * jax.device_count(), 1))
    got = probe_gradients(x, W, mesh=mesh, in_specs=(jax.P("data"),))
    assert_close(got, plain_gradients(x, W))


def test_a_gradient_that_the_op_does_not_declare_is_refused_by_name(monkeypatch):
    op, kernel = PROBES[1]
    more_kernels(monkeypatch, kernel, ops=[dataclasses.replace(op, outputs=lambda problem, direction: ())])
    with pytest.raises(UsageError, match=r"scale_rows' has no output of 'bwd' that is the gradient of 'x'"):
        probe_gradients(X, W)


def test_a_second_derivative_is_refused_by_the_name_of_the_op():
    with pytest.raises(UnsupportedError, match="scale_rows has no second derivative"):
        jax.hessian(lambda x: scale_rows(x, W).sum())(X)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"platform": "plane"}, "plain"),
        ({"platform": {"bwd": "plain"}}, "platform has the key 'bwd'; its keys are fwd"),
        ({"cfg": 3}, "cfg must be a config dataclass"),
        ({"in_specs": ()}, "mesh is missing"),
    ],
)
def test_options_of_a_caller_are_checked_by_name(how, words):
    with pytest.raises(UsageError, match=words):
        pair_sums(X, Y, **how)
    assert LAUNCHES == []


def test_the_function_on_the_page_is_called_and_differentiated():
    (code,) = re.findall(r"```py\n(CALL = .*?)```", PAGE.read_text(), re.DOTALL)
    names = {
        "Call": Call,
        "run": run,
        "jax": jax,
        "replace": replace,
        "Problem": functools.partial(Problem, op="scale_rows"),
        "Operands": Rows,
        "Backward": RowsBackward,
    }
    exec(code, names)
    np.testing.assert_allclose(names["scale_rows"](X, W), X * W, rtol=1e-6)
    dx, dweight = jax.grad(lambda x, w: jnp.sum(names["scale_rows"](x, w) * Y), argnums=(0, 1))(X, W)
    np.testing.assert_allclose(dx, Y * W, rtol=1e-6)
    np.testing.assert_allclose(dweight, jnp.sum(X * Y, axis=0), rtol=1e-5)


def test_equal_launches_are_one_function_so_that_what_is_made_of_it_is_remembered():
    problem = Problem(op="scale_rows", rows=3, columns=5)
    first, second = (direction._launch(SCALE_ROWS, problem, Request(), "fwd") for _ in range(2))
    assert first is second
    assert direction._launch(SCALE_ROWS, replace(problem, rows=4), Request(), "fwd") is not first
