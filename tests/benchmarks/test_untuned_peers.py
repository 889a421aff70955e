"""The shared parts of benchmarks of untuned configs: dry runs, changed configs, and errors of a peer as its result."""

import json
import os

import block_sparse_peers
import jax.numpy as jnp
import linear_attention_peers
import native_sparse_peers
import pytest
from untuned_peers import compiled_calls, configs_of, problem_of, timed


@pytest.mark.parametrize(
    ("benchmark", "point"),
    [
        (native_sparse_peers, "fwd 16k local"),
        (block_sparse_peers, "documents fwd 1x8k"),
        (linear_attention_peers, "head decode H32 32x1"),
    ],
)
def test_a_dry_run_says_the_configs_of_the_points_that_are_asked_for(benchmark, point, capsys, tmp_path):
    out = tmp_path / "rows.json"
    assert benchmark.main(["--dry", "--only", point, "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"{point}: untuned")
    assert [row["point"] for row in json.loads(out.read_text())["rows"]] == [point]


def test_a_change_of_a_part_leaves_the_other_part_untuned():
    problem = problem_of("block_sparse_attention", "b=1 t=8192 s=8192 n=32 k=8 h=128 v=128 dtype=bfloat16")
    changes = {"dq": ({"num_stages": 2},), "dkv": ({"block_k": 128, "num_warps": 8},)}
    found = configs_of("block_sparse_attention/triton", problem, "bwd", changes)
    assert list(found) == ["untuned", "dq num_stages=2", "dkv block_k=128 num_warps=8"]
    start, first, second = found.values()
    assert (first.dkv, second.dq) == (start.dkv, start.dq)
    assert (first.dq.num_stages, second.dkv.block_k) == (2, 128)


def fails(*_):
    raise ValueError("no such kernel")


class Odd(Exception):
    """An error that cannot be pickled, as those of compilers are."""

    def __init__(self, wanted, most):
        super().__init__(f"shared memory {wanted} of {most}")


def fails_oddly():
    raise Odd(2, 1)


def test_errors_of_peers_and_rivals_are_their_results():
    seen = {}
    ready = compiled_calls({"ours": (jnp.sum, jnp.ones(4)), "other": (fails, jnp.ones(4))}, seen.__setitem__)
    found = timed("a point", ready, 3, {"odd": fails_oddly, "rival": os.getpid, "absent": fails})
    assert float(seen["ours"]) == 4.0
    assert found["us"].keys() == {"ours", "rival"}
    assert found["us"]["ours"] > 0
    assert found["us"]["rival"] != os.getpid(), "torch's profiler would keep XLA's from all later points"
    assert found["timer"] == "host"
    assert found["cannot"].pop("odd") == "Odd: shared memory 2 of 1"
    assert found["cannot"] == dict.fromkeys(("other", "absent"), "ValueError: no such kernel")
