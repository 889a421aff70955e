"""Decoding over JAX's paged attention for TPU: whole pages there, the tokens at the edges in XLA, joined by the lse."""

import inspect

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention
from jaxtyping import Array, Float

from attn_tune.kernels.lang.cache import attend_to, merged
from attn_tune.kernels.lang.pallas_tpu.cache_limits import check_tables
from attn_tune.kernels.lang.pallas_tpu.launch_results import launch_results
from attn_tune.kernels.lang.pallas_tpu.rewrite import rewritten
from attn_tune.kernels.paged_decode.pallas_tpu_paged.config import Config
from attn_tune.kernels.paged_decode.pallas_tpu_paged.limits import tables
from attn_tune.kernels.paged_decode.pallas_tpu_paged.pages import Pages, pages_of
from attn_tune.ops.fields.cache import sizes_of
from attn_tune.ops.paged_decode.operands import Operands
from attn_tune.ops.paged_decode.problem import Problem


def forward(problem: Problem, config: Config, operands: Operands) -> dict[str, Array]:
    """``out`` [B, T, N, V] in q's dtype and ``lse`` [B, T, N] in float32.

    Raises:
      UnsupportedError: the page table does not fit scalar memory.
    """
    p, o = problem, operands
    assert o.page_table is not None
    batch, q_len = o.q.shape[:2]
    sizes = sizes_of(p.layout, o.k.shape)
    lengths = jnp.clip(o.kv_lens, 0, sizes["slot"] * o.page_table.shape[1])
    pages = pages_of(
        o.page_table,
        lengths,
        q_len=q_len,
        page_size=sizes["slot"],
        window=p.window,
        num_pages=sizes["page"],
        multiple=config.pages_per_compute_block,
    )
    check_tables(tables(*pages.table.shape))
    position = lengths[:, None] - q_len + jnp.arange(q_len)
    # The sinks belong to the edges, which every row has.
    edges = attend_to(p, o, o.q, jnp.arange(batch), position, pages.token, pages.is_edge)
    out, lse = merged(edges, _whole_pages(p, config, o, pages, sizes["head"]))
    return {"out": out.astype(o.q.dtype), "lse": lse}


def _whole_pages(
    p: Problem, config: Config, o: Operands, pages: Pages, kv_heads: int
) -> tuple[Float[Array, "B T N V"], Float[Array, "B T N"]]:
    """The output and the lse over whole pages, in float32. All queries of a sequence see these: they are one group."""
    assert o.v is not None
    batch, q_len, heads, width = o.q.shape
    group = heads // kv_heads
    q = o.q.astype(jnp.float32).reshape(batch, q_len, kv_heads, group, width)
    if o.k_scale is not None:
        q *= o.k_scale if p.kv_scale == "tensor" else o.k_scale[:, None, None]
    q = q.swapaxes(1, 2).reshape(batch, -1, width)
    slots = o.k.shape[2]

    def launch(q: Array, k: Array, v: Array, lengths: Array, table: Array) -> Array:
        # In float32, in which it accumulates the output then. Without its own jit, so that its launch is seen.
        return inspect.unwrap(paged_attention)(
            q,
            k,
            v,
            lengths,
            table,
            attn_logits_soft_cap=p.soft_cap,
            pages_per_compute_block=config.pages_per_compute_block,
            megacore_mode=config.megacore_mode,
            inline_seq_dim=config.inline_seq_dim,
        )

    run = rewritten(launch, vmem_limit_kib=config.vmem_limit_kib, logits_scale=p.scale)
    out, largest, total = launch_results(run)(q, o.k, o.v, pages.counts * slots, pages.table)

    def unfolded(x: Array) -> Array:
        x = x.reshape(batch, kv_heads, q_len, group, -1)
        return x.swapaxes(1, 2).reshape(batch, q_len, heads, -1)

    # A sequence without a block may have no output.
    seen = (pages.counts > 0)[:, None, None, None]
    out = jnp.where(seen, unfolded(out), 0.0)
    lse = jnp.where(seen, unfolded(largest) + jnp.log(unfolded(total)), -jnp.inf)[..., 0]
    if o.v_scale is not None:
        scale = o.v_scale if p.kv_scale == "tensor" else jnp.repeat(o.v_scale, group)[:, None]
        out *= scale
    return out, lse
