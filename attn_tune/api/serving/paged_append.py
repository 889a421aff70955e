"""The public ``paged_append``: new keys and values written into a cache."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.call import run
from attn_tune.api.declaration import Call
from attn_tune.ops.fields.arguments import DTYPES, check_array, check_not_empty
from attn_tune.ops.fields.cache import SAME, sizes_of
from attn_tune.ops.fields.cache_arguments import (
    cache_letters,
    check_caches,
    check_ends,
    check_integers,
    check_scales,
    count_sequences,
    first_ends,
    first_sequences,
    remedy,
)
from attn_tune.ops.paged_append.operands import Operands
from attn_tune.ops.paged_append.problem import NAME, Problem
from attn_tune.schema.errors import UsageError

_UPDATED = ("k", "v", "k_scale", "v_scale")


class Cache(NamedTuple):
    """A cache after ``paged_append``: what was given, and where nothing was given None.

    Attributes:
      k_pages, v_pages: keys and values, as given.
      k_scale, v_scale: the scales of its codes; those of tokens hold the new ones, all others are the given ones.
    """

    k_pages: Array
    v_pages: Array | None
    k_scale: Array | None
    v_scale: Array | None


def _outputs(problem: Problem, operands: Operands) -> dict[str, jax.ShapeDtypeStruct]:
    names = _UPDATED if problem.kv_scale == "token" else _UPDATED[:2]
    arrays = {name: getattr(operands, name) for name in names}
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in arrays.items() if x is not None}


def _with_shapes(problem: Problem, operands: Operands) -> Problem:
    batch, heads = operands.kv_lens.shape[0], operands.new_k.shape[-2]
    tokens = operands.new_k.size // (heads * operands.new_k.shape[-1])
    return dataclasses.replace(problem, batch=batch, tokens=tokens, num_kv_heads=heads)


@functools.cache
def _call(layout: str, has_pages: bool, kv_scale: str, ragged: bool) -> Call:
    """The call of a layout. Pages belong to no sequence, nor do tokens of a ragged call: heads alone are cut then."""
    is_joint = layout == "interleaved"
    cache = cache_letters(layout, is_paged=has_pages)
    scale = {"none": "", "tensor": "", "head": "k", "token": cache}[kv_scale]
    new = "tk" if ragged else "btk"
    cuts_sequences = not has_pages and not ragged
    whole = remedy(layout, cuts_sequences=cuts_sequences)
    main = {"k": "k_pages"} if is_joint else {"k": "k_pages", "v": "v_pages"}
    return Call(
        op=NAME,
        letters={
            "new_k": new + "h",
            "new_v": new + ("h" if is_joint else "v"),
            # Keys and values of a head side by side on one axis, which is never cut.
            "k": cache.replace("k", "j") + "h" if is_joint else cache + "h",
            "v": cache + "v",
            "page_table": "bm",
            "kv_lens": "b",
            "cu_q_lens": "e",
            "k_scale": scale,
            "v_scale": scale,
        },
        main={"new_k": "new_keys"} | main,
        outputs=_outputs,
        with_shapes=_with_shapes,
        parallel=(("b",) if cuts_sequences else ()) + (() if is_joint else ("k",)),
        words={"b": "batch", "t": "new tokens", "k": "key/value heads", "j": "key/value heads", "p": "pages"}
        | {"s": "tokens", "h": "head dim", "v": "head dim", "m": "page table", "e": "cu_q_lens"},
        remedies=dict.fromkeys("btkjpshvme", whole),
        unfoldable=("new_k",),
        alternative="writing into a cache has no derivative; train with attn_tune.flash_attention",
    )


def paged_append(
    new_keys: Float[Array, "..."],
    new_values: Float[Array, "..."],
    k_pages: Array,
    v_pages: Array | None,
    kv_lens: Int[Array, " B"],
    page_table: Int[Array, "B pages"] | None = None,
    *,
    cu_q_lens: Int[Array, " ends"] | None = None,
    num_seqs: int | Int[Array, ""] | None = None,
    layout: str = "nhd",
    k_scale: Float[Array, "..."] | float | None = None,
    v_scale: Float[Array, "..."] | float | None = None,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    out_specs: PartitionSpec | None = None,
) -> Cache:
    """The cache with new keys and values at the ends of its sequences, as ``paged_decode`` reads it afterwards.

    Under ``jax.jit`` with the cache donated it is written in place and never copied; otherwise XLA copies it first. The
    ``T`` new tokens of a sequence take its last ``T`` positions. Nothing else changes: a token is left out whose
    position is below zero or behind what its row of the table holds, or whose page is not in the cache. Two tokens of
    one place leave either. There is no derivative.

    Args:
      new_keys: ``[B, K, H]``, one new token of each sequence; ``[B, T, K, H]``; with ``cu_q_lens`` ``[tokens, K, H]``.
        What becomes codes must be finite.
      new_values: likewise with their own width ``V``.
      k_pages: keys in pages, by ``layout``, as in ``paged_decode``; in the dtype of ``new_keys``, or codes.
      v_pages: values, likewise; None for ``interleaved``.
      kv_lens: int32 tokens of each sequence in the cache, the new ones included: as for ``paged_decode``.
      page_table: int32 ``[B, pages of a sequence]``; page ``i`` holds the tokens from ``i * P`` on. None: no pages.
      cu_q_lens: int32 ``[B + 1]`` where sequences have different numbers of new tokens: 0, then the end of each. Tokens
        behind the last are padding.
      num_seqs: sequences from this one on are empty, and nothing of theirs counts.
      k_scale: float32, of a cache of float8_e4m3fn or int8 codes. One number or ``[K]``, positive and finite: given;
        codes are the nearest to the quotients, at most the largest code. One for each token and head, with the axes of
        ``k_pages`` but the last (``interleaved``: [pages, P, K]): the new ones are made, each the largest element of
        its key, at least ``2**-60``, divided by the largest code (448, or 127), and written beside the codes. None with
        float8_e4m3fn: 1. int8 needs it.
      v_scale: the same of the values; given with ``k_scale``, of the same kind.
      platform: the kernel to use, as in ``flash_attention``.
      cfg: the config to use, as in ``flash_attention``.
      mesh: run under ``shard_map``, as in ``flash_attention``: over heads and, of a contiguous cache, sequences.
      in_specs: the specs of new keys (4-D, or 3-D with ``cu_q_lens``), cached keys and values on ``mesh``.
      out_specs: the spec of the cached keys.

    Returns:
      The cache and its scales; what was not given is None.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a derivative is asked for.
    """
    new_k, new_v, batch = _checked(new_keys, new_values, kv_lens, cu_q_lens)
    whole = None if page_table is not None else batch
    k, v = check_caches(k_pages, v_pages, layout, dtype=new_k.dtype, whose="new_keys", sequences=whole)
    sizes = sizes_of(layout, k.shape)
    for name, new, cache in (("keys", new_k, k), ("values", new_v, k if v is None else v)):
        if new.shape[-1] != cache.shape[-1] or new.shape[-2] != sizes["head"]:
            raise UsageError(
                f"new_{name} {list(new.shape)} must have the cache's {sizes['head']} heads of {cache.shape[-1]}"
            )
    lengths = check_integers("kv_lens", kv_lens, (batch,))
    lengths = first_sequences(num_seqs, lengths)
    tokens = (new_k.shape[0], "new tokens")
    ends = (
        None if cu_q_lens is None else check_ends("cu_q_lens", cu_q_lens, (batch + 1,), most=tokens, num_seqs=num_seqs)
    )
    ends = None if ends is None else first_ends(num_seqs, ends)
    table = None if page_table is None else check_integers("page_table", page_table, (batch, None))
    kv_dtype = SAME if k.dtype == new_k.dtype else k.dtype.name
    kv_scale, scales = check_scales(kv_dtype, layout, k, (k_scale, v_scale))
    for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
        if kv_scale == "token" and jnp.asarray(scale).dtype != jnp.float32:
            raise UsageError(f"{name} must be float32 to be written in place, got {jnp.asarray(scale).dtype}")
    problem = Problem(
        batch=batch,
        tokens=new_k.size // (new_k.shape[-2] * new_k.shape[-1]),
        num_kv_heads=sizes["head"],
        head_dim=new_k.shape[-1],
        v_head_dim=new_v.shape[-1],
        page_size=0 if table is None else sizes["slot"],
        layout=layout,
        dtype=new_k.dtype.name,
        kv_dtype=kv_dtype,
        kv_scale=kv_scale,
        ragged=ends is not None,
    )
    operands = Operands(
        new_k=new_k,
        new_v=new_v,
        k=k,
        v=v,
        page_table=table,
        kv_lens=lengths,
        cu_q_lens=ends,
        k_scale=scales[0],
        v_scale=scales[1],
    )
    outputs = run(
        _call(layout, table is not None, kv_scale, ends is not None),
        problem,
        operands,
        platform=platform,
        cfg=cfg,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
    )
    return Cache(outputs["k"], outputs.get("v"), *(outputs.get(name, getattr(operands, name)) for name in _UPDATED[2:]))


def _checked(new_keys: Any, new_values: Any, kv_lens: Any, cu_q_lens: Any) -> tuple[Array, Array, int]:
    """New keys and values that fit each other, 4-D or ragged, and the number of sequences."""
    k, v = check_array("new_keys", new_keys), check_array("new_values", new_values)
    batch = count_sequences(kv_lens)
    ragged = cu_q_lens is not None
    for name, new in (("new_keys", k), ("new_values", v)):
        if new.dtype.name not in DTYPES:
            raise UsageError(f"{name} must have dtype {', '.join(DTYPES)}, got {new.dtype}")
        if check_not_empty(name, new).ndim not in ((3,) if ragged else (3, 4)):
            wanted = "[tokens, K, H] with cu_q_lens" if ragged else "[B, K, H] or [B, T, K, H]"
            raise UsageError(f"{name} must be {wanted}, got shape {new.shape}")
        if not ragged and new.shape[0] != batch:
            raise UsageError(f"{name} has a batch of {new.shape[0]} and kv_lens one of {batch}")
    if k.shape[:-1] != v.shape[:-1] or k.dtype != v.dtype:
        raise UsageError(
            "new_keys and new_values must agree in dtype and all axes but the last, got "
            f"{k.dtype}{list(k.shape)} and {v.dtype}{list(v.shape)}"
        )
    if not ragged and k.ndim == 3:
        k, v = k[:, None], v[:, None]
    return k, v, batch
