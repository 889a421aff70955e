"""Caches of keys and values: dtypes, and layouts: where token ``slot`` of page ``page`` and head ``head`` lies.

A contiguous cache is one page a sequence, as long as the cache.

- ``nhd``: ``[pages, P, K, H]``, keys and values apart (vLLM, FlashAttention-3, FlashInfer's NHD).
- ``hnd``: ``[pages, K, P, H]``, apart (FlashInfer's HND).
- ``head_first``: ``[K, pages, P, H]``, apart (``paged_attention`` of JAX).
- ``interleaved``: ``[pages, P, 2 K, H]``, one array; keys at even heads, values at odd ones (``ragged_paged_attention``
  of JAX and tokamax).
- ``latent``: ``[pages, P, 1, H]``, one array; values are the first ``V`` columns of keys (FlashMLA, vLLM, SGLang).

Latents with a scale for each 128 columns (``kvscale=block``) are bytes, ``[pages, P, 1, V + V / 32 + 2 (H - V)]``:
codes of the values, their float32 scales, and the columns behind in 16 bits (FlashMLA, ``fp8_ds_mla`` of vLLM).
"""

from typing import Any, NamedTuple

from attn_tune.ops.fields.attention import check_choice
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind

DECIDES_NO_CODE = "the ops' contract, whose version is in every signature"

LAYOUTS = ("nhd", "hnd", "head_first", "interleaved")
LATENT = "latent"
# Those of one array for keys and values.
JOINT = ("interleaved", LATENT)
# A cache in the dtype of what is written to it, or of codes and what has a scale of its own among them.
SAME = "same"
CODES = ("float8_e4m3fn", "int8")
SCALES = ("none", "tensor", "head", "token")
# Scales of blocks of columns of a token, which lie beside their codes in a cache of bytes; only where an op says so.
BLOCK, COLUMNS, PACKED = "block", 128, "uint8"
# The largest code of each dtype. A token's own scale is its largest element, or ``SMALLEST``, divided by it.
LARGEST_CODE = {"float8_e4m3fn": 448.0, "int8": 127.0}
SMALLEST = 2.0**-60

_C = FieldKind.CATEGORICAL
# Parts of a signature: where a token lies, and what is stored of it.
PLACE_FIELDS = (
    Field(name="page", kind=_C, is_int=True, default=0, doc="tokens of a page; `0`: contiguous, no page table"),
    Field(
        name="layout",
        kind=_C,
        is_int=False,
        default="nhd",
        doc="order of the cache's axes: `nhd`, `hnd`, `head_first`, `interleaved`; of attention also `latent`: values "
        "in keys",
    ),
)
CODE_FIELDS = (
    Field(name="kv", kind=_C, is_int=False, default=SAME, doc="dtype of the cache: `same`, `float8_e4m3fn`, `int8`"),
    Field(
        name="kvscale",
        kind=_C,
        is_int=False,
        default="none",
        doc="what has a scale of its own in the cache: `none`, `tensor`, `head`, `token` (and head); of latents also "
        "`block`",
    ),
)

_AXES = {
    "nhd": ("page", "slot", "head"),
    "hnd": ("page", "head", "slot"),
    "head_first": ("head", "page", "slot"),
    "interleaved": ("page", "slot", "head"),
    LATENT: ("page", "slot", "head"),
}


def check_cache(problem: Any) -> None:
    """Check the attributes of a problem that say what its cache is.

    Raises:
      UsageError: one that no cache has, or two that do not go together.
    """
    p = problem
    if not isinstance(p.page_size, int) or isinstance(p.page_size, bool) or p.page_size < 0:
        raise UsageError(f"page={p.page_size!r} (page_size) must be a positive integer, or 0 without pages")
    check_choice("layout", p.layout, p.LAYOUTS)
    check_choice("kv", p.kv_dtype, (SAME, *CODES), name="kv_dtype")
    check_choice("kvscale", p.kv_scale, p.SCALES, name="kv_scale")
    if p.kv_scale != "none" and p.kv_dtype == SAME:
        raise UsageError(f"kvscale={p.kv_scale!r} needs a cache of codes: kv={' or kv='.join(CODES)}")
    if p.kv_dtype == "int8" and p.kv_scale == "none":
        raise UsageError("kv=int8 needs scales (k_scale and v_scale of a call): kvscale=tensor, head or token")
    if p.kv_scale == BLOCK and (p.layout != LATENT or p.kv_dtype != "float8_e4m3fn" or p.dtype == "float32"):
        raise UsageError("kvscale=block needs layout=latent, kv=float8_e4m3fn and a dtype of 16 bits")
    if p.kv_scale == BLOCK and p.v_head_dim % COLUMNS:
        raise UsageError(f"kvscale=block has scales of {COLUMNS} columns, of which v={p.v_head_dim} is no multiple")
    if p.layout == "interleaved" and p.head_dim != p.v_head_dim:
        raise UsageError(
            f"layout=interleaved needs keys and values of one width, got h={p.head_dim} and v={p.v_head_dim}"
        )
    if p.layout == LATENT and p.head_dim < p.v_head_dim:
        raise UsageError(f"layout=latent has values within keys, got h={p.head_dim} below v={p.v_head_dim}")
    if p.layout == LATENT and p.num_kv_heads != 1:
        raise UsageError(f"layout=latent has one key head for all query heads, got k={p.num_kv_heads} (num_kv_heads)")


def packed_width(head_dim: int, v_head_dim: int) -> int:
    """The bytes of a token of latents with a scale for each block of columns."""
    return v_head_dim + v_head_dim // COLUMNS * 4 + 2 * (head_dim - v_head_dim)


class Steps(NamedTuple):
    """Elements from one page, token of a page, or head to the next.

    Attributes:
      page, slot, head: the steps of the three axes.
    """

    page: int
    slot: int
    head: int


def axes(layout: str) -> tuple[str, str, str]:
    """The names of a cache's axes but the last, in order: a permutation of ``page``, ``slot`` and ``head``."""
    return _AXES[layout]


def shape(layout: str, pages: int, slots: int, heads: int, width: int) -> tuple[int, ...]:
    """The shape of a cache, of keys or of values or, for ``interleaved``, of both."""
    sizes = {"page": pages, "slot": slots, "head": heads * (2 if layout == "interleaved" else 1)}
    return (*(sizes[axis] for axis in axes(layout)), width)


def steps(layout: str, pages: int, slots: int, heads: int, width: int) -> Steps:
    """The steps between the keys, or the values, of a cache of ``heads`` key heads."""
    step, found = width, {}
    sizes = dict(zip(axes(layout), shape(layout, pages, slots, heads, width), strict=False))
    for axis in reversed(axes(layout)):
        found[axis] = step
        step *= sizes[axis]
    if layout == "interleaved":
        found["head"] *= 2
    return Steps(**found)


def sizes_of(layout: str, cache_shape: tuple[int, ...]) -> dict[str, int]:
    """``page``, ``slot`` and ``head``: the numbers of pages, tokens of a page and key heads of a cache."""
    sizes = dict(zip(axes(layout), cache_shape, strict=False))
    if layout == "interleaved":
        sizes["head"] //= 2
    return sizes
