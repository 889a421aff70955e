"""Entries of tokamax's autotuning tables, read as problems and configs of the kernels here. tokamax is not needed."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.errors import UnsupportedError

# tokamax's classes by the kernel and direction that are made of them.
CLASSES = {
    "PallasMosaicGpuFlashAttention": ("flash_attention/tokamax_mosaic", "fwd"),
    "PallasMosaicGpuFlashAttentionVjp": ("flash_attention/tokamax_mosaic", "bwd"),
    "PallasTritonFlashAttention": ("flash_attention/tokamax_triton", "fwd"),
    "PallasTritonFlashAttentionVjp": ("flash_attention/tokamax_triton", "bwd"),
}
_ARRAY = re.compile(r"([a-z]+[0-9]*)\[([0-9,]*)\]")
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
_PRECISIONS = {"DEFAULT": "default", "HIGH": "high", "HIGHEST": "highest"}


class TableEntry(NamedTuple):
    """One entry of a table.

    Attributes:
      kernel: ``"op/name"``.
      direction: name of the direction.
      signature: text of the problem's signature.
      config: the knobs, by their names here.
    """

    kernel: str
    direction: str
    signature: str
    config: dict[str, Any]


def entry(class_name: str, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> TableEntry:
    """The entry of ``class_name``, one of ``CLASSES``, with the JSON of its bound ``arguments`` and of a ``config``.

    Raises:
      UnsupportedError: the call is no problem of the op; the message says why.
      UsageError: its shape is impossible.
    """
    kernel, direction = CLASSES[class_name]
    knobs = {name: value for name, value in config.items() if value is not None}
    if class_name == "PallasMosaicGpuFlashAttentionVjp":
        knobs = {part: _launch(knobs, part) for part in ("dq", "dkv")}
    return TableEntry(kernel, direction, _problem(arguments).signature.text, knobs)


def _launch(knobs: Mapping[str, Any], part: str) -> dict[str, Any]:
    """The knobs of one launch of the backward, whose two launches share the others."""
    names = {
        f"block_q_{part}": "block_q",
        f"block_kv_{part}": "block_kv",
        "num_stages": "num_stages",
        "compute_wgs": "compute_warpgroups",
    }
    # What only the other launch has is left out, what neither has stays to be refused.
    other = ("block_q_dkv", "block_kv_dkv") if part == "dq" else ("block_q_dq", "block_kv_dq")
    return {names.get(name, name): value for name, value in knobs.items() if name not in other}


def _problem(arguments: Mapping[str, Any]) -> Problem:
    (*batch, q_len, heads, head_dim), dtype = _array(arguments.get("q"), "q")
    (*_, kv_len, kv_heads, _), _ = _array(arguments.get("k"), "k")
    (*_, v_head_dim), _ = _array(arguments.get("v"), "v")
    for name, asked in {
        "dropout": arguments.get("dropout_mask") is not None,
        "pages": arguments.get("paging_info") is not None,
        "explicit indices": arguments.get("q_indices") is not None or arguments.get("k_indices") is not None,
        "an output that is not normalised": arguments.get("normalize_output") is False,
    }.items():
        if asked:
            raise UnsupportedError(f"its call has {name}")
    mask = arguments.get("mask") or {}
    if any(mask.get(name) is not None for name in ("q_start", "q_end", "k_start", "k_end")):
        raise UnsupportedError("its call has a mask of ranges")
    sizes = (*batch, heads, q_len, kv_len)
    causal = mask.get("causal_mask")
    if causal is not None and q_len != kv_len:
        raise UnsupportedError("its call has a causal mask at the top left and lengths that differ")
    dense, bias = mask.get("bool_mask"), arguments.get("bias")
    return Problem(
        batch=math.prod(batch),
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        v_head_dim=v_head_dim,
        dtype=dtype,
        causal=bool(causal) and causal["offset"] == 0,
        window=_window(causal),
        mask_dims=None if dense is None else _dims(dense, sizes),
        bias_dims=None if bias is None else _dims(bias, sizes),
        soft_cap=arguments.get("logits_soft_cap"),
        logits_dtype=arguments.get("logits_dtype") or "float32",
        precision=_precision(arguments.get("precision")) if dtype == "float32" else "default",
    )


def _window(causal: Mapping[str, Any] | None) -> tuple[int | None, int | None]:
    """Row ``i`` sees ``window_size`` keys that end ``offset`` after its own."""
    if causal is None:
        return (None, None)
    offset, size = causal["offset"], causal.get("window_size")
    return (None if size is None else size - offset - 1, offset or None)


def _array(text: Any, name: str) -> tuple[list[int], str]:
    found = _ARRAY.fullmatch(text) if isinstance(text, str) else None
    if found is None or found[1] not in (*_DTYPES, "bool"):
        raise UnsupportedError(f"its call has {name} of another kind than bfloat16, float16 or float32")
    return [int(size) for size in found[2].split(",") if size], _DTYPES.get(found[1], found[1])


def _dims(text: Any, sizes: tuple[int, ...]) -> str:
    """One letter an axis, ``"1"`` where it broadcasts; missing axes broadcast, axes of the batch are one here."""
    shape, _ = _array(text, "a mask or bias")
    whole = (1,) * (len(sizes) - len(shape)) + tuple(shape)
    batch, rest = whole[:-3], whole[-3:]
    fits = len(whole) == len(sizes) and all(n in (1, size) for n, size in zip(rest, sizes[-3:], strict=True))
    if not fits or (batch != sizes[:-3] and set(batch) - {1}):
        raise UnsupportedError("its call has a mask or bias that does not broadcast here")
    axes = (math.prod(batch), *rest)
    return "".join("1" if n == 1 else letter for n, letter in zip(axes, "bnts", strict=True))


def _precision(value: Any) -> str:
    first = value
    while isinstance(first, list) and first:
        first = first[0]
    if first not in _PRECISIONS:
        raise UnsupportedError(f"its call has the precision {first}")
    return _PRECISIONS[first]
