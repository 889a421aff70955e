"""The scripts in ``examples/`` run, each in a process of its own, as their first lines say."""

import re
from pathlib import Path

import pytest

from tests.several_devices import run_with_devices

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
pytestmark = pytest.mark.slow


def run(name, *words):
    return run_with_devices(8, str(EXAMPLES / f"{name}.py"), *map(str, words))


def test_call_attention_prints_gradients_and_the_lookup():
    out = run("call_attention")
    assert "gradients [(2, 256, 8, 64), (2, 256, 2, 64), (2, 256, 2, 64)]" in out
    assert "xla" in out


@pytest.mark.exhaustive  # its steps are those of the tutorial
def test_a_swept_pack_answers_and_its_database_can_be_asked(tmp_path):
    out = run("tune_and_use", tmp_path)
    assert "out (2, 128, 4, 32)" in out
    assert "my-pack" in out
    out = run("ask_database", tmp_path / "lab.db")
    assert "'status': 'ok'" in out
    assert "'kernel': 'xla'" in out or "flash_attention/xla" in out


def test_flax_block_trains():
    assert "parameters with gradients" in run("flax_block")


def test_sharded_attention_gathers_nothing():
    out = run("sharded")
    assert "out is sharded as the query: True" in out
    assert "all-gathers in the program: 0" in out


@pytest.mark.exhaustive  # the call is proven by tests/api/test_ring_attention.py
def test_a_layer_over_a_ring_has_the_loss_and_the_gradients_of_one_device():
    out = run("ring_attention")
    assert "loss and gradients are those of one device: True" in out
    assert "all-gathers in the program: 0" in out
    assert "lower after a step: True" in out


@pytest.mark.exhaustive  # the calls are proven by tests/api
def test_a_model_decodes_the_same_tokens_with_a_cache_on_one_device_and_on_eight():
    out = run("decode_model")
    assert "with a cache they are the same: True" in out
    assert "with heads on 8 devices too: True" in out
    assert "all-gathers in a step: 0" in out
    assert "the cache is updated in place: True" in out
    written, held = re.search(r"in place: (\d+) of a cache of (\d+)", out).groups()
    assert written == held


@pytest.mark.exhaustive  # the calls are proven by tests/api
def test_linear_layers_learn_and_decode_what_they_compute_at_once():
    for out in (run("gated_delta_layer"), run("kimi_delta_layer")):
        assert "lower: True" in out
        assert "a prompt and steps of one token give the same: True" in out


def test_every_example_is_run_here():
    here = Path(__file__).read_text()
    assert all(f'run("{path.stem}"' in here for path in EXAMPLES.glob("*.py"))


def test_sparse_attention_equals_dense_attention_while_there_are_few_tokens():
    assert "see the same tokens: True" in run("sparse_attention")
