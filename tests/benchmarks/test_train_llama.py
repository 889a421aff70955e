"""Training steps with our attention beside that of JAX."""

import functools
import json

import jax
import jax.numpy as jnp
import pytest
import train_llama


@pytest.fixture
def sizes():
    return train_llama.Sizes(2, 16, 32, 32, 2, 1, 8)


def gradient(sizes, attend, remat):
    function = jax.value_and_grad(functools.partial(train_llama.loss, attend, sizes, remat))
    return function, (
        jax.eval_shape(lambda: train_llama.initial(sizes)).params,
        jax.ShapeDtypeStruct((1, 9), jnp.int32),
    )


@pytest.mark.exhaustive  # the step of the test below, run
def test_steps_with_our_attention_are_equal_within_rounding_and_timed_in_pairs(tmp_path):
    out = tmp_path / "out.json"
    assert (
        train_llama.main(["--tiny", "--attention", "auto", "fa4", "--steps", "2", "--rounds", "2", "--out", str(out)])
        == 0
    )
    rows = {row["attention"]: row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == ["cudnn", "auto", "none", "fa4"]
    assert rows["cudnn"]["ratio"] == 1
    assert rows["auto"]["interval"][0] <= rows["auto"]["ratio"] <= rows["auto"]["interval"][1]
    assert 0 < rows["auto"]["rounding_gap"] < 0.01
    assert "cannot" in rows["fa4"]


@pytest.mark.parametrize("remat", ["kept", "named"])
def test_the_backward_of_a_step_runs_our_forward_no_second_time(sizes, remat):
    function, args = gradient(sizes, functools.partial(train_llama.ours, "auto"), remat)
    text = str(jax.make_jaxpr(function)(*args))
    named = text.count("name=flash_attention_out")
    assert named == 1, named
