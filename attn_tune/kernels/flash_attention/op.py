"""The op ``flash_attention``: exact attention in O(N) memory, forward and backward."""

from attn_tune.kernels.flash_attention.problem import (
    FIELDS,
    NAME,
    VERSION,
    Problem,
    bytes_moved,
    flops,
)
from attn_tune.kernels.spec import Op

_HERE = "attn_tune.kernels.flash_attention"

OP = Op(
    name=NAME,
    version=VERSION,
    directions=("fwd", "bwd"),
    fields=FIELDS,
    to_signature=lambda problem: problem.signature,
    from_signature=Problem.from_signature,
    flops=flops,
    bytes_moved=bytes_moved,
    inputs=f"{_HERE}.inputs:make_inputs",
    reference=f"{_HERE}.reference:reference",
    baseline=f"{_HERE}.reference:baseline",
    battery=f"{_HERE}.battery:battery",
    coarser="attn_tune.kernels.granularity:coarser",
    recognise=f"{_HERE}._recognise.find:find_problems",
    walk=f"{_HERE}.walk:WALK",
    untuned=f"{_HERE}.untuned:place",
    functions=(
        "attn_tune.api.flash_attention:flash_attention",
        "attn_tune.api.flash_attention:create_shard_map_wrapper",
    ),
    summary="exact attention in O(N) memory, forward and backward",
)
