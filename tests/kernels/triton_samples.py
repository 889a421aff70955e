"""Small Triton kernels and how to call them, for the tests of the bridge. Not a test itself."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call


@triton.jit
def add_kernel(x, y, out, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = i < LENGTH
    tl.store(out + i, tl.load(x + i, mask=here) + tl.load(y + i, mask=here), mask=here)


@triton.jit
def matmul_kernel(
    a,
    b,
    bias,
    out,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    STRIDE_AM: tl.constexpr,
    STRIDE_BK: tl.constexpr,
    BLOCK_M: tl.constexpr = 32,
    BLOCK_N: tl.constexpr = 32,
    BLOCK_K: tl.constexpr = 32,
):
    i = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        left = tl.load(a + i[:, None] * STRIDE_AM + k[None, :], mask=(i < M)[:, None] & (k < K))
        right = tl.load(b + k[:, None] * STRIDE_BK + j[None, :], mask=(k < K)[:, None] & (j < N))
        total = tl.dot(left, right, total, input_precision="ieee")
    if bias is not None:
        total += tl.load(bias + j, mask=j < N)[None, :]
    here = (i < M)[:, None] & (j < N)
    tl.store(out + i[:, None] * N + j[None, :], total.to(out.dtype.element_ty), mask=here)


@triton.jit
def softmax_kernel(x, out, log_sum, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    logits = tl.load(x + row * COLUMNS + j, mask=j < COLUMNS, other=float("-inf")).to(tl.float32)
    most = tl.max(logits, axis=0)
    weights = tl.exp(logits - most)
    total = tl.sum(weights, axis=0)
    tl.store(out + row * COLUMNS + j, weights / total, mask=j < COLUMNS)
    tl.store(log_sum + row, most + tl.log(total))


@triton.jit
def mixed_bits(x):
    x ^= x >> 16
    x *= 0x7FEB352D
    x ^= x >> 15
    x *= 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def hash_kernel(x, out, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, mixed_bits(tl.load(x + i, mask=i < LENGTH)), mask=i < LENGTH)


@triton.jit
def square_kernel(x, out, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i, mask=i < LENGTH)
    tl.store(out + i, values * values - values, mask=i < LENGTH)


@triton.jit
def half_written_kernel(x, out, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < LENGTH), mask=i < LENGTH // 2)


@triton.jit
def overrunning_kernel(x, out, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < LENGTH), mask=i <= LENGTH)


@triton.jit
def in_place_kernel(x, out, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < LENGTH) + 1, mask=i < LENGTH)
    tl.store(out + i, tl.load(x + i, mask=i < LENGTH), mask=i < LENGTH)


@triton.jit
def descriptor_copy_kernel(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [ROWS, COLUMNS], [COLUMNS, 1], [BLOCK, COLUMNS])
    target = tl.make_tensor_descriptor(out, [ROWS, COLUMNS], [COLUMNS, 1], [BLOCK, COLUMNS])
    row = tl.program_id(0) * BLOCK
    target.store([row, 0], source.load([row, 0]))


def blocks(length: int, block: int) -> int:
    return -(-length // block)


def like(x: jax.Array, *shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape or x.shape, x.dtype)


def add(x, y, block=32, **options):
    (out,) = triton_call(
        add_kernel,
        x,
        y,
        out_types=[like(x)],
        grid=(blocks(x.size, block),),
        constexprs={"LENGTH": x.size, "BLOCK": block},
        **options,
    )
    return out


def matmul(a, b, bias=None, tile=(32, 32, 32), **options):
    (m, k), n = a.shape, b.shape[1]
    (out,) = triton_call(
        matmul_kernel,
        a,
        b,
        bias,
        out_types=[like(a, m, n)],
        grid=(blocks(m, tile[0]), blocks(n, tile[1])),
        constexprs={
            "M": m,
            "N": n,
            "K": k,
            "STRIDE_AM": k,
            "STRIDE_BK": n,
            **dict(zip(("BLOCK_M", "BLOCK_N", "BLOCK_K"), tile, strict=True)),
        },
        **options,
    )
    return out


def softmax(x):
    rows, columns = x.shape
    return triton_call(
        softmax_kernel,
        x,
        out_types=[
            jax.ShapeDtypeStruct(x.shape, jnp.float32),
            jax.ShapeDtypeStruct((rows,), jnp.float32),
        ],
        grid=(rows,),
        constexprs={"COLUMNS": columns, "BLOCK": triton.next_power_of_2(columns)},
    )


def elementwise(kernel, x, block=64):
    (out,) = triton_call(
        kernel,
        x,
        out_types=[like(x)],
        grid=(blocks(x.size, block),),
        constexprs={"LENGTH": x.size, "BLOCK": block},
    )
    return out


def descriptor_copy(x, block=32):
    (out,) = triton_call(
        descriptor_copy_kernel,
        x,
        out_types=[like(x)],
        grid=(blocks(x.shape[0], block),),
        constexprs={"ROWS": x.shape[0], "COLUMNS": x.shape[1], "BLOCK": block},
    )
    return out


@triton.jit
def specialised_matmul_kernel(
    a,
    b,
    out,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    row = tl.program_id(0) * BLOCK
    column = tl.program_id(1) * BLOCK
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BLOCK, BLOCK_K])
    right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BLOCK_K, BLOCK])
    target = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BLOCK, BLOCK])
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for k in tl.range(0, K, BLOCK_K, warp_specialize=True):
        total = tl.dot(left.load([row, k]), right.load([k, column]), total)
    target.store([row, column], total.to(out.dtype.element_ty))


def specialised_matmul(a, b, block=128, block_k=64):
    (m, k), n = a.shape, b.shape[1]
    (out,) = triton_call(
        specialised_matmul_kernel,
        a,
        b,
        out_types=[like(a, m, n)],
        grid=(blocks(m, block), blocks(n, block)),
        constexprs={"M": m, "N": n, "K": k, "BLOCK": block, "BLOCK_K": block_k},
        num_warps=4,
        num_stages=2,
    )
    return out


@triton.jit
def shifted_kernel(x, out, SHIFT: tl.constexpr):
    i = tl.arange(0, 32)
    tl.store(out + i, (i + SHIFT).to(tl.float32) + tl.load(x + i).to(tl.float32))


@triton.jit
def masked_kernel(x, mask, out, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = i < LENGTH
    kept = tl.load(mask + i, mask=here, other=False)
    tl.store(out + i, tl.where(kept, tl.load(x + i, mask=here), 0), mask=here)


def masked(x, mask, block=32):
    (out,) = triton_call(
        masked_kernel,
        x,
        mask,
        out_types=[like(x)],
        grid=(blocks(x.size, block),),
        constexprs={"LENGTH": x.size, "BLOCK": block},
    )
    return out


@dataclass(frozen=True)
class Affine:
    scale: float
    shift: int


@triton.jit
def affine_kernel(x, out, AFFINE: tl.constexpr):
    i = tl.arange(0, 32)
    tl.store(out + i, tl.load(x + i) * AFFINE.scale + AFFINE.shift)


def affine(x, scale, shift):
    (out,) = triton_call(
        affine_kernel,
        x,
        out_types=[like(x)],
        grid=(1,),
        constexprs={"AFFINE": Affine(scale, shift)},
    )
    return out


@triton.jit
def column_sums_kernel(x, sums, rows, ROWS: tl.constexpr, COLS: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, COLS)
    values = tl.load(x + row * COLS + cols)
    inside = cols < COLS
    tl.atomic_add(sums + cols, values, mask=inside, sem="relaxed")
    # Every second row only: the others show what this output held before.
    if row % 2 == 0:
        tl.store(rows + row * COLS + cols, values)


def column_sums(x):
    """The sums of the columns by atomics, and a copy whose odd rows are never written."""
    rows, cols = x.shape
    return triton_call(
        column_sums_kernel,
        x,
        out_types=[jax.ShapeDtypeStruct((cols,), x.dtype), jax.ShapeDtypeStruct(x.shape, x.dtype)],
        zeroed=(True, False),
        grid=(rows,),
        constexprs={"ROWS": rows, "COLS": cols},
        num_warps=1,
        name="column sums",
    )


@triton.jit
def append_kernel(new, position, absent, cache, updated, WIDTH: tl.constexpr):
    row = tl.load(position + tl.program_id(0))
    columns = tl.arange(0, WIDTH)
    tl.store(updated + row * WIDTH + columns, tl.load(new + tl.program_id(0) * WIDTH + columns))


def append(new, position, cache, *, aliases=None):
    """``cache`` with the rows at ``position`` replaced by those of ``new``, in place."""
    (updated,) = triton_call(
        append_kernel,
        new,
        position,
        None,
        cache,
        out_types=[like(cache)],
        grid=(new.shape[0],),
        constexprs={"WIDTH": cache.shape[1]},
        num_warps=1,
        input_output_aliases={3: 0} if aliases is None else aliases,
    )
    return updated
