"""The launches of FlashAttention-4 on Hopper as functions of the CuTe DSL: each is compiled into one custom call.

The classes are those of ``fa4_jax.cute``, which are FlashAttention's own with repairs. Problem and config are constants
of a launch.
"""

from typing import Any

import cutlass
from cutlass import cute
from fa4_jax.cute.block_sparsity import BlockSparseTensors
from fa4_jax.cute.flash_bwd_postprocess import FlashAttentionBackwardPostprocess
from fa4_jax.cute.flash_bwd_preprocess import FlashAttentionBackwardPreprocess
from fa4_jax.cute.flash_bwd_sm90 import FlashAttentionBackwardSm90
from fa4_jax.cute.flash_fwd_sm90 import FlashAttentionForwardSm90
from fa4_jax.cute.utils import AuxData

from attn_tune.kernels.flash_attention._fa4.config import WARPGROUP_ROWS, BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention._fa4.soft_cap import cap_of, scale_of, slope_of
from attn_tune.kernels.flash_attention._fa4.visibility import edges, mask_of
from attn_tune.ops.flash_attention.problem import Problem

ARCHITECTURE = "sm_90a"
_CAPABILITY, _THREADS = 90, 128
_DTYPES = {"bfloat16": cutlass.BFloat16, "float16": cutlass.Float16}


@cute.jit
def forward(
    stream: Any,
    q: Any,
    k: Any,
    v: Any,
    sinks: Any,
    offsets: Any,
    marks: Any,
    lists: Any,
    out: Any,
    lse: Any,
    *,
    problem: cutlass.Constexpr,
    config: cutlass.Constexpr,
) -> None:
    """``out`` [B, T, N, V] and ``lse``, a tuple of [B, N, T] in float32 or empty; ``sinks`` likewise.

    ``offsets`` are those of ``sequences.py``, or empty: with them arrays have no batch. ``lists`` are those of
    ``tiles.py``, or empty.
    """
    edge = edges(problem)
    q_offsets, kv_offsets = of_sides(offsets)
    forward_kernel(problem, config)(
        q,
        k,
        v,
        out,
        only(lse),
        cutlass.Float32(scale_of(problem)),
        mCuSeqlensQ=q_offsets,
        mCuSeqlensK=kv_offsets,
        window_size_left=int32(edge.left),
        window_size_right=int32(edge.right),
        learnable_sink=only(sinks),
        aux_data=aux(marks),
        blocksparse_tensors=for_heads(lists, problem.num_q_heads),
        stream=stream,
    )


@cute.jit
def backward(
    stream: Any,
    q: Any,
    k: Any,
    v: Any,
    dout: Any,
    out: Any,
    lse: Any,
    dlse: Any,
    sums: Any,
    offsets: Any,
    marks: Any,
    lists: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    delta: Any,
    lse_log2: Any,
    dq_sum: Any,
    *,
    problem: cutlass.Constexpr,
    config: cutlass.Constexpr,
    deterministic: cutlass.Constexpr,
) -> None:
    """Gradients in three to five launches.

    The first makes ``delta``, ``lse_log2`` and a zero ``dq_sum``; the second the sums of gradients in float32; the
    others gradients of them. ``sums`` are arrays of zeros: those of dk and dv where heads are grouped, then the
    counters of a deterministic order.
    """
    edge = edges(problem)
    q_offsets, kv_offsets = of_sides(offsets)
    scale = cutlass.Float32(scale_of(problem))
    first_kernel(problem, config)(
        out, dout, delta, only(lse), lse_log2, dq_sum, q_offsets, None, only(dlse), None, None, scale, stream=stream
    )
    dk_sum, dv_sum = (sums[0], sums[1]) if cutlass.const_expr(problem.group_size > 1) else (dk, dv)
    counters = counters_of(problem, sums)
    backward_kernel(problem, config, deterministic)(
        q,
        k,
        v,
        dout,
        lse_log2,
        delta,
        dq_sum,
        dk_sum,
        dv_sum,
        scale,
        mCuSeqlensQ=q_offsets,
        mCuSeqlensK=kv_offsets,
        window_size_left=int32(edge.left),
        window_size_right=int32(edge.right),
        mdQ_semaphore=counters[0],
        mdK_semaphore=counters[1],
        mdV_semaphore=counters[2],
        aux_data=aux(marks),
        blocksparse_tensors=for_heads(lists, problem.num_q_heads),
        stream=stream,
    )
    last_dq_kernel(problem, config)(dq_sum, dq, scale, q_offsets, None, None, stream=stream)
    if cutlass.const_expr(problem.group_size > 1):
        last_dkv_kernel(problem, config, problem.head_dim)(dk_sum, dk, scale, kv_offsets, None, None, stream=stream)
        one = cutlass.Float32(1.0)
        last_dkv_kernel(problem, config, problem.v_head_dim)(dv_sum, dv, one, kv_offsets, None, None, stream=stream)


def forward_kernel(p: Problem, c: ForwardConfig) -> Any:
    """The forward's kernel object."""
    edge, mask = edges(p), mask_of(p)
    return FlashAttentionForwardSm90(
        _DTYPES[p.dtype],
        p.head_dim,
        p.v_head_dim,
        p.group_size,
        is_causal=edge.causal,
        is_local=edge.window,
        pack_gqa=c.pack_heads,
        tile_m=c.block_q,
        tile_n=c.block_k,
        num_stages=c.num_stages,
        num_threads=(c.block_q // WARPGROUP_ROWS + 1) * _THREADS,
        intra_wg_overlap=c.overlap,
        mma_pv_is_rs=c.p_in_registers,
        score_mod=cap_of(p),
        mask_mod=mask,
        has_aux_tensors=mask is not None,
    )


def first_kernel(p: Problem, c: BackwardConfig) -> Any:
    """The kernel object of the launch before the backward."""
    return FlashAttentionBackwardPreprocess(_DTYPES[p.dtype], p.head_dim, p.v_head_dim, c.block_q)


def backward_kernel(p: Problem, c: BackwardConfig, deterministic: bool) -> Any:
    """The backward's kernel object."""
    edge, mask = edges(p), mask_of(p)
    return FlashAttentionBackwardSm90(
        _DTYPES[p.dtype],
        p.head_dim,
        p.v_head_dim,
        p.group_size,
        is_causal=edge.causal,
        is_local=edge.window,
        deterministic=deterministic,
        tile_m=c.block_q,
        tile_n=c.block_k,
        Q_stage=c.stages,
        dO_stage=c.dout_stages,
        PdS_stage=c.ds_stages,
        SdP_swapAB=c.transpose_s,
        dKV_swapAB=c.transpose_dkv,
        dQ_swapAB=c.transpose_dq,
        AtomLayoutMSdP=c.groups_s,
        AtomLayoutNdKV=c.groups_dkv,
        AtomLayoutMdQ=c.groups_dq,
        num_threads=(c.warpgroups + 1) * _THREADS,
        score_mod=cap_of(p),
        score_mod_bwd=slope_of(p),
        mask_mod=mask,
        has_aux_tensors=mask is not None,
        dQ_single_wg=c.one_makes_dq,
    )


def last_dq_kernel(p: Problem, c: BackwardConfig) -> Any:
    """The kernel object of the launch that makes dq of its sums."""
    threads = c.dq_warpgroups * _THREADS
    return FlashAttentionBackwardPostprocess(
        _DTYPES[p.dtype], p.head_dim, _CAPABILITY, c.block_q, threads, c.groups_dq, c.transpose_dq
    )


def last_dkv_kernel(p: Problem, c: BackwardConfig, head_dim: int) -> Any:
    """The kernel object of the launch that makes dk or dv of its sums."""
    threads = c.warpgroups * _THREADS
    return FlashAttentionBackwardPostprocess(
        _DTYPES[p.dtype], head_dim, _CAPABILITY, c.block_k, threads, c.groups_dkv, c.transpose_dkv
    )


def counters_of(p: Problem, sums: Any) -> tuple[Any, Any, Any]:
    """The counters for dq, dk and dv behind the sums, each None if there is none."""
    dq, dk, dv, *_ = (*sums[2 if p.group_size > 1 else 0 :], None, None, None)
    return dq, dk, dv


def of_sides(offsets: Any) -> tuple[Any, Any]:
    """The offsets of queries and of keys, each None if there are none."""
    return tuple(offsets[0][side, None] for side in (0, 1)) if offsets else (None, None)


def only(arrays: Any) -> Any:
    """The one array of a tuple, None of an empty one."""
    return arrays[0] if arrays else None


def int32(bound: int | None) -> Any:
    """A bound of a window as the kernels take it."""
    return None if bound is None else cutlass.Int32(bound)


def aux(marks: Any) -> Any:
    """The arrays that the mask reads."""
    return AuxData(tensors=tuple(marks)) if marks else AuxData()


def for_heads(lists: Any, heads: int) -> Any:
    """``tiles.Lists``, or none, as the kernels take it: the same for every head."""
    if not lists:
        return None
    return BlockSparseTensors(*(over_heads(array, heads) for array in lists))


def over_heads(array: Any, heads: int) -> Any:
    """An array [B, ...] seen as [B, heads, ...]."""
    (batch, *sizes), (step, *steps) = array.shape, array.stride
    return cute.make_tensor(array.iterator, cute.make_layout((batch, heads, *sizes), stride=(step, 0, *steps)))
