"""The op ``attention``: dense attention that also returns its weights, for small problems and for looking inside."""

from attn_tune.kernels.attention.problem import (
    FIELDS,
    NAME,
    VERSION,
    Problem,
    bytes_moved,
    flops,
)
from attn_tune.kernels.spec import Op

_HERE = "attn_tune.kernels.attention"

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
    functions=("attn_tune.api.attention:attention",),
    summary="dense attention that also returns its weights",
)
