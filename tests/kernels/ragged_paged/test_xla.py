"""The XLA kernel against numpy on samples of every feature, with tiles and steps that cut sequences anywhere."""

import functools

import jax
import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.ragged_paged.xla.config import Config
from attn_tune.kernels.ragged_paged.xla.kernel import forward
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.ragged_paged.features import samples
from attn_tune.ops.ragged_paged.inputs import make_inputs
from tests.chosen import chosen
from tests.kernels.ragged_paged.dense_numpy import assert_right

NAMES = (
    "contiguous_ragged",
    "paged_at_edges",
    "odd_pages",
    "float32",
    "head_major",
    "head_first",
    "interleaved",
    "window_queries",
    "sinks_window_queries",
    "float8_head",
    "float8_token_interleaved",
    "int8_token",
    "prompts",
    "decodes",
    "mixed",
    "not_causal",
    "not_causal_contiguous",
    "not_causal_mixed",
    "everything",
    "latent_mixed",
    "latent_blocks",
    "latent_everything",
)


@pytest.mark.parametrize(
    "name",
    chosen(
        NAMES,
        (
            *("contiguous_ragged", "head_first", "sinks_window_queries", "float8_token_interleaved", "int8_token"),
            *("prompts", "not_causal_mixed", "everything", "latent_blocks"),
        ),
    ),
)
def test_rows_are_right(name):
    problem = samples()[name]
    operands = make_inputs(problem, "fwd", 1)
    assert_right(
        problem, operands, jax.jit(functools.partial(forward, problem, Config(block_q=8, tiles=4, step=32)))(operands)
    )


def test_its_untuned_choice_is_a_candidate_without_repetition():
    (search,) = get_kernel("ragged_paged/xla").searches.values()
    (candidates,) = search.candidates.values()
    problem, device = samples()["paged"], device_from_kind("cpu")
    found = list(candidates(problem, device))
    assert found[0] == search.heuristic(problem, device)
    assert len(set(found)) == len(found)
