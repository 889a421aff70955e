"""The order of untuned kernels: which one a problem should prefer that no pack knows.

On Hopper, kernels for CUDA go by the time that each should take with its untuned config (``costs.py``), but for
forwards of few queries, which are bound by memory: those go by rules. Everything else has a fixed place.
"""

import functools

from attn_tune.kernels.flash_attention import costs
from attn_tune.ops.contract import load
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# Kernels are imported by name and on first use: each of them imports this module.
_OP = "attn_tune.kernels.flash_attention"
# Places by platform, highest first; a kernel of this package that is absent has place 0.
_PLACES: dict[str, dict[str, int]] = {
    "cuda": {
        "cudnn": 60,
        "triton_split": 55,
        "triton": 50,
        "triton_hopper": 45,
        "triton_hopper_fused": 42,
        "triton_fused": 40,
        "xla": 1,
        "mosaic_gpu": -10,
        "tokamax_mosaic": -20,
        "tokamax_triton": -30,
        "fa4": -40,
        "fa4_deterministic": -50,
    },
    "tpu": {
        "pallas_tpu_splash": 50,
        "pallas_tpu_splash_fused": 40,
        "pallas_tpu_flash": 30,
        "xla": 1,
    },
    "rocm": {"xla": 1},
    "cpu": {"xla": 10},
}
KNOWN = frozenset(kernel for places in _PLACES.values() for kernel in places)
# The kernels that ``_order`` may hold.
_TIMED = ("cudnn", "triton_split", "triton", "triton_hopper", "triton_hopper_fused", "fa4", "fa4_deterministic")
# `triton_hopper_fused` has no fitted figures. In races and finals (benchmarks/results/h200/flash_backward*.json,
# sweep_fa4.txt and sweep_fused.txt) it took at most this part of cuDNN's time (0.79 to 0.88) with heads of 64 and so
# many rows of all query heads, 1 to 8 query heads a key head; with fewer rows it took 1.01 times cuDNN's. With heads of
# 128, a causal mask and so many keys at most it took these parts, by query heads a key head; with longer rows 0.97 to
# 1.01, with more heads 0.96 to 1.02, and on full rows 0.99 to 1.04. Where cuDNN cannot, for a soft cap, dropout,
# documents or a causal mask over longer keys, it took 0.68 to 0.88 times that of `triton` (at most the part by head
# dim), but 1.23 times for a soft cap with heads of 64; on full rows with lengths, which cuDNN is given copies for, 0.92
# times cuDNN's.
_FUSED_OF_CUDNN, _FUSED_PADDED_OF_CUDNN, _FUSED_ROWS = 0.88, 0.92, 524288
_FUSED_CAUSAL_OF_CUDNN, _FUSED_CAUSAL_ROWS, _FUSED_CAUSAL_KEYS = {1: 0.93, 2: 0.90, 4: 0.93}, 262144, 4096
_FUSED_OF_TRITON, _FUSED_FEATURED_ROWS, _FUSED_FEATURED_KEYS = {64: 0.88, 128: 0.83, 256: 0.72}, 262144, 4096
_FUSED_GROUPS = range(1, 9)
# Nor have the kernels of FlashAttention-4: in finals (sweep_fa4.txt) and a race (fa4_peers.md) they took at most about
# these parts, by head dim, of cuDNN's time backward (the deterministic one more where query heads share keys, whose
# gradients it adds in order too), and this part of that of `triton_hopper` for forwards over many keys without a mask.
_FA4_OF_CUDNN = {"fa4": {64: 0.85, 128: 0.91}, "fa4_deterministic": {64: 0.86, 128: 0.99}}
_FA4_OF_CUDNN_GROUPED = _FA4_OF_CUDNN | {"fa4_deterministic": {64: 0.97, 128: 1.06}}
_FA4_OF_HOPPER = 0.96
# Of that of `triton` backward, where documents are given by their offsets (sweep_fa4.txt).
_FA4_OF_TRITON = {"fa4": {64: 0.89, 128: 0.82}, "fa4_deterministic": {64: 1.06, 128: 0.82}}
_FA4_OF_TRITON_GROUPED = _FA4_OF_TRITON | {"fa4_deterministic": {64: 1.06, 128: 0.99}}
# And of that of `triton` with a soft cap (flash_backward_features.json, sweep_fa4.txt), at most.
_FA4_CAPPED_OF_TRITON = {"fa4": {64: 0.64, 128: 0.63, 256: 0.90}, "fa4_deterministic": {64: 0.64, 128: 0.66, 256: 0.93}}
_FA4_ROWS, _FA4_FORWARD_KEYS = 262144, 4096
# Sequences of all these races are so long.
_RACED_LENGTH = 1024
# What a problem has that has nothing but a causal mask, or none, and sinks, which cost nothing.
_SIZES = ("batch", "q_len", "kv_len", "num_q_heads", "num_kv_heads", "head_dim", "v_head_dim", "scale", "dtype")
_PLAIN = (*_SIZES, "causal", "has_sinks", "needs_lse", "has_lse_gradient")
# Features that `triton_hopper_fused` was raced with, by head dim.
_FUSED_FEATURES = {
    64: ("dropout_rate", "has_segments", "has_lengths", "has_offsets"),
    128: ("soft_cap", "dropout_rate", "has_segments", "has_lengths", "has_offsets"),
    256: ("soft_cap", "dropout_rate"),
}
# The place of the first kernel that goes by its expected time.
_FIRST = 70
# Microseconds up to which reading all keys of packed documents takes less than finding those that count.
_READ_ALL_US = 12


def place(kernel: str, problem: Problem, direction: str, device: Device) -> int | None:
    """The place of ``kernel`` among untuned kernels, highest first; None for a kernel of another package."""
    if kernel not in KNOWN:
        return None
    if device.platform == "cuda" and costs.known(device):
        order = _order(problem, direction, device) if kernel in _TIMED else ()
        if kernel in order:
            return _FIRST - order.index(kernel)
    return _PLACES.get(device.platform, {}).get(kernel, 0)


@functools.lru_cache(maxsize=4096)
def _order(problem: Problem, direction: str, device: Device) -> tuple[str, ...]:
    """The kernels for a direction, the preferred one first."""
    if direction == "fwd" and costs.has_few_queries(problem):
        return _of_few_queries(problem, device)
    expected = _backward_us(problem, device) if direction == "bwd" else _forward_us(problem, device)
    return tuple(sorted(expected, key=expected.__getitem__))


def _of_few_queries(problem: Problem, device: Device) -> tuple[str, ...]:
    if costs.has_documents(problem) and _split_us(problem, device) > _READ_ALL_US:
        # `triton_split` and cuDNN read all of them, the others only what a row may see.
        return "triton", "triton_hopper", "triton_split", "cudnn"
    if problem.has_lengths:
        return "triton_split", "triton", "triton_hopper", "cudnn"
    return "triton_split", "cudnn", "triton", "triton_hopper"


def _forward_us(problem: Problem, device: Device) -> dict[str, float]:
    """Microseconds that a forward of each kernel should take."""
    launches = {
        "triton": _triton_us(problem, device, 0),
        "triton_hopper": load(f"{_OP}.triton_hopper.space:least")(problem, device)[0],
        "cudnn": costs.launch_us(costs.Launch("cudnn/fwd", ()), problem, device),
    }
    found = {k: us + costs.call_us(f"{k}/fwd", problem, device) for k, us in launches.items()}
    is_raced = _fa4_was_raced(problem) and problem.head_dim in _FA4_OF_CUDNN["fa4"]
    if is_raced and not problem.causal and problem.kv_len >= _FA4_FORWARD_KEYS:
        found["fa4"] = _FA4_OF_HOPPER * found["triton_hopper"]
    return found | {"triton_split": _split_us(problem, device)}


def _backward_us(problem: Problem, device: Device) -> dict[str, float]:
    """Microseconds that a backward of each kernel should take."""
    launches = {
        "triton": sum(_triton_us(problem, device, column) for column in (1, 2)),
        "cudnn": costs.launch_us(costs.Launch("cudnn/bwd", ()), problem, device),
    }
    found = {k: us + costs.call_us(f"{k}/bwd", problem, device) for k, us in launches.items()}
    if fused := _fused_part(problem):
        reference, share = fused
        found["triton_hopper_fused"] = share * found[reference]
    parts = _fa4_parts(problem)
    return found | {name: share * found[reference] for name, (reference, share) in parts.items()}


def _fused_part(problem: Problem) -> tuple[str, float] | None:
    """The kernel of whose time ``triton_hopper_fused`` takes a part, and that part; None where no race says so."""
    width = costs.width(problem)
    if width not in _FUSED_FEATURES or problem.group_size not in _FUSED_GROUPS:
        return None
    if problem.q_len == problem.kv_len and _is_like(problem, _FUSED_ROWS) and width == 64:
        return "cudnn", _FUSED_OF_CUDNN
    if width == 128 and problem.causal and problem.q_len == problem.kv_len <= _FUSED_CAUSAL_KEYS:
        share = _FUSED_CAUSAL_OF_CUDNN.get(problem.group_size)
        if share and _is_like(problem, _FUSED_CAUSAL_ROWS):
            return "cudnn", share
    features = _FUSED_FEATURES[width]
    is_longer = problem.causal and problem.offset > 0 and width <= 128
    has_feature = is_longer or any(getattr(problem, name) for name in features)
    if has_feature and problem.kv_len >= _FUSED_FEATURED_KEYS and _is_like(problem, _FUSED_FEATURED_ROWS, *features):
        is_padded = problem.has_lengths and not problem.causal
        return ("cudnn", _FUSED_PADDED_OF_CUDNN) if is_padded else ("triton", _FUSED_OF_TRITON[width])
    return None


def _fa4_parts(problem: Problem) -> dict[str, tuple[str, float]]:
    """For backwards of FlashAttention-4 the kernel of whose time each takes a part, and that part, if races say so."""
    is_single = problem.group_size == 1
    features: tuple[str, ...]
    if costs.has_fast_tanh(problem):
        reference, features, parts = "triton", ("soft_cap",), _FA4_CAPPED_OF_TRITON
    elif problem.has_offsets:
        reference, features = "triton", ("has_segments", "has_offsets")
        parts = _FA4_OF_TRITON if is_single else _FA4_OF_TRITON_GROUPED
    else:
        # With a soft cap in float16, for which their tanh is too coarse, no race is like it.
        reference, features = "cudnn", ()
        parts = _FA4_OF_CUDNN if is_single else _FA4_OF_CUDNN_GROUPED
    if not _fa4_was_raced(problem, *features):
        return {}
    dim = problem.head_dim
    return {name: (reference, part[dim]) for name, part in parts.items() if dim in part}


def _fa4_was_raced(problem: Problem, *features: str) -> bool:
    """Whether the kernels of FlashAttention-4 were raced at the like, with equal head dims."""
    return _is_like(problem, _FA4_ROWS, *features) and problem.head_dim == problem.v_head_dim


def _is_like(problem: Problem, rows: int, *features: str) -> bool:
    """Whether it has no feature but these, long sequences, and at least ``rows`` rows of all query heads."""
    plain = Problem(**{name: getattr(problem, name) for name in (*_PLAIN, *features)})
    is_long = problem.q_len >= _RACED_LENGTH and problem.offset >= 0
    # With heads of 256 a row is twice the work, and half of the rows were raced.
    least = rows // max(1, problem.head_dim // 128)
    return problem == plain and is_long and problem.batch * problem.num_q_heads * problem.q_len >= least


def _triton_us(problem: Problem, device: Device, column: int) -> float:
    """Microseconds of one launch of ``triton``: 0 is the forward, 1 dq and 2 dk/dv."""
    return load(f"{_OP}.triton.heuristic:least")(problem, device, column)[0]


def _split_us(problem: Problem, device: Device) -> float:
    return load(f"{_OP}.triton_split.space:untuned")(problem, device)[0]
