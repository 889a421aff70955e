"""Reads XLA's custom calls for cuDNN attention: those of JAX's ``implementation="cudnn"`` and of this package."""

import json
import re
from typing import Any

from attn_tune.ops.fields.arguments import dims_of
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.program_graph import Value
from attn_tune.schema.config import is_mapping
from attn_tune.schema.errors import UsageError

_TARGET = re.compile(r"__cudnn\$fmha(?P<bias>ScaleBias)?Softmax(?P<drop>Dropout)?(?P<bwd>Backward)?$")
# Where the bias stands among the operands: after q, k, v; in the backward also after the residual and the cotangent.
_BIAS_AT = {"fwd": 3, "bwd": 5}


def is_cudnn(value: Value) -> bool:
    """Whether a custom call is cuDNN's attention."""
    return str(value.attributes["name"]).startswith("__cudnn$fmha")


def read_cudnn(value: Value) -> tuple[Problem, str]:
    """Reads the problem and direction of one call.

    Raises:
      UsageError: a variant without a signature, such as 8-bit floats or a paged cache.
    """
    name = str(value.attributes["name"])
    match = _TARGET.match(name)
    if match is None:
        raise UsageError(f"{name} is a variant that no signature says")
    direction = "bwd" if match["bwd"] else "fwd"
    config = _config(value)
    if config.get("is_paged_attention"):
        raise UsageError("its keys and values are paged")
    query, key, values = value.inputs[:3]
    # Lengths stand before heads unless the products say otherwise.
    heads_first = _heads_first(config)
    heads, length = (1, 2) if heads_first else (2, 1)
    if any(len(v.shape) != 4 for v in (query, key, values)):
        raise UsageError(f"{name} has operands of other than 4 axes")
    mask = str(config.get("mask_type", "NO_MASK"))
    causal = mask.endswith("CAUSAL")
    q_len, kv_len = query.shape[length], key.shape[length]
    if mask not in ("NO_MASK", "CAUSAL", "PADDING", "PADDING_CAUSAL"):
        raise UsageError(f"its mask type {mask} has no signature")
    window = int(config.get("sliding_window_length") or 0)
    place = _BIAS_AT[direction]
    bias = value.inputs[place] if match["bias"] and len(value.inputs) > place else None
    padded, mask_dims = mask.startswith("PADDING"), None
    if causal and q_len != kv_len:
        # cuDNN's edge starts at the top left, ours ends at the bottom right: for us that is a dense mask.
        causal, padded, mask_dims = False, False, "b1ts" if padded else "11ts"
    problem = Problem(
        batch=query.shape[0],
        q_len=q_len,
        kv_len=kv_len,
        num_q_heads=query.shape[heads],
        num_kv_heads=key.shape[heads],
        head_dim=query.shape[3],
        v_head_dim=values.shape[3],
        dtype=query.dtype,
        causal=causal,
        window=(window - 1 if window else None, None),
        mask_dims=mask_dims,
        has_segments=padded,
        has_lengths=padded,
        bias_dims=dims_of(bias),  # type: ignore[arg-type]
        dropout_rate=0.5 if match["drop"] and config.get("dropout_rate") else 0.0,
    )
    return problem, direction


def _config(value: Value) -> dict[str, Any]:
    """The call's configuration, wherever the printer put it."""
    texts = value.attributes.get("config", {})
    for text in texts.values() if is_mapping(texts) else [texts]:
        start = str(text).find("{")
        if start < 0:
            continue
        plain = re.sub(r"\\([0-9A-F]{2})", lambda m: chr(int(m[1], 16)), str(text)[start:])
        try:
            data, _ = json.JSONDecoder().raw_decode(plain)
        except ValueError:
            continue
        if is_mapping(data) and "cudnn_fmha_backend_config" in data:
            return data["cudnn_fmha_backend_config"]
    raise UsageError(f"{value.attributes['name']} stands there without its configuration")


def _heads_first(config: dict[str, Any]) -> bool:
    none: dict[str, Any] = {}
    numbers = config.get("bmm1_dot_dimension_numbers") or config.get("bmm2_grad_gemm2_dot_dimension_numbers") or none
    batch = [int(axis) for axis in numbers.get("lhs_batch_dimensions", ())]
    return batch == [0, 1]
