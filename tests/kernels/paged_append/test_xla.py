"""The XLA kernel against numpy, byte by byte, on samples that hold every feature."""

import functools

import jax
import numpy as np
import pytest

from attn_tune.kernels.paged_append.xla.config import Config
from attn_tune.kernels.paged_append.xla.kernel import forward
from attn_tune.ops.paged_append.features import samples
from attn_tune.ops.paged_append.inputs import make_inputs
from tests.chosen import chosen
from tests.kernels.paged_append.numpy_append import assert_right

NAMES = (
    "contiguous_at_edges",
    "paged_at_edges",
    "one_token_pages",
    "odd_pages",
    "ragged",
    "ragged_contiguous",
    "float32",
    "head_major",
    "head_first",
    "interleaved",
    "wider_values",
    "float8",
    "float8_head",
    "float8_token_interleaved",
    "float8_token_head_first",
    "int8_tensor",
    "int8_token",
    "everything",
)


def case(name):
    problem = samples()[name]
    return problem, make_inputs(problem, "fwd", 1)


@pytest.mark.parametrize(
    "name",
    chosen(
        NAMES,
        (
            *("contiguous_at_edges", "one_token_pages", "ragged_contiguous", "head_first", "wider_values"),
            *("float8_token_interleaved", "int8_tensor", "everything"),
        ),
    ),
)
def test_every_byte_is_right(name):
    problem, operands = case(name)
    assert_right(problem, operands, jax.jit(functools.partial(forward, problem, Config()))(operands))


@pytest.mark.parametrize("name", ["paged_at_edges", "float8_token", "interleaved"])
def test_a_donated_cache_is_not_copied(name):
    problem, operands = case(name)
    leaves, tree = jax.tree.flatten(operands)
    updated = [i for i, x in enumerate(leaves) if x is operands.k or x is operands.v]
    run = jax.jit(
        lambda *leaves: forward(problem, Config(), jax.tree.unflatten(tree, leaves)), donate_argnums=tuple(updated)
    )
    program = run.lower(*leaves).compile()
    assert program.memory_analysis().alias_size_in_bytes >= sum(leaves[i].nbytes for i in updated)
    buffer = operands.k.unsafe_buffer_pointer()
    assert program(*leaves)["k"].unsafe_buffer_pointer() == buffer


@pytest.mark.parametrize("name", ["k", "v"])
def test_the_comparison_sees_one_wrong_element(name):
    problem, operands = case("paged_at_edges")
    outputs = forward(problem, Config(), operands)
    wrong = np.array(outputs[name])
    wrong[-1, -1, -1, 0] *= -3
    with pytest.raises(AssertionError, match=f"{name}: 1 of"):
        assert_right(problem, operands, outputs | {name: wrong})
