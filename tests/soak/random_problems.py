"""Problems at random that someone may ask for: long and odd lengths, narrow and wide heads, all kinds of caches."""

import random
from collections.abc import Iterator
from typing import Any

from attn_tune.ops.block_sparse_attention import problem as sparse
from attn_tune.ops.fields.attention import CANONICAL_SOFT_CAP
from attn_tune.ops.fields.scales import default_scale
from attn_tune.ops.flash_attention import problem as dense
from attn_tune.ops.paged_decode import problem as decoding
from attn_tune.ops.ragged_paged import problem as ragged
from attn_tune.schema.errors import UsageError

_LENGTHS = (1, 77, 128, 300, 1000, 1024, 2048, 4096, 4097, 8192, 10_000, 32_768, 65_536, 131_072, 524_288, 1_048_576)
# Of block masks, whose inputs are made here.
_MOST_MASKED = 65_536
_WIDTHS = (64, 96, 128, 192, 256)
_DTYPES = ("bfloat16", "bfloat16", "float32")
_CACHES = (("same", "none"), ("same", "none"), *((kv, kind) for kv in ("float8_e4m3fn", "int8") for kind in (
    "tensor", "head", "token")), ("float8_e4m3fn", "none"))  # fmt: skip


def problems(seed: int) -> Iterator[tuple[str, Any]]:
    """Ops and problems without end, the same for the same seed."""
    draw = random.Random(seed)
    makers = {
        dense.NAME: _dense,
        sparse.NAME: _sparse,
        decoding.NAME: _decoding,
        ragged.NAME: _ragged,
    }
    weights = (4, 1, 3, 3)
    while True:
        (op,) = draw.choices(list(makers), weights)
        try:
            yield op, makers[op](draw)
        except UsageError:
            # Flags that do not go together.
            continue


def _is(draw: random.Random, share: float) -> bool:
    return draw.random() < share


def _heads(draw: random.Random) -> dict[str, int]:
    kv = draw.choice((1, 2, 3, 4, 8, 16, 32))
    return {"num_q_heads": kv * draw.choice((1, 1, 2, 4, 5, 6, 7, 8, 12, 16)), "num_kv_heads": kv}


def _softmax(draw: random.Random, width: int) -> dict[str, Any]:
    return {
        "soft_cap": CANONICAL_SOFT_CAP if _is(draw, 0.25) else None,
        "scale": default_scale(width),
        "dtype": draw.choice(_DTYPES),
    }


def _sizes(draw: random.Random, lengths: tuple[int, ...]) -> dict[str, Any]:
    kv_len = draw.choice(lengths)
    q_len = kv_len if _is(draw, 0.7) else draw.choice(lengths)
    width = draw.choice(_WIDTHS)
    # Of a long sequence there is one, with few heads: others do not fit into a TPU's memory.
    is_long, is_longer = max(q_len, kv_len) > 8192, max(q_len, kv_len) > 50_000
    heads = {"num_q_heads": draw.choice((1, 2, 4)), "num_kv_heads": 1} if is_longer else _heads(draw)
    return {
        "batch": 1 if is_long else draw.choice((1, 1, 2, 3, 8)),
        "q_len": q_len,
        "kv_len": kv_len,
        "head_dim": width,
        "v_head_dim": width if _is(draw, 0.7) else draw.choice(_WIDTHS),
        "causal": _is(draw, 0.6),
        "window": (draw.choice((0, 100, 127, 128, 1024, 4096)) if _is(draw, 0.25) else None, None),
        "has_segments": _is(draw, 0.3),
        **heads,
        **_softmax(draw, width),
    }


def _dense(draw: random.Random) -> dense.Problem:
    sizes = _sizes(draw, _LENGTHS)
    more: dict[str, Any] = {"has_sinks": _is(draw, 0.2)}
    # A bias of all pairs fits for short sequences alone.
    if _is(draw, 0.3) and sizes["q_len"] * sizes["kv_len"] <= 1 << 26:
        more[draw.choice(("bias_dims", "mask_dims"))] = draw.choice(("11ts", "1nts", "b1ts", "bnts", "b11s"))
        # JAX's kernel that knows a bias has no window and no cap.
        sizes |= {"window": (None, None), "soft_cap": None}
    if sizes["has_segments"] and _is(draw, 0.3):
        more["has_lengths"] = True
    return dense.Problem(**sizes, **more)


def _sparse(draw: random.Random) -> sparse.Problem:
    sizes = _sizes(draw, tuple(length for length in _LENGTHS if length <= _MOST_MASKED))
    return sparse.Problem(
        **sizes,
        mask_block_q=draw.choice((128, 128, 256, 512, 1024)),
        mask_block_k=draw.choice((128, 128, 256, 512, 1024)),
        block_dims=draw.choice(sparse.SPANS),
    )


def _cache(draw: random.Random) -> dict[str, Any]:
    width = draw.choice((*_WIDTHS, 128, 128, 128, 256))
    kv_dtype, kv_scale = draw.choice(_CACHES)
    return {
        "batch": draw.choice((1, 2, 8, 33, 128, 256)),
        "kv_len": draw.choice(_LENGTHS),
        "head_dim": width,
        "v_head_dim": width,
        "page_size": draw.choice((16, 32, 64, 128, 256)),
        "layout": draw.choice(("head_first", "interleaved")),
        "kv_dtype": kv_dtype,
        "kv_scale": kv_scale,
        "window": draw.choice((0, 100, 128, 1024, 4096)) if _is(draw, 0.25) else None,
        "has_sinks": _is(draw, 0.2),
        **_heads(draw),
        **_softmax(draw, width),
    }


def _decoding(draw: random.Random) -> decoding.Problem:
    return decoding.Problem(q_len=draw.choice((1, 1, 1, 2, 4, 5, 8)), **_cache(draw))


def _ragged(draw: random.Random) -> ragged.Problem:
    cache: dict[str, Any] = _cache(draw) | {"layout": "interleaved"}
    return ragged.Problem(tokens=draw.choice((1, 60, 300, 1024, 4097, 8192)), **cache)
