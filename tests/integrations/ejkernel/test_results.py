"""Every function by ejkernel's name gives what numpy does, and beside its XLA kernels where it is installed."""

import inspect
import os

import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune.integrations.ejkernel as ours
from tests.integrations.ejkernel.calls import CALLS


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
    close(getattr(ours, name.partition("__")[0])(*arrays(arguments), **keywords), expected)


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
