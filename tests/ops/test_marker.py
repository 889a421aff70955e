"""The name of a launch: it says the signature, survives printers, and costs neither numbers nor traces."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import pytest

import attn_tune
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.marker import Mark, cut_name, find_mark, mark_name, marked
from attn_tune.tuner.plan.grid import ALL, load_grid

TEXTS = sorted(p.signature.text for p in load_grid(ALL, lengths=("all",)).points)
ODD = "attention/v1 b=1 t=1 s=1 n=1 k=1 h=1 v=1 dtype=bfloat16 mask=b1ts bias=11ts softmax=float16"


@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_every_signature_comes_back(direction):
    for text in (*TEXTS, ODD):
        name = mark_name(text, direction)
        for printed in (name, f"@{name}_12(", f"%{name}.3", f"jit(step)/jit({name})/add"):
            assert find_mark(printed) == Mark(text, direction)


@pytest.mark.parametrize("text", ["", "attn_tune", "attn_tune.flash_attention.v1.fwd.b_1", "jit(f)"])
def test_names_without_a_marker_give_none(text):
    assert find_mark(text) is None


def test_of_nested_names_the_innermost_counts_and_a_cut_call_says_so():
    whole, shard = cut_name(TEXTS[0], "fwd", "0123abcd"), mark_name(ODD, "bwd")
    assert find_mark(f"jit(step)/jit({whole})/add") == Mark(TEXTS[0], "fwd", is_cut=True)
    assert find_mark(f"jit(step)/jit({whole})/jit({shard})/add") == Mark(ODD, "bwd")


@dataclass(frozen=True)
class Unhashable:
    knobs: list = field(default_factory=list)


def test_equal_launches_are_one_and_an_unhashable_config_still_runs():
    def call(problem, config, inputs):
        return {"out": inputs + 1}

    assert marked(call, 1, 2, ODD, "fwd") is marked(call, 1, 2, ODD, "fwd")
    launch = marked(call, 1, Unhashable(), ODD, "fwd")
    assert launch(jnp.ones(()))["out"] == 2


def test_a_changed_config_is_another_launch_in_the_same_process():
    problem = Problem(
        batch=1, q_len=32, kv_len=32, num_q_heads=1, num_kv_heads=1, head_dim=16, v_head_dim=16, dtype="float32"
    )  # fmt: skip
    q = jax.random.normal(jax.random.key(0), (1, 32, 1, 16))
    outs = []
    for chunk in (16, 32):
        cfg = {"fwd": {"chunk_q": chunk, "chunk_k": chunk}}
        run = jax.jit(lambda x, cfg=cfg: attn_tune.flash_attention(x, x, x, platform="xla", cfg=cfg))
        text = run.lower(q).as_text()
        assert text.count(f"func private @{mark_name(problem.signature.text, 'fwd')}(") == 1
        outs.append((text, run(q)))
    assert outs[0][0] != outs[1][0]
    assert jnp.allclose(outs[0][1], outs[1][1], atol=1e-5)
