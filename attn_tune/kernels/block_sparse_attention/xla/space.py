"""The configs that the XLA kernel may take, and the one it takes untuned."""

from collections.abc import Iterator

from attn_tune.kernels.block_sparse_attention.xla.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.knobs import tried
from attn_tune.ops.block_sparse_attention.problem import Problem
from attn_tune.schema.device import Device

# One step holds a few arrays of this size; more does not fit beside the model.
MAX_LOGITS_BYTES = 2**31
# Each step costs microseconds of its own, and the list of steps is a constant of the program.
MAX_STEPS = 2**18
# What stays in the last-level cache of a CPU core, and what fills an accelerator.
CPU_LOGITS_BYTES = 2**21
ACCELERATOR_LOGITS_BYTES = 2**27


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """Always None: this kernel is the one that can do everything."""
    return None


def infeasible(problem: Problem, device: Device, config: ForwardConfig | BackwardConfig) -> str | None:
    """The reason that a config cannot run: its step's logits do not fit, or it has too many steps."""
    steps = _steps(problem, config.chunk_q, config.chunk_k)
    if steps > MAX_STEPS:
        return f"{steps} chunk pairs; the limit is {MAX_STEPS}"
    size = _logits_bytes(problem, config.chunk_q, config.chunk_k)
    if size > MAX_LOGITS_BYTES:
        return f"one step's logits take {size / 2**30:.1f} GiB; the limit is {MAX_LOGITS_BYTES / 2**30:.0f} GiB"
    return None


def forward_candidates(problem: Problem, device: Device) -> Iterator[ForwardConfig]:
    """Every pair of chunk lengths, cut to the problem, each once."""
    for chunk_q, chunk_k in _pairs(problem):
        yield ForwardConfig(chunk_q=chunk_q, chunk_k=chunk_k)


def backward_candidates(problem: Problem, device: Device) -> Iterator[BackwardConfig]:
    """Every pair of chunk lengths, cut to the problem, each once."""
    for chunk_q, chunk_k in _pairs(problem):
        yield BackwardConfig(chunk_q=chunk_q, chunk_k=chunk_k)


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The chunks nearest to the mask's blocks whose logits fit the device's sweet spot."""
    chunk_q, chunk_k = _choose(problem, device)
    return ForwardConfig(chunk_q=chunk_q, chunk_k=chunk_k)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The chunks nearest to the mask's blocks whose logits fit the device's sweet spot."""
    chunk_q, chunk_k = _choose(problem, device)
    return BackwardConfig(chunk_q=chunk_q, chunk_k=chunk_k)


def _choose(problem: Problem, device: Device) -> tuple[int, int]:
    budget = CPU_LOGITS_BYTES if device.platform == "cpu" else ACCELERATOR_LOGITS_BYTES
    few = [c for c in _pairs(problem) if _steps(problem, *c) <= MAX_STEPS] or [max(_pairs(problem))]
    fitting = [c for c in few if _logits_bytes(problem, *c) <= budget]
    # Larger chunks hold more pairs that no block lists; smaller ones have more steps.
    blocks = problem.mask_block_q, problem.mask_block_k
    near = [c for c in fitting if c[0] <= blocks[0] and c[1] <= blocks[1]] or fitting
    if near:
        return max(near, key=lambda c: (c[0] * c[1], c[1]))
    return min(few, key=lambda c: c[0] * c[1])


def _pairs(problem: Problem) -> list[tuple[int, int]]:
    q_chunks = sorted({min(c, problem.q_len) for c in tried(ForwardConfig, "chunk_q")})
    k_chunks = sorted({min(c, problem.kv_len) for c in tried(ForwardConfig, "chunk_k")})
    return [(cq, ck) for cq in q_chunks for ck in k_chunks]


def _steps(problem: Problem, chunk_q: int, chunk_k: int) -> int:
    return -(-problem.q_len // chunk_q) * -(-problem.kv_len // chunk_k)


def _logits_bytes(problem: Problem, chunk_q: int, chunk_k: int) -> int:
    rows, cols = min(chunk_q, problem.q_len), min(chunk_k, problem.kv_len)
    return 4 * problem.batch * problem.num_q_heads * rows * cols
