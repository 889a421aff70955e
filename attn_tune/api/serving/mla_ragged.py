"""The public ``mla_ragged``: new tokens of each sequence, as many as it has, over a cache of latents.

It is the op ``ragged_paged`` with a cache of layout ``latent``, and is looked up and tuned as that.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from attn_tune.api.serving.latents import latent_operands
from attn_tune.api.serving.ragged_paged import ragged
from attn_tune.ops.fields.cache import LATENT


def mla_ragged(
    q_latent: Float[Array, "tokens N L"],
    q_rope: Float[Array, "tokens N R"],
    latent_pages: Array,
    kv_lens: Int[Array, " B"],
    cu_q_lens: Int[Array, " ends"],
    page_table: Int[Array, "B pages"] | None = None,
    *,
    softmax_scale: float,
    num_seqs: int | Int[Array, ""] | None = None,
    causal: bool = True,
    sliding_window: int | None = None,
    logits_soft_cap: float | None = None,
    softmax_aux: Float[Array, "..."] | None = None,
    kv_scale: Float[Array, "..."] | float | None = None,
    max_kv_len: int | None = None,
    workload: str = "eq",
    return_lse: bool = False,
    platform: str | Mapping[str, str | None] | None = None,
    cfg: Any = None,
    mesh: Mesh | None = None,
    in_specs: Sequence[PartitionSpec | None] | None = None,
    out_specs: PartitionSpec | None = None,
) -> Any:
    """Latent attention (MLA) of the new tokens of each sequence, as many as it has, over a cache of their latents.

    One call serves a step of a server: sequences that decode one token, prompts, and chunks of prompts. The projection
    from latents to keys is absorbed in ``q_latent``, that from latents to values comes after the call, as in
    ``mla_decode``: a key is ``L + R`` numbers, of which the first ``L`` are the value too. The last query of a sequence
    stands at its last token, and each query sees the tokens up to its own; one that stands before the first token sees
    nothing. The cache holds the new tokens already and is read only. What no query sees may be anything, as in
    ``ragged_paged``, and sequences of one new token are best put first. There is no derivative.

    Args:
      q_latent: ``[tokens, N, L]``, those of one sequence after the other. From the end of the last sequence on it may
        hold anything; the output there is zero.
      q_rope: ``[tokens, N, R]``: the rotary part of the queries. Slices of one array are not copied.
      latent_pages: the cache ``[pages, P, L + R]``, as in ``mla_decode``, or bytes as of ``pack_latents``. Without
        ``page_table`` ``[B, S, L + R]``.
      kv_lens: int32 tokens of each sequence in the cache, new ones included. None below 0 or above what its row of the
        table holds is counted as 0 or that.
      cu_q_lens: int32 ``[B + 1]``: 0, then the end of each sequence in ``q_latent``; it never falls.
      page_table: int32 ``[B, pages of a sequence]``; page ``i`` holds the tokens from ``i * P`` on. None: no pages.
      softmax_scale: multiplies the logits. It has no default, as in ``mla_decode``.
      num_seqs: sequences from this one on are empty, and nothing of theirs counts.
      causal: a query sees no token behind its own. False: it sees all of its sequence, as in ``ragged_paged``.
      sliding_window: the number of tokens before its own that a query sees; None is all.
      logits_soft_cap: logits become ``cap * tanh(logits / cap)``.
      softmax_aux: attention sinks, as in ``flash_attention``.
      kv_scale: float32, of a cache of float8_e4m3fn or int8 codes, which it multiplies: one number, or one for each
        token, with the axes of ``latent_pages`` but the last. Those that are read must be positive and finite. None
        with a cache of float8_e4m3fn: 1. int8 needs it.
      max_kv_len: the longest sequence to expect, which chooses the config; longer ones are right too. Default: what a
        row of the table holds.
      workload: the profile of lengths to expect, which chooses the config: ``eq``, ``uni``, ``exp``, ``one``, or
        ``mix`` of sequences that decode and chunks.
      return_lse: return ``(out, lse)``.
      platform: the kernel to use, as in ``flash_attention``.
      cfg: the config to use, as in ``flash_attention``.
      mesh: run under ``shard_map``, as in ``flash_attention``: over query heads, each device with the whole cache.
      in_specs: the specs on ``mesh`` of the query ``[tokens, N, L + R]`` and the cache with its key head's axis.
      out_specs: the spec of the output.

    Returns:
      ``out``, like ``q_latent``. With ``return_lse`` also the natural logarithm of the softmax's denominator,
      ``[tokens, N]`` in float32, sinks included; where nothing is seen theirs alone, or
      minus infinity, which it also is of queries of no sequence.

    Raises:
      UsageError: an argument is malformed; the message names it.
      UnsupportedError: no kernel can do this here, or not the requested one; or a derivative is asked for.
    """
    query, cache, latent_dim, scale = latent_operands(
        q_latent, q_rope, latent_pages, kv_scale, softmax_scale, forms=("[tokens, N, L]",)
    )
    return ragged(
        query,
        (cache, None),
        (kv_lens, cu_q_lens),
        page_table,
        num_seqs=num_seqs,
        causal=causal,
        return_lse=return_lse,
        place={"platform": platform, "cfg": cfg, "mesh": mesh, "in_specs": in_specs, "out_specs": out_specs},
        layout=LATENT,
        latent_dim=latent_dim,
        sliding_window=sliding_window,
        softmax_scale=softmax_scale,
        logits_soft_cap=logits_soft_cap,
        softmax_aux=softmax_aux,
        k_scale=scale,
        v_scale=scale,
        max_kv_len=max_kv_len,
        workload=workload,
    )
