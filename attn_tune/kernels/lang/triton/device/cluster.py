"""Device code of clusters: programs that run at once and wait for one another (Hopper and later)."""

import triton
import triton.language as tl


@triton.jit
def wait_for_cluster():
    """Waits until all programs of the cluster are here; what they stored before to global memory is seen after it.

    PTX: ``barrier.cluster`` releases at its arrival and acquires at its wait, at the scope of the cluster.
    """
    tl.inline_asm_elementwise(
        "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned; mov.u32 $0, 0;",
        "=r",
        [],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
