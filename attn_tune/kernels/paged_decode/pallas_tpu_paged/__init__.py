"""Decoding over JAX's paged attention for TPU: whole pages in Pallas, the tokens at the edges in XLA."""

from attn_tune.kernels.paged_decode.pallas_tpu_paged import space
from attn_tune.kernels.paged_decode.pallas_tpu_paged.config import Config
from attn_tune.kernels.paged_decode.pallas_tpu_paged.limits import infeasible, unsupported
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="paged_decode",
    name="pallas_tpu_paged",
    backend="pallas_tpu",
    searches={
        "fwd": Search(
            config=Config,
            heuristic=space.heuristic,
            candidates={WHOLE: space.candidates},
            infeasible=infeasible,
            adapt=space.adapt,
            call=f"{__name__}.forward:forward",
            # Larger blocks take more VMEM.
            grows=("pages_per_compute_block",),
        ),
    },
    unsupported=unsupported,
    priority={"tpu": 10},
    summary="JAX's paged attention for TPU: whole pages of a head_first cache, edges in XLA",
)
