"""Device code in Gluon that depends on no op: a hash, approximate instructions, a queue of tiles, scalars, layouts."""

# Device code is typed by Triton: a pointer is a tensor and a constexpr is its value.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# A warpgroup of Hopper.
_WARPS = 4


@gluon.jit
def mix(x):
    """A 32-bit integer hash with low bias ("lowbias32" of Chris Wellons' hash-prospector)."""
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    x ^= x >> 16
    return x


@gluon.jit
def approximate(INSTRUCTION: gl.constexpr, x):
    """One instruction of the special function unit: PTX ISA, section "Floating Point Instructions"."""
    return gl.inline_asm_elementwise(INSTRUCTION + " $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def next_place(counter):
    """The next number of a queue. Nothing else is ordered by it."""
    return gl.atomic_add(counter, 1, sem="relaxed")


def product_layout(columns: int) -> gl.NVMMADistributedLayout:
    """The layout of 64 rows and ``columns`` columns that a warpgroup multiplies."""
    return gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[_WARPS, 1], instr_shape=[16, columns, 16])


@gluon.constexpr_function
def vector_layout(warps):
    """The layout of a vector with one element a thread; of a single number too."""
    return gl.BlockedLayout([1], [32], [warps], [0])


@gluon.jit
def store_scalar(place, value):
    """Writes one int32 to shared memory, by one warp."""
    place.store(gl.full([1], value, gl.int32, vector_layout(1)))


@gluon.jit
def load_scalar(place, WARPS: gl.constexpr):
    """Reads one number from shared memory into all threads of ``WARPS`` warps."""
    return gl.max(place.load(vector_layout(WARPS)), 0)
