"""Ragged attention over latents in Triton: each tile of keys is read once and serves both products."""

from attn_tune.kernels.ragged_paged.triton_latent import space
from attn_tune.kernels.ragged_paged.triton_latent.config import Config
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.direction import WHOLE

SPEC = KernelSpec(
    op="ragged_paged",
    name="triton_latent",
    backend="triton",
    searches={
        "fwd": Search(
            config=Config,
            heuristic=space.heuristic,
            candidates={WHOLE: space.candidates},
            infeasible=space.infeasible,
            adapt=space.adapt,
            call=f"{__name__}.forward:forward",
            # Larger tiles take more shared memory and more registers, more stages more shared memory.
            grows=("block_q", "block_k", "num_stages", "decode_block_k"),
        ),
    },
    unsupported=space.unsupported,
    priority={"cuda": 10},
    requires=("triton",),
    extra="cuda",
    summary="ragged attention over latents in Triton: one tile of keys for both products, rows of several queries",
)
