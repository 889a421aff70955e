"""``Search.grows`` of every kernel names knobs of its candidates; otherwise dominance would rule nothing out."""

import dataclasses

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.registry import kernels
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.paged_decode.problem import Problem as Decoding
from attn_tune.ops.ragged_paged.problem import Problem as Ragged
from attn_tune.ops.recurrent.problem import RecurrentProblem
from attn_tune.ops.registry import get_op
from attn_tune.schema.config import config_to_dict

PROBLEM = Problem(
    batch=4, q_len=4096, kv_len=4096, num_q_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128,
    causal=True,
)  # fmt: skip
LAYOUTS = {"pallas_tpu_paged": "head_first", "pallas_tpu_ragged": "interleaved", "tokamax_batched_rpa": "interleaved"}
DEVICES = dict.fromkeys(("triton", "cute", "mosaic_gpu", "xla"), "nvidia-h200") | {"pallas_tpu": "tpu-v6e"}
SPARSE = {
    "sparse_mla": "sparse_mla/v1 b=1 t=4096 s=4096 n=128 h=128 v=64 top=2048 dtype=bfloat16",
    "indexer": "indexer/v1 b=1 t=4096 s=4096 n=64 h=128 dtype=bfloat16",
    "native_sparse_attention": "native_sparse_attention/v1 b=1 t=4096 s=4096 n=64 k=4 h=128 v=128 top=16 block=128"
    " dtype=bfloat16",
}
SEARCHES = [
    (spec.id, direction, spec, search)
    for spec in kernels().values()
    for direction, search in spec.searches.items()
    if search.grows
]


def problem_of(spec):
    if spec.op == "flash_attention":
        return PROBLEM
    op = get_op(spec.op)
    if spec.op in SPARSE:
        return op.from_signature(op.parse_signature(SPARSE[spec.op]))
    make = op.problem
    if issubclass(make, Problem):
        fields = {field.name: getattr(PROBLEM, field.name) for field in dataclasses.fields(PROBLEM)}
        return make(**fields, mask_block_q=512, mask_block_k=512)
    if issubclass(make, RecurrentProblem):
        return make(batch=1, length=4096, num_value_heads=16, num_key_heads=8, head_dim=128, v_head_dim=128)
    sizes = {"batch": 32, "kv_len": 4096, "num_q_heads": 32, "num_kv_heads": 8, "head_dim": 128, "v_head_dim": 128}
    sizes |= {"page_size": 64, "layout": LAYOUTS.get(spec.name, "nhd")}
    return Decoding(q_len=8, **sizes) if spec.op == "paged_decode" else Ragged(tokens=2048, workload="mix", **sizes)


@pytest.mark.parametrize(
    ("spec", "search"),
    [entry[2:] for entry in SEARCHES],
    ids=[" ".join(entry[:2]) for entry in SEARCHES],
)
def test_knobs_that_grow_are_knobs_of_every_part(spec, search):
    device = device_from_kind(DEVICES[spec.backend])
    tried = {name: set() for name in search.grows}
    for make in search.candidates.values():
        configs = [config_to_dict(config) for config in make(problem_of(spec), device)]
        assert configs
        assert all(set(search.grows) <= config.keys() for config in configs)
        for name in search.grows:
            tried[name] |= {config[name] for config in configs}
    # Each of them is really searched, if only in one of the parts.
    assert all(len(values) > 1 for values in tried.values())


def test_every_kernel_with_tiles_says_what_grows():
    named = {entry[0] for entry in SEARCHES}
    assert {f"flash_attention/{name}" for name in ("triton", "xla")} <= named
    assert {spec.id for spec in kernels().values() if spec.backend == "pallas_tpu"} <= named
