"""The layouts of a cache: where token ``slot`` of page ``page`` and head ``head`` lies.

A contiguous cache is one page a sequence, as long as the cache.

- ``nhd``: ``[pages, P, K, H]``, keys and values apart (vLLM, FlashAttention-3, FlashInfer's NHD).
- ``hnd``: ``[pages, K, P, H]``, apart (FlashInfer's HND).
- ``head_first``: ``[K, pages, P, H]``, apart (``paged_attention`` of JAX).
- ``interleaved``: ``[pages, P, 2 K, H]``, one array; keys at even heads, values at odd ones (``ragged_paged_attention``
  of JAX and tokamax).
"""

from typing import NamedTuple

DECIDES_NO_CODE = "the op's contract, whose version is in every signature"

_AXES = {
    "nhd": ("page", "slot", "head"),
    "hnd": ("page", "head", "slot"),
    "head_first": ("head", "page", "slot"),
    "interleaved": ("page", "slot", "head"),
}


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
