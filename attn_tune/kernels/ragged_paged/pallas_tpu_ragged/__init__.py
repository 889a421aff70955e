"""Ragged attention over a cache in JAX's ragged paged attention for TPU."""

from attn_tune.kernels.lang.pallas_tpu.ragged.limits import unsupported
from attn_tune.kernels.lang.pallas_tpu.ragged.search import search
from attn_tune.kernels.spec import KernelSpec

SPEC = KernelSpec(
    op="ragged_paged",
    name="pallas_tpu_ragged",
    backend="pallas_tpu",
    searches={"fwd": search(f"{__name__}.forward:forward", lambda problem: problem.tokens)},
    unsupported=unsupported,
    priority={"tpu": 10},
    summary="JAX's ragged paged attention for TPU: an interleaved cache, 16-bit, float32, float8 or int8",
)
