"""Problems that cuDNN's attention over pages cannot do, known before anything is compiled.

The limits of versions and head dims are those of cuDNN's frontend (``sdpa_support_surface.h``) and of the table of
decoding in its manual.
"""

from attn_tune.kernels.lang.libraries.cudnn import Version, cudnn_version, refuses_device
from attn_tune.ops.fields.cache import SAME
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.schema.device import Device

_PAGES = (9, 5, 0)
_KNOWN_BUGS = ((9, 10, 0), (9, 10, 1))
# Head dims above 128 over pages.
_WIDE = (9, 10, 2)


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that cuDNN cannot do this problem in the contract of the op, or None."""
    version = cudnn_version()
    return (
        refuses_device(device, version)
        or _of_features(problem)
        or _of_cache(problem)
        or _of_shape(problem, device.compute_capability or 0, version or (0, 0, 0))
    )


def _of_features(p: Problem) -> str | None:
    if p.dtype == "float32":
        return "cuDNN's fused attention takes bfloat16 and float16 only"
    if p.kv_dtype != SAME:
        return f"its pages hold the dtype of the queries, not codes in {p.kv_dtype}"
    if p.window is not None:
        return "it aligns windows at the top left, where one query would see the first token only"
    if p.soft_cap is not None:
        return "it has no tanh soft cap"
    return None


def _of_cache(p: Problem) -> str | None:
    if p.layout not in ("nhd", "hnd"):
        return f"layout={p.layout}: its pages are [pages, P, K, H] (nhd) or [pages, K, P, H] (hnd)"
    if p.layout == "hnd" and not p.page_size:
        return "layout=hnd without pages: to cut a contiguous cache into pages would copy it; nhd it can do"
    if p.page_size & (p.page_size - 1):
        return f"page={p.page_size} is no power of two: its blocks of keys hold whole pages"
    return None


def _of_shape(p: Problem, capability: int, version: Version) -> str | None:
    text = ".".join(map(str, version))
    if version < _PAGES:
        return f"attention over pages needs cuDNN 9.5, this is {text}"
    if version in _KNOWN_BUGS:
        return f"cuDNN {text} has known bugs in attention; 9.10.2 has not"
    if p.head_dim != p.v_head_dim:
        return f"h={p.head_dim} and v={p.v_head_dim} must be equal over pages"
    wide = capability // 10 == 9 and version >= _WIDE
    limit = 256 if wide else 128
    if p.head_dim % 8 or p.head_dim > limit:
        return f"h={p.head_dim} must be a multiple of 8 and at most {limit} on sm_{capability} with cuDNN {text}"
    return None
