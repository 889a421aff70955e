"""Training by our ops beside a recurrence that shares no code with them."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import train_linear
from train_linear_models import MODELS, recurrence
from training_runs import synthetic_tokens

import attn_tune


@pytest.mark.parametrize("op", MODELS.values())
def test_the_recurrence_of_the_benchmark_is_the_op(op):
    keys = jax.random.split(jax.random.key(0), 5)
    q, k, v = (jax.random.normal(key, (2, 8, n, 4)) for key, n in zip(keys, (1, 1, 2), strict=False))
    k = k / jnp.linalg.norm(k, axis=-1, keepdims=True)
    g = -jax.nn.softplus(jax.random.normal(keys[3], (2, 8, 2, 4)))
    beta = jax.nn.sigmoid(jax.random.normal(keys[4], (2, 8, 2)))
    operands = (q, k, v, g if op == "kda" else g[..., 0], beta)
    np.testing.assert_allclose(getattr(attn_tune, op)(*operands), recurrence(op, *operands), atol=1e-5)


@pytest.mark.exhaustive  # its calls are proven by tests/api, and examples train the same layers
def test_training_by_our_ops_is_within_rounding_of_the_recurrence(tmp_path):
    out = tmp_path / "out.json"
    words = ["--model", "kimi-linear", "--tiny", "--steps", "3", "--rounds", "1", "--out", str(out)]
    assert train_linear.main(words) == 0
    report = json.loads(out.read_text())
    assert [row["implementation"] for row in report["rows"]] == ["ours", "xla", "recurrence", "float32"]
    assert all(len(row["losses"]) == 3 and row["ms"] > 0 for row in report["rows"])
    # Their operations differ, so a difference of exactly nothing would mean that one had been compared with itself.
    assert 0 < report["rows"][0]["from recurrence"]["parameters"] < 0.2


def test_synthetic_tokens_repeat_and_follow_a_fixed_table():
    tokens = synthetic_tokens(1, 64, 2, 2, 400).reshape(4, 400)
    assert np.array_equal(tokens, synthetic_tokens(1, 64, 2, 2, 400).reshape(4, 400))
    assert np.mean(tokens[:, 16:] == tokens[:, :-16]) > 0.35
    pairs = np.stack([tokens[:, :-1].ravel(), tokens[:, 1:].ravel()], axis=1)
    _, counts = np.unique(pairs, axis=0, return_counts=True)
    # Of 4096 pairs the 256 likely ones.
    assert np.sort(counts)[-256:].sum() > 0.5 * counts.sum()
