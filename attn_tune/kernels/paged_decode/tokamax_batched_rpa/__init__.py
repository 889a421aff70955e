"""Decoding over tokamax's batched ragged paged attention for TPU, which takes some sequences at a time."""

from attn_tune.kernels.lang.libraries.tokamax import EXTRA, LIBRARY
from attn_tune.kernels.lang.pallas_tpu.batched.limits import unsupported
from attn_tune.kernels.lang.pallas_tpu.batched.search import search
from attn_tune.kernels.spec import KernelSpec

SPEC = KernelSpec(
    op="paged_decode",
    name="tokamax_batched_rpa",
    backend="pallas_tpu",
    searches={"fwd": search(f"{__name__}.forward:forward", lambda problem: problem.q_len, cuts_queries=False)},
    unsupported=unsupported,
    # Below JAX's own: it runs where a sweep has chosen it.
    requires=(LIBRARY,),
    extra=EXTRA,
    libraries=(LIBRARY,),
    summary="tokamax's batched ragged paged attention for TPU v5 and later: an interleaved cache (extra tokamax)",
)
