"""The launch of tokamax's batched ragged paged attention for TPU, which reads a cache and never writes it.

The library's own launch adds new keys to the cache, so that the cache is one of its outputs: XLA copies one that a
caller keeps. It also sums in the dtype of the queries. Here the library's schedule and the body of its kernel have a
launch around them with two outputs, both in float32: what is attended, and its logsumexp.
"""

import contextlib
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int
from tokamax._src.ops.batched_rpa.kernel import bref_override as buffers, kernel as library, schedule as schedules

from attn_tune.kernels.lang.pallas_tpu.batched.chunks import chunks_of
from attn_tune.kernels.lang.pallas_tpu.batched.config import Config
from attn_tune.kernels.lang.pallas_tpu.batched.library import Settings, settings
from attn_tune.kernels.lang.pallas_tpu.batched.scalars import schedule as schedule_bytes, tables
from attn_tune.kernels.lang.pallas_tpu.cache_limits import check_tables
from attn_tune.kernels.lang.pallas_tpu.memory import KIB, LANES

_NAME = "batched_ragged_paged_attention"
# Of scalar arrays in HBM so many numbers are copied at a time.
_COPIED = 1024


def launch(
    config: Config,
    q: Float[Array, "tokens N H"],
    kv_pages: Float[Array, "pages P both H"],
    lengths: Int[Array, " B"],
    table: Int[Array, "B width"],
    ends: Int[Array, " ends"],
    k_scale: Float[Array, ""] | None,
    *,
    scale: float,
    window: int | None,
    soft_cap: float | None,
) -> tuple[Float[Array, "tokens N H"], Float[Array, "tokens N"]]:
    """The output and the natural lse, both in float32, of queries that see a key; all other rows are garbage.

    Args:
      lengths: of each sequence.
      table: pages that exist.
      k_scale: what codes of keys are multiplied by; None for a cache without codes.
      window: tokens that a query sees, its own included.

    Raises:
      UnsupportedError: the table does not fit scalar memory.
    """
    tokens, num_q_heads, width = q.shape
    _, page_size, both, _ = kv_pages.shape
    batch, pages = table.shape
    check_tables(tables(batch, pages) | schedule_bytes(config, page_size))
    heads = both // 2
    found = settings(
        config,
        num_q_heads=num_q_heads,
        num_kv_heads=heads,
        head_dim=width,
        page_size=page_size,
        batch=batch,
        width=pages,
        tokens=tokens,
        q_dtype=q.dtype,
        kv_dtype=kv_pages.dtype,
        scale=scale,
        window=window,
        soft_cap=soft_cap,
        chunks=chunks_of(config, batch, tokens, pages * page_size),
    )
    group, aligned = num_q_heads // heads, found.aligned_num_q_heads_per_kv_head
    packing = found.serve.packing_q
    # A key head's queries are whole words of rows.
    rows = jnp.pad(q.reshape(tokens, heads, group, width), ((0, 0), (0, 0), (0, aligned - group), (0, 0)))
    rows = rows.reshape(tokens, heads, aligned // packing, packing, width).swapaxes(0, 1)
    words = found.serve.packing_kv
    cache = kv_pages.reshape(*kv_pages.shape[:2], both // words, words, width)

    new = ends[1:] - ends[:-1]
    before, none = lengths - new, jnp.zeros_like(lengths)
    # All sequences are of the third kind.
    kinds = jnp.array([0, 0, batch], jnp.int32)
    schedule = schedules.generate_rpa_metadata(ends, before, lengths, none, kinds, cfgs=found)
    scalars = (ends, before, lengths, none, table.reshape(-1))
    if k_scale is not None:
        scalars += (k_scale.astype(jnp.float32)[None],)
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    run = pl.pallas_call(
        functools.partial(_kernel, found),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            in_specs=[schedule.in_specs(), hbm, hbm],
            out_specs=[hbm, hbm],
        ),
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=None if config.vmem_limit_kib is None else KIB * config.vmem_limit_kib,
            # Empty copies of a block may start behind an array.
            disable_bounds_checks=True,
        ),
        out_shape=[
            jax.ShapeDtypeStruct((heads, tokens, aligned, 1, columns), jnp.float32) for columns in (width, LANES)
        ],
        name=_NAME,
    )
    # The kernel leaves the precision of its products to the context. 16-bit operands are exact in one pass.
    is_full = q.dtype == jnp.float32
    with jax.default_matmul_precision("highest") if is_full else contextlib.nullcontext():
        out, lse = run(*scalars, schedule, rows, cache)
    out = out.reshape(heads, tokens, aligned, width)[:, :, :group]
    lse = lse.reshape(heads, tokens, aligned, LANES)[:, :, :group, 0]
    return out.swapaxes(0, 1).reshape(q.shape), lse.swapaxes(0, 1).reshape(tokens, num_q_heads)


def _kernel(found: Settings, *refs: Any) -> None:
    """Walks the schedule, as many steps at a time as scalar memory holds."""
    *scalars, schedule, q, cache, out, lse = refs
    ends, before, lengths, none, table, *k_scale = scalars
    inner = found.with_scale(k_scale[0][0]) if k_scale else found
    blocks = _blocks(found, q, cache, out, lse)
    sums = pltpu.VMEM(found.lm_scratch_shape, jnp.float32)

    def walk(blocks: tuple[Any, ...], steps: Any, semaphore: Any, largest: Any, total: Any, summed: Any) -> None:
        _clear(blocks, largest, total, summed)
        body = functools.partial(
            library.rpa_body,
            cu_q_lens_ref=ends,
            q_offsets_ref=before,
            kv_cache_lens_ref=lengths,
            kv_new_lens_ref=none,
            cfgs=inner,
        )
        specs = [block.spec for block in blocks]
        # No key is new. Copies of new ones are started all the same, of no length.
        new_keys = cache.reshape(-1, *cache.shape[2:])

        def some_steps(chunk: Any) -> None:
            count = jnp.minimum(schedule.actual_steps[0] - chunk * found.steps, found.steps)
            _fetch(schedule, steps, chunk * found.steps, count, semaphore, found)
            pltpu.emit_pipeline(body, grid=(count,), in_specs=specs[:2], out_specs=specs[2:])(
                (q, steps),
                (cache, new_keys, steps, table),
                (out, steps),
                (lse, steps),
                scratches=(steps, largest, total, summed),
                allocations=blocks,
            )

        pl.loop(0, pl.cdiv(schedule.actual_steps[0], found.steps))(some_steps)

    computer = schedules.BaseMetadataComputer
    pl.run_scoped(
        walk,
        blocks,
        computer.get_rpa_schedule(found).scratch_shapes(),
        pltpu.SemaphoreType.DMA((1,)),
        sums,
        sums,
        pltpu.VMEM(found.acc_scratch_shape, jnp.float32),
    )


def _blocks(found: Settings, q: Any, cache: Any, out: Any, lse: Any) -> tuple[Any, Any, Any, Any]:
    """The blocks that pass through VMEM: of queries, keys, outputs and their logsumexp."""

    def spec(shape: tuple[int, ...], count: int, *, ahead: bool) -> pl.BlockSpec:
        mode = pl.Buffered(buffer_count=count, use_lookahead=ahead)
        return pl.BlockSpec(shape, lambda step: (step,), memory_space=pltpu.VMEM, pipeline_mode=mode)

    deep = {"buffer_count": found.n_buffer, "use_lookahead": True, "cfgs": found}
    double = {"buffer_count": 2, "use_lookahead": False, "cfgs": found}
    q_spec, kv_spec = (spec(shape, found.n_buffer, ahead=True) for shape in (found.q_vmem_shape, found.kv_vmem_shape))
    # Each head of a float32 output is a row of its own, of any width.
    rows = (found.batch_size, *out.shape[:1], found.bq_sz, *out.shape[2:4])
    out_spec, lse_spec = (spec((*rows, ref.shape[-1]), 2, ahead=False) for ref in (out, lse))
    return (
        buffers.BatchingQRef.input(spec=q_spec, dtype_or_type=q, **deep),
        buffers.KVBufferedRefHeadAlongSublane.input_output(spec=kv_spec, dtype_or_type=cache, **deep),
        buffers.BatchingORef.output(spec=out_spec, dtype_or_type=out, **double),
        buffers.BatchingLSERef.output(spec=lse_spec, dtype_or_type=lse, **double),
    )


def _clear(blocks: tuple[Any, ...], largest: Any, total: Any, summed: Any) -> None:
    """Sets the sums to nothing, and to zero what a block that is not full leaves in VMEM: a NaN there would spread."""
    largest[...] = jnp.full_like(largest, -jnp.inf)
    for block in blocks[:2]:
        words = block.window_ref.bitcast(jnp.uint32).reshape(-1, LANES)
        words[...] = jnp.zeros_like(words)
    for sums in (total, summed):
        sums[...] = jnp.zeros_like(sums)


def _fetch(schedule: Any, steps: Any, first: Any, count: Any, semaphore: Any, found: Settings) -> None:
    """Copies the schedule of ``count`` steps to scalar memory."""
    copies = []
    for source, target in zip(jax.tree.leaves(schedule), jax.tree.leaves(steps), strict=True):
        if target.shape == (1,):
            continue
        size = target.shape[0] // found.steps
        length = jnp.minimum((size * count + _COPIED - 1) // _COPIED * _COPIED, target.shape[0])
        begin = pl.multiple_of(size * first, LANES)
        copy = pltpu.make_async_copy(source.at[pl.ds(begin, length)], target.at[pl.ds(0, length)], semaphore.at[0])
        copy.start()
        copies.append(copy)
    for copy in copies:
        copy.wait()
