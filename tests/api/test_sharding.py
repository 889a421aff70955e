"""Sharded calls on eight virtual CPU devices, in a process of their own: the device count is fixed at start."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("sharded_program.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def results():
    flags = "--xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=false"
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {flags}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["everything", "one_kv_head_and_folded_axes"])
def test_a_sharded_call_equals_a_whole_one_with_gradients_and_dropout(results, name):
    assert results[name] < 5e-5


def test_shards_are_looked_up_by_their_own_shapes(results):
    assert results["local"] == [[1, 2, 1, "1nts"]]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("length", "UnsupportedError: query is sharded along its length"),
        ("head_dim", "UnsupportedError: query is sharded along its head dim"),
        ("kv_heads", "UnsupportedError: query heads are sharded along 'model'"),
        ("mesh_axis", "UsageError: mesh has no axis 'nowhere'"),
        ("divide", "UsageError: key/value heads (2) cannot be split 4 ways"),
        ("out", "UsageError: out_specs must be that of the operands"),
    ],
)
def test_specs_that_cannot_work_are_refused_in_words(results, name, words):
    assert results[name].startswith(words)
