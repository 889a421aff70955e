"""The Triton kernels of sparse attention compiled for Hopper without a GPU: products, and copies of gathered keys."""

import pytest

from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.sparse_mla.problem import Problem
from tests.kernels.scripts import builds, built
from tests.kernels.sparse_mla.triton_builds import BUILDS, KEPT, SIZES
from tests.ops.cases import H200


def problem(q_len=1, **sizes):
    return Problem(q_len=q_len, kv_len=32768, head_dim=576, v_head_dim=512, num_selected=2048, **sizes)


def test_the_hopper_kernel_comes_first_where_heads_fill_its_rows():
    kernel = get_kernel("sparse_mla/triton_hopper")
    sizes = ((128, 128), (1, 128), (128, 16))
    order = [kernel.priority_for(problem(batch=b, num_q_heads=n), "fwd", H200) for b, n in sizes]
    beside = get_kernel("sparse_mla/triton").priority_for(problem(batch=1, num_q_heads=128), "fwd", H200)
    assert min(order[:2]) > beside > order[2]


def test_products_ahead_of_weights_are_tried_and_none_are_untuned():
    search = get_kernel("sparse_mla/triton_hopper").searches["fwd"]
    for p in (problem(q_len=4096, batch=1, num_q_heads=128), problem(batch=128, num_q_heads=128)):
        assert search.heuristic(p, H200).halves_ahead == 0
        assert {config.halves_ahead for config in search.candidates[""](p, H200)} == {0, 1, 2}


def test_the_untuned_tile_for_many_heads_fills_the_shared_memory_of_hopper():
    config = get_kernel("sparse_mla/triton").searches["fwd"].heuristic(problem(batch=128, num_q_heads=128), H200)
    assert (config.block_n, config.block_k, config.num_warps, config.num_stages) == (64, 64, 8, 2)


@pytest.mark.slow
@builds(KEPT, (*SIZES, *BUILDS))
def test_launches_of_sparse_attention_need_the_memory_counted_ahead_and_use_wgmma(names):
    launches = {launch.pop("name"): launch for launch in built("tests.kernels.sparse_mla.triton_builds", *names)}
    assert launches.keys() == set(names)
    sizes = {name: launch for name, launch in launches.items() if "counted" in launch}
    for name, size in sizes.items():
        assert 0.6 * size["counted"] < size["shared"] <= size["counted"], name
        del launches[name]
    assert launches.keys() == BUILDS.keys()
    for launch in launches.values():
        assert launch["wgmma"] > 0, launch
        assert launch["copies"] > 0, launch
    assert launches["indexer"]["spills"] == 0, launches
