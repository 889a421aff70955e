"""Copies by descriptor, views of shared memory and barriers, which Triton 3.6 to 3.9 call by different names."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

_HAS_VIEWS = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))
# The names on the right are those of Triton 3.6. In functions that are not taken the compiler looks for names too.
_start_copy = getattr(tma, "async_load", tma.async_copy_global_to_shared)
_start_store = getattr(tma, "async_store", tma.async_copy_shared_to_global)
_synchronize = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@gluon.jit
def start_copy(descriptor, place, barrier, destination):
    """Starts the copy of one block to shared memory; ``barrier`` counts its bytes."""
    _start_copy(descriptor, place, barrier, destination)


@gluon.jit
def start_store(descriptor, place, source):
    """Starts the copy of one block from shared memory."""
    _start_store(descriptor, place, source)


@gluon.jit
def viewed(memory, shape: gl.constexpr, layout: gl.constexpr):
    """The same bytes of shared memory in another shape and layout."""
    return viewed_as(memory, memory.dtype, shape, layout)


@gluon.jit
def viewed_as(memory, dtype: gl.constexpr, shape: gl.constexpr, layout: gl.constexpr):
    """The same bytes of shared memory in another dtype, shape and layout."""
    view = memory.reinterpret(dtype, shape, layout) if _HAS_VIEWS else memory._reinterpret(dtype, shape, layout)
    return view


@gluon.jit
def new_barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """``COUNT`` barriers in shared memory, each of which ``ARRIVALS`` arrivals complete."""
    barriers = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(barriers.index(i), count=ARRIVALS)
    return barriers


@gluon.jit
def synchronize():
    """A barrier of the warps of one partition."""
    _synchronize()
