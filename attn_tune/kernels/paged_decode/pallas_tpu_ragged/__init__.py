"""Decoding over JAX's ragged paged attention for TPU, which reads keys and values from one array."""

from attn_tune.kernels.lang.pallas_tpu.ragged.limits import unsupported
from attn_tune.kernels.lang.pallas_tpu.ragged.search import search
from attn_tune.kernels.spec import KernelSpec

SPEC = KernelSpec(
    op="paged_decode",
    name="pallas_tpu_ragged",
    backend="pallas_tpu",
    searches={"fwd": search(f"{__name__}.forward:forward", lambda problem: problem.batch * problem.q_len)},
    unsupported=unsupported,
    priority={"tpu": 10},
    summary="JAX's ragged paged attention for TPU: an interleaved cache, 16-bit, float32, float8 or int8",
)
