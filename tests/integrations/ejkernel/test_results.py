"""Every function by ejkernel's name gives what numpy does, and beside its XLA kernels where it is installed."""

import inspect
import os

import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune.integrations.ejkernel as ours
from tests.integrations.ejkernel.linear_calls import CALLS
from tests.jitted import jitted


def arrays(arguments):
    return tuple(jnp.asarray(x) if isinstance(x, np.ndarray) else x for x in arguments)


def close(found, expected, atol=2e-4):
    found, expected = (x if isinstance(x, tuple) else (x,) for x in (found, expected))
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), atol=atol, rtol=1e-3)


@pytest.mark.parametrize("name", CALLS)
def test_the_function_gives_what_numpy_does(name):
    arguments, keywords, expected = CALLS[name](np.random.default_rng(0))
    close(jitted(getattr(ours, name.partition("__")[0]))(*arrays(arguments), **keywords), expected)


def test_every_function_but_aliases_has_a_call():
    names = {name.partition("__")[0] for name in CALLS}
    functions = {getattr(ours, name).__name__ for name in ours.__all__}
    assert functions <= names | {"ring_attention"}  # of which another module of tests has its calls


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    os.environ.setdefault("EJKERNEL_AUTOTUNE_POLICY", "heuristics")
    os.environ.setdefault("EJKERNEL_PERSISTENT_CACHE_DIR", str(tmp_path_factory.mktemp("ejkernel")))
    return pytest.importorskip("ejkernel.modules", reason="ejkernel is not installed")


def test_signatures_are_those_of_ejkernel(theirs):
    def of(function):
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    for name in ours.__all__:
        if name != "ragged_page_attention":  # the name of older versions
            assert of(getattr(ours, name)) == of(getattr(theirs, name)), name


@pytest.mark.parametrize("name", CALLS)
def test_ejkernels_xla_function_gives_the_same(theirs, name):
    function = name.partition("__")[0]
    arguments, keywords, _ = CALLS[name](np.random.default_rng(1))
    arguments = arrays(arguments)
    platform = {"platform": "xla"} if "platform" in inspect.signature(getattr(theirs, function)).parameters else {}
    found = getattr(ours, function)(*arguments, **keywords)
    expected = getattr(theirs, function)(*arguments, **keywords, **platform)  # which may donate a cache
    rounded = function == "ragged_gated_delta_rule"  # whose chunks of prompts are computed in bfloat16
    close(found, expected, atol=1e-2 if rounded else 2e-4)


@pytest.mark.parametrize("function", ["flash_attention", "attention", "blocksparse_attention"])
def test_masks_of_ejkernel_mean_the_same(theirs, function):
    mask_info = pytest.importorskip("ejkernel.types.mask").MaskInfo
    rng = np.random.default_rng(2)
    q, k, v = (jnp.asarray(rng.standard_normal((1, 8, 2, 16)), jnp.float32) for _ in range(3))
    ids = jnp.array([[0, 0, 0, 1, 1, 1, -1, -1]])
    of_segments = mask_info.from_segments(ids, ids)
    dense = mask_info.from_attention_mask(jnp.asarray(rng.integers(0, 2, (1, 1, 8, 8)) | np.eye(8, dtype=int), bool))
    for mask in (of_segments, dense):
        keywords = {"causal": True, "mask_info": mask} | ({"dtype": jnp.float32} if function == "attention" else {})
        arrays = [x.swapaxes(1, 2) for x in (q, k, v)] if function[0] == "b" else [q, k, v]
        platform = {} if function == "attention" else {"platform": "xla"}
        pair = [
            getattr(ours, function)(*arrays, **keywords),
            getattr(theirs, function)(*arrays, **keywords, **platform),
        ]
        found, expected = (x[0] if isinstance(x, tuple) else x for x in pair)
        # Rows of padding see nothing: zeros here, the mean of all values in some of its functions.
        counted = (slice(None), slice(None), slice(6)) if function[0] == "b" else (slice(None), slice(6))
        close(found[counted], expected[counted])


@pytest.mark.parametrize("slots", [[2, 2, 0], [-1, 2, 0], [2, -1, 9]], ids=str)
def test_pools_of_another_dtype_keep_it_and_slots_of_no_token(slots):
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.standard_normal((5, 2, 8)), jnp.float32) for _ in range(3))
    beta, pool = jnp.full((5, 2), 0.5), jnp.asarray(rng.standard_normal((4, 2, 8, 8)), jnp.bfloat16)
    rest = (jnp.array([0, 3, 3, 5]), jnp.array(slots))
    out, after = ours.ragged_gated_delta_rule(q, k, v, beta, None, pool, *rest)
    want, states = ours.ragged_gated_delta_rule(q, k, v, beta, None, pool.astype(jnp.float32), *rest)
    np.testing.assert_array_equal(out, want)
    assert after.dtype == pool.dtype
    np.testing.assert_array_equal(after, states.astype(pool.dtype))
    np.testing.assert_array_equal(after[jnp.array([1, 3])], pool[jnp.array([1, 3])])
