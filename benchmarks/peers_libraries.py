"""Other projects' flash attention, each by its own public call with its own defaults.

Each function returns ``attend(arrays) -> out``, or a sentence that says why the library cannot do the problem. What has
no name in a library's call but can be written as a dense mask is given as one, made beforehand: that is what its user
would do.
"""

import importlib.util
import warnings
from collections.abc import Mapping
from typing import Any

from attn_tune.ops.flash_attention.problem import Problem

type Arrays = Mapping[str, Any]

_SIXTEEN_BITS = ("bfloat16", "float16")
# Bytes of shared memory a block can have on sm_90 (CUDA C++ programming guide), less what is kept for barriers.
_HOPPER_SHARED_BYTES = 232_448 - 4096


def cudnn(p: Problem, x: Arrays) -> Any:
    """``jax.nn.dot_product_attention(implementation="cudnn")``."""
    import jax

    if reason := _lacks(p, "jax.nn.dot_product_attention", "cap", "sinks", "dropout"):
        return reason
    if p.dtype not in _SIXTEEN_BITS:
        return f"cuDNN attention has no {p.dtype}"
    options, mask, reason = _masking(p, x, "jax.nn.dot_product_attention")
    if reason:
        return reason
    window = options.get("local_window_size")
    if window is not None and window[1] != 0:
        return "cuDNN's window needs a causal edge on the right"

    def attend(x: Arrays) -> Any:
        return jax.nn.dot_product_attention(
            x["q"],
            x["k"],
            x["v"],
            x.get("bias"),
            x["dense"] if mask else None,
            scale=p.scale,
            key_value_seq_lengths=x.get("kv_lengths"),
            implementation="cudnn",
            **options,
        )

    return attend


def tokamax(implementation: str, p: Problem, x: Arrays) -> Any:
    """``tokamax.dot_product_attention``, with the configs that it ships or its heuristics."""
    if importlib.util.find_spec("tokamax") is None:
        return "tokamax is not installed"
    if reason := _lacks(p, "tokamax.dot_product_attention", "sinks", "dropout"):
        return reason
    if implementation == "mosaic" and p.dtype not in _SIXTEEN_BITS:
        return "tokamax's Mosaic GPU attention rounds float32 to 16 bits"
    if p.bias_dims is not None and p.soft_cap is not None:
        return "tokamax caps the logits after it adds the bias"
    left, right = p.bounds
    if p.q_len != p.kv_len and right is not None and not p.has_segments:
        # Its windows stand at the top left and may reach ahead: that shifts the causal edge without a dense mask.
        reach = p.kv_len if left is None else left - p.offset
        options, mask = {"local_window_size": (reach, right + p.offset)}, False
    else:
        options, mask, reason = _masking(p, x, "tokamax.dot_product_attention")
        if reason:
            return reason
    from tokamax import dot_product_attention

    def attend(x: Arrays) -> Any:
        return dot_product_attention(
            x["q"],
            x["k"],
            x["v"],
            x.get("bias"),
            x["dense"] if mask else None,
            scale=p.scale,
            key_value_seq_lengths=x.get("kv_lengths"),
            logits_soft_cap=p.soft_cap,
            implementation=implementation,
            **options,
        )

    return attend


def jax_mosaic(p: Problem, x: Arrays) -> Any:
    """JAX's flash attention in Mosaic GPU, with the blocks that its own ``main`` would time.

    It scales no logits, so the queries are scaled for it; its shared memory is float16 for operands of any type.
    """
    name = "JAX's Mosaic GPU attention"
    if reason := _lacks(p, name, "cap", "sinks", "dropout", "bias", "segments", "window"):
        return reason
    if p.dtype != "float16":
        return f"{name} allocates float16: {p.dtype} does not compile"
    if p.q_len != p.kv_len and p.causal:
        return f"{name} aligns masks at the top left"
    if p.head_dim % 64 or p.head_dim != p.v_head_dim:
        return f"{name} needs one head dim that is a multiple of 64, not {p.head_dim} and {p.v_head_dim}"
    try:
        from jax.experimental.pallas.ops.gpu import attention_mgpu as library
    except ImportError as error:
        return f"{name} is not in this release of JAX: {error}"
    config = library.TuningConfig(
        block_q=64,
        block_kv=next((b for b in (256, 128) if _fits(b, p.head_dim) and p.kv_len % b == 0), 64),
        max_concurrent_steps=2,
        causal=p.causal,
        **dict.fromkeys(("block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq"), 64),
    )

    def attend(x: Arrays) -> Any:
        return library.attention((x["q"] * p.scale).astype(p.dtype), x["k"], x["v"], config)

    return attend


def _fits(block_kv: int, head_dim: int) -> bool:
    """Two steps of keys and values beside the queries of two warpgroups."""
    return 2 * head_dim * (2 * 2 * block_kv + 2 * 64) <= _HOPPER_SHARED_BYTES


def jax_triton(p: Problem, x: Arrays) -> Any:
    """JAX's ``pallas.ops.gpu.attention.mha``, with its default blocks."""
    name = "JAX's Pallas Triton attention"
    if reason := _lacks(p, name, "cap", "sinks", "dropout", "bias", "window"):
        return reason
    if p.num_q_heads != p.num_kv_heads:
        return f"{name} needs as many key heads as query heads"
    if p.q_len != p.kv_len and (p.causal or p.has_segments):
        return f"{name} aligns masks at the top left"
    if "kv_lengths" in x:
        return f"{name} has one set of segment ids for queries and keys: it cannot hide keys alone"
    if p.head_dim != p.v_head_dim:
        return f"{name} needs values as wide as keys"
    with warnings.catch_warnings():
        # It says that it is deprecated in favour of tokamax.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            from jax.experimental.pallas.ops.gpu.attention import mha
        except ImportError as error:
            return f"{name} is not in this release of JAX: {error}"

    def attend(x: Arrays) -> Any:
        return mha(x["q"], x["k"], x["v"], x.get("q_segments"), sm_scale=p.scale, causal=p.causal)

    return attend


def ejkernel(p: Problem, x: Arrays) -> Any:
    """``ejkernel.modules.flash_attention`` with its Triton kernel."""
    if importlib.util.find_spec("ejkernel") is None:
        return "ejkernel is not installed"
    if p.dtype not in _SIXTEEN_BITS:
        return "ejkernel's Triton kernel takes float16 and bfloat16"
    import jax.numpy as jnp
    from ejkernel.modules import flash_attention

    window = None
    if p.window != (None, None):
        left, right = p.bounds
        window = (left if left is not None else p.kv_len, right or 0)
    logits = (p.batch, p.num_q_heads, p.q_len, p.kv_len)

    def attend(x: Arrays) -> Any:
        info, offsets = None, x.get("offsets")
        if "q_segments" in x and offsets is None:
            from ejkernel.types.mask import MaskInfo

            info = MaskInfo.from_segments(x["q_segments"], x["kv_segments"])
        return flash_attention(
            x["q"],
            x["k"],
            x["v"],
            jnp.broadcast_to(x["bias"], logits) if "bias" in x else None,
            offsets,
            offsets,
            x.get("sinks"),
            mask_info=info,
            dropout_prob=p.dropout_rate,
            dropout_seed=0 if p.dropout_rate > 0 else None,
            causal=p.causal,
            sliding_window=window,
            logits_soft_cap=p.soft_cap,
            softmax_scale=p.scale,
            platform="triton",
        )

    return attend


def fa4(p: Problem, x: Arrays) -> Any:
    """``fa4_jax.flash_attn``: FlashAttention-4, whose tiles follow from the head dim alone."""
    if importlib.util.find_spec("fa4_jax") is None:
        return "fa4-jax is not installed"
    if reason := _lacks(p, "fa4-jax", "cap", "sinks", "dropout", "bias") or _of_two_bytes(p, "fa4-jax"):
        return reason
    if p.has_segments and "offsets" not in x:
        return "fa4-jax takes documents end to end in a batch of one, or a function of indices"
    from fa4_jax import flash_attn, flash_attn_varlen

    options = {"causal": p.causal, "scale": p.scale}
    if p.window != (None, None):
        options["window_size"] = p.bounds

    def attend(x: Arrays) -> Any:
        q, k, v = x["q"], x["k"], x["v"]
        if "offsets" not in x:
            return flash_attn(q, k, v, **options)
        return flash_attn_varlen(q[0], k[0], v[0], x["offsets"], x["offsets"], **options)[None]

    return attend


def fa3(p: Problem, x: Arrays) -> Any:
    """``flash_attn3_jax.flash_mha``: FlashAttention-3, compiled for head dim 128 in its published wheels."""
    name = "flash-attn3-jax"
    if importlib.util.find_spec("flash_attn3_jax") is None:
        return f"{name} is not installed"
    lacking = _lacks(p, name, "cap", "sinks", "dropout", "bias", "segments")
    if reason := lacking or _of_two_bytes(p, name):
        return reason
    if (p.head_dim, p.v_head_dim) != (128, 128):
        return f"the wheel of {name} is for head dim 128, not {p.head_dim} and {p.v_head_dim}"
    from flash_attn3_jax import flash_mha

    # It writes -1 where nothing is hidden on that side.
    window = tuple(-1 if edge is None else edge for edge in p.bounds) if p.window != (None, None) else (-1, -1)

    def attend(x: Arrays) -> Any:
        return flash_mha(x["q"], x["k"], x["v"], softmax_scale=p.scale, is_causal=p.causal, window_size=window)

    return attend


def _of_two_bytes(p: Problem, name: str) -> str | None:
    return None if p.dtype in _SIXTEEN_BITS else f"{name} takes float16 and bfloat16"


def _lacks(p: Problem, name: str, *features: str) -> str | None:
    """The first of ``features`` that the problem asks for."""
    asked = {
        "cap": ("soft cap", p.soft_cap is not None),
        "sinks": ("sinks", p.has_sinks),
        "dropout": ("dropout", p.dropout_rate > 0),
        "bias": ("bias", p.bias_dims is not None),
        "segments": ("segments or lengths", p.has_segments),
        "window": ("window", p.window != (None, None)),
    }
    lacking = next((asked[f][0] for f in features if asked[f][1]), None)
    return None if lacking is None else f"{name} has no {lacking}"


def _masking(p: Problem, x: Arrays, name: str) -> tuple[dict[str, Any], bool, str | None]:
    """``is_causal`` and ``local_window_size`` of jax.nn's call, whether it takes the dense mask, and why it cannot."""
    left, right = p.window
    shifted = p.q_len != p.kv_len and p.bounds != (None, None)
    mask = shifted or (p.has_segments and "kv_lengths" not in x)
    if mask and "dense" not in x:
        return (
            {},
            mask,
            f"{name} knows this as a dense mask only, of {p.q_len} x {p.kv_len} entries",
        )
    if shifted:
        # It aligns its own masks at the top left.
        return {}, mask, None
    if (left is None) != (right is None) and not p.causal:
        return {}, mask, f"{name} has no one-sided window"
    window = None if left is None else (left, right or 0)
    return {"is_causal": p.causal, "local_window_size": window}, mask, None
