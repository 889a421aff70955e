"""Small problems that are hard to get right."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from attn_tune.ops.fields import granularity
from attn_tune.ops.fields.unusual_values import BITING_CAP, BITING_DROPOUT, LENGTHS, OTHER_SCALE
from attn_tune.ops.flash_attention.problem import Problem

MAX_BATCH, MAX_KV_HEADS, MAX_GROUP = 2, 2, 8


def features(problem: Problem) -> tuple[Problem, ...]:
    """Variants of a problem on which a config of it must also be right.

    Flags, dtypes, head dims and broadcast axes are the problem's own; lengths are odd, unequal both ways (which gives
    fully masked rows under a causal mask), and long enough for several tiles. Windows and caps shrink until they bite.
    What no signature says is other than usual in some: the scale, and the lse, which takes part in the derivative or
    is not read. One has twice the sequences and key heads. A problem of one sequence, key head or head a group has
    one variant more, with two of each.
    """
    small = dataclasses.replace(
        problem,
        **few_heads(problem, 1),
        soft_cap=None if problem.soft_cap is None else min(problem.soft_cap, BITING_CAP),
        dropout_rate=BITING_DROPOUT if problem.dropout_rate > 0 else 0.0,
    )
    # A row of one sequence or head may be lent to several, which nothing else here would run.
    several = dataclasses.replace(small, **few_heads(problem, 2))
    # A call may come with any scale, and differentiate the lse it is given; its row answers all the same.
    unusual = dataclasses.replace(small, scale=OTHER_SCALE * problem.scale, has_lse_gradient=True, needs_lse=True)
    wide = dataclasses.replace(small, scale=OTHER_SCALE * problem.scale, **few_heads(problem, 1, times=2))
    of_length = (unusual, unusual, small, wide)
    lengths = LENGTHS
    if problem.has_offsets and not problem.has_positions and problem.bounds != (None, None):
        # Sequences whose queries and keys end at different places have positions.
        lengths = tuple((s, s) for _, s in LENGTHS)
    # A call need not read the lse, and then a kernel need not make it. A negative scale turns the order of logits.
    unread = dataclasses.replace(small, scale=-OTHER_SCALE * problem.scale, needs_lse=False)
    problems = [*zip(of_length, lengths, strict=True), (unread, lengths[0])]
    problems += [(several, lengths[1])] if several != small else []
    return tuple(
        dataclasses.replace(one, q_len=t, kv_len=s, window=shrunk(problem.window, s)) for one, (t, s) in problems
    )


def coarser(problem: Problem) -> Iterator[Problem]:
    """Variants of a problem for kernels that cannot take it: ``granularity.coarser``, offsets as long as they fit.

    Where the scale is negative the problem with a positive one follows, and its variants: some kernels take no other.
    """
    for variant in granularity.coarser(dataclasses.replace(problem, has_offsets=False)):
        yield dataclasses.replace(variant, has_offsets=problem.has_offsets and variant.batch == 1)
    if problem.scale < 0:
        positive = dataclasses.replace(problem, scale=-problem.scale)
        yield positive
        yield from coarser(positive)


def few_heads(problem: Problem, least: int, times: int = 1) -> dict[str, int]:
    """Few sequences, key heads and query heads a key head; of each at least ``least``, but one row of offsets.

    Args:
      times: so many times the sequences and key heads.
    """
    batch, kv_heads, group = (
        max(least, min(number, most))
        for number, most in (
            (problem.batch, MAX_BATCH),
            (problem.num_kv_heads, MAX_KV_HEADS),
            (problem.group_size, MAX_GROUP),
        )
    )
    batch = 1 if problem.has_offsets else times * batch
    return {"batch": batch, "num_kv_heads": times * kv_heads, "num_q_heads": times * kv_heads * group}


def samples() -> dict[str, Problem]:
    """Tiny problems by name: each feature alone, then combinations that have gone wrong in real kernels.

    Where softmax would make a whole gradient zero (one visible key, a bias that is constant along the keys) a sink
    keeps it alive: there is nothing to compare rounding noise with.
    """
    full = _tiny()
    causal = _tiny(causal=True)
    gqa = {"num_q_heads": 4, "num_kv_heads": 2}
    return {
        "plain": full,
        "float32": _tiny(dtype="float32", causal=True),
        "float32_highest": _tiny(dtype="float32", precision="highest"),
        "float16": _tiny(dtype="float16", causal=True),
        "logits_bfloat16": _tiny(logits_dtype="bfloat16"),
        "causal": causal,
        "causal_longer_keys": _tiny(causal=True, q_len=37, kv_len=100),
        "causal_longer_queries": _tiny(causal=True, q_len=100, kv_len=37),
        "one_query": _tiny(causal=True, q_len=1, kv_len=77),
        "one_key": _tiny(q_len=33, kv_len=1, has_sinks=True),
        "window": _tiny(window=(9, 5)),
        "window_left": _tiny(window=(17, None)),
        "window_right": _tiny(window=(None, 11)),
        "window_zero": _tiny(window=(0, 0), has_sinks=True),
        "window_longer_queries": _tiny(q_len=100, kv_len=37, window=(7, 3)),
        "causal_window": _tiny(causal=True, window=(12, None)),
        "gqa": _tiny(**gqa),
        "mqa_causal": _tiny(num_q_heads=4, num_kv_heads=1, causal=True),
        "wider_values": _tiny(head_dim=16, v_head_dim=32),
        "narrower_values": _tiny(head_dim=64, v_head_dim=32, causal=True),
        "scale": _tiny(scale=0.5),
        "scale_negative": _tiny(scale=-0.4),
        "scale_negative_causal": _tiny(scale=-0.4, causal=True),
        "scale_zero": _tiny(scale=0.0),
        "lse_gradient": _tiny(causal=True, has_lse_gradient=True, **gqa),
        "soft_cap": _tiny(soft_cap=BITING_CAP),
        "sinks": _tiny(has_sinks=True),
        "sinks_causal_longer_queries": _tiny(has_sinks=True, causal=True, q_len=100, kv_len=37),
        "dropout": _tiny(dropout_rate=BITING_DROPOUT),
        "segments": _tiny(has_segments=True),
        "segments_longer_keys": _tiny(has_segments=True, causal=True, q_len=41, kv_len=90),
        "offsets": _tiny(batch=1, has_segments=True, has_offsets=True),
        "offsets_causal": _tiny(batch=1, has_segments=True, has_offsets=True, causal=True, **gqa),
        "offsets_window": _tiny(batch=1, has_segments=True, has_offsets=True, causal=True, window=(12, None)),
        "offsets_longer_keys": _tiny(
            batch=1, has_segments=True, has_offsets=True, has_positions=True, causal=True, q_len=41, kv_len=90
        ),
        "lengths": _tiny(has_segments=True, has_lengths=True),
        "lengths_causal": _tiny(has_segments=True, has_lengths=True, causal=True),
        "positions_causal": _tiny(has_positions=True, has_segments=True, causal=True),
        "positions_window": _tiny(has_positions=True, window=(6, 4)),
        "mask_full": _tiny(mask_dims="bnts"),
        "mask_padding": _tiny(mask_dims="b11s"),
        "mask_rows": _tiny(mask_dims="bnt1"),
        "mask_shared": _tiny(mask_dims="11ts", causal=True),
        "bias_full": _tiny(bias_dims="bnts"),
        "bias_shared_batch": _tiny(bias_dims="1nts", **gqa),
        "bias_shared_heads": _tiny(bias_dims="b1ts", **gqa),
        "bias_keys": _tiny(bias_dims="1n1s"),
        "bias_rows": _tiny(bias_dims="b1t1", has_sinks=True),
        "bias_scalar": _tiny(bias_dims="1111", has_sinks=True),
        "causal_window_segments": _tiny(causal=True, window=(21, None), has_segments=True),
        "gqa_bias_cap": _tiny(bias_dims="11ts", soft_cap=BITING_CAP, **gqa),
        "sinks_window": _tiny(has_sinks=True, causal=True, window=(8, None), **gqa),
        "dropout_gqa": _tiny(dropout_rate=BITING_DROPOUT, causal=True, **gqa),
        "dropout_bias": _tiny(dropout_rate=BITING_DROPOUT, bias_dims="b1ts"),
        "everything": _tiny(
            dtype="float32",
            precision="highest",
            causal=True,
            window=(40, None),
            q_len=61,
            kv_len=83,
            mask_dims="b11s",
            bias_dims="1nts",
            has_segments=True,
            has_positions=True,
            has_sinks=True,
            soft_cap=BITING_CAP,
            dropout_rate=BITING_DROPOUT,
            head_dim=16,
            v_head_dim=32,
            **gqa,
        ),
    }


def _tiny(
    *,
    batch: int = 2,
    q_len: int = 70,
    kv_len: int = 70,
    head_dim: int = 32,
    v_head_dim: int | None = None,
    num_q_heads: int = 2,
    num_kv_heads: int = 2,
    scale: float | None = None,
    **flags: Any,
) -> Problem:
    return Problem(
        batch=batch,
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        v_head_dim=head_dim if v_head_dim is None else v_head_dim,
        scale=head_dim**-0.5 if scale is None else scale,
        **flags,
    )


def shrunk(window: tuple[int | None, int | None], kv_len: int) -> tuple[int | None, int | None]:
    """A window that bites at ``kv_len`` keys."""
    left, right = (None if w is None else min(w, kv_len // n) for w, n in zip(window, (3, 5), strict=True))
    return left, right
