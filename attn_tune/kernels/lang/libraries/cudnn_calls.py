"""XLA's custom calls for cuDNN attention, built here: their arguments as XLA's compiler reads them.

JAX wraps the same calls in private functions whose arguments change between releases, and offers no public backward
from given residuals. The targets and the configuration are XLA's (``xla/service/gpu/cublas_cudnn.h`` and
``backend_configs.proto``, message ``CudnnfMHABackendConfig``).
"""

import json
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_FORWARD = {False: "__cudnn$fmhaSoftmax", True: "__cudnn$fmhaScaleBiasSoftmax"}
_BACKWARD = {False: "__cudnn$fmhaSoftmaxBackward", True: "__cudnn$fmhaScaleBiasSoftmaxBackward"}
_ELEMENTS = {"bfloat16": "BF16", "float16": "F16"}

# cuDNN writes [B, N, T, H] with the memory order of [B, T, N, H]: axes from the slowest to the fastest.
_BTNH_ORDER = (0, 2, 1, 3)
# Contracted and batch axes of each product of BTNH and BNTS operands: (lhs, rhs), (lhs batch, rhs batch).
_FORWARD_DIMS = {
    "bmm1": ((3, 3), ((0, 2), (0, 2))),
    "bmm2": ((3, 1), ((0, 1), (0, 2))),
}
_BACKWARD_DIMS = {
    "bmm1_grad_gemm1": ((2, 1), ((0, 1), (0, 2))),
    "bmm1_grad_gemm2": ((3, 1), ((0, 1), (0, 2))),
    "bmm2_grad_gemm1": ((2, 1), ((0, 1), (0, 2))),
    "bmm2_grad_gemm2": ((3, 3), ((0, 2), (0, 2))),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The settings of both calls. ``window`` counts the positions that a causal row sees; 0 is unbounded.

    ``padded``: both take the keys' lengths, [B] int32; every query counts.
    """

    scale: float
    causal: bool = False
    padded: bool = False
    window: int = 0

    @property
    def mask_type(self) -> str:
        """XLA's name."""
        names = {
            (False, False): "NO_MASK",
            (False, True): "CAUSAL",
            (True, False): "PADDING",
            (True, True): "PADDING_CAUSAL",
        }
        return names[self.padded, self.causal]


def forward_call(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    kv_lengths: Array | None,
    settings: Settings,
    *,
    with_lse: bool = True,
) -> tuple[Float[Array, "B T N V"], Float[Array, "B N T"] | None]:
    """``(out, lse)``; without its second result cuDNN leaves out the statistics."""
    batch, q_len, heads, _ = q.shape
    out_shape = (batch, heads, q_len, v.shape[3])
    config = _config(q, k, settings, _FORWARD_DIMS)
    lse_type = jax.ShapeDtypeStruct((batch, heads, q_len), jnp.float32)
    out, *rest = jax.ffi.ffi_call(
        _FORWARD[bias is not None],
        (jax.ShapeDtypeStruct(out_shape, q.dtype), *([lse_type] * with_lse), _WORKSPACE),
        output_layouts=(_BTNH_ORDER, *([(0, 1, 2)] * with_lse), (0,)),
        custom_call_api_version=2,
        legacy_backend_config=config,
    )(q, k, v, *_given(bias), *_lengths(q, kv_lengths))
    return out.transpose(0, 2, 1, 3), rest[0] if with_lse else None


def backward_call(
    q: Array,
    k: Array,
    v: Array,
    bias: Array | None,
    kv_lengths: Array | None,
    out: Array,
    lse: Array,
    dout: Array,
    settings: Settings,
) -> dict[str, Array]:
    """``dq``, ``dk``, ``dv``, and ``dbias`` iff there is a bias, from the residuals of any forward."""

    def bnth(x: Array) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((x.shape[0], x.shape[2], x.shape[1], x.shape[3]), x.dtype)

    results = [bnth(q), bnth(k), bnth(v)]
    layouts: list[tuple[int, ...]] = [_BTNH_ORDER] * 3
    if bias is not None:
        results.append(jax.ShapeDtypeStruct(bias.shape, bias.dtype))
        layouts.append((0, 1, 2, 3))
    config = _config(q, k, settings, _BACKWARD_DIMS)
    dq, dk, dv, *rest = jax.ffi.ffi_call(
        _BACKWARD[bias is not None],
        (*results, _WORKSPACE),
        output_layouts=(*layouts, (0,)),
        custom_call_api_version=2,
        legacy_backend_config=config,
    )(q, k, v, lse, dout, *_given(bias), out, *_lengths(q, kv_lengths))
    grads = {"dq": dq, "dk": dk, "dv": dv}
    grads = {name: grad.transpose(0, 2, 1, 3) for name, grad in grads.items()}
    if bias is not None:
        grads["dbias"] = rest[0]
    return grads


def _given(array: Array | None) -> tuple[Array, ...]:
    return () if array is None else (array,)


def _lengths(q: Array, kv_lengths: Array | None) -> tuple[Array, ...]:
    """Those of the queries and of the keys."""
    if kv_lengths is None:
        return ()
    return jnp.full(kv_lengths.shape, q.shape[1], jnp.int32), kv_lengths


# XLA finds out how much scratch memory the chosen engine needs and resizes this result.
_WORKSPACE = jax.ShapeDtypeStruct((0,), jnp.uint8)


def _config(q: Array, k: Array, settings: Settings, products: dict[str, Any]) -> str:
    batch, q_len, heads, _ = q.shape
    logits = [batch, heads, q_len, k.shape[1]]
    fmha: dict[str, Any] = {
        "algorithm": {
            "algo_id": "0",
            "math_type": "TENSOR_OP_MATH",
            "tuning_knobs": {"17": "1", "24": "0"},
            "is_cudnn_frontend": True,
            "workspace_size": "0",
        },
        "fmha_scale": settings.scale,
        "intermediate_tensor_shape": _shape_proto(_ELEMENTS[q.dtype.name], logits),
        "is_flash_attention": True,
        "mask_type": settings.mask_type,
        "dropout_rate": 0.0,
        "seed": 42,
        "sliding_window_length": settings.window,
        "max_seg_per_batch": 1,
        "is_paged_attention": False,
    }
    for name, ((lhs, rhs), (lhs_batch, rhs_batch)) in products.items():
        fmha[f"{name}_dot_dimension_numbers"] = {
            "lhs_contracting_dimensions": [str(lhs)],
            "rhs_contracting_dimensions": [str(rhs)],
            "lhs_batch_dimensions": [str(axis) for axis in lhs_batch],
            "rhs_batch_dimensions": [str(axis) for axis in rhs_batch],
        }
    return json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": fmha})


def _shape_proto(element: str, shape: list[int]) -> dict[str, Any]:
    return {
        "element_type": element,
        "dimensions": [str(size) for size in shape],
        "tuple_shapes": [],
        "layout": {
            "dim_level_types": [],
            "dim_unique": [],
            "dim_ordered": [],
            "minor_to_major": [str(axis) for axis in reversed(range(len(shape)))],
            "tiles": [],
            "element_size_in_bits": "0",
            "memory_space": "0",
            "index_primitive_type": "PRIMITIVE_TYPE_INVALID",
            "pointer_primitive_type": "PRIMITIVE_TYPE_INVALID",
            "dynamic_shape_metadata_prefix_bytes": "0",
        },
        "is_dynamic_dimension": [False] * len(shape),
    }
