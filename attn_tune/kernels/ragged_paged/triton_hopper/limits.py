"""Problems that ragged attention for Hopper refuses, and tiles that cannot fit."""

from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.kernels.lang.triton.limits import refuses_device, refuses_triton, shared_limit
from attn_tune.kernels.ragged_paged._triton.space import refuses_decoding
from attn_tune.kernels.ragged_paged.triton_hopper.config import ROWS, Config
from attn_tune.kernels.ragged_paged.triton_hopper.plan import group_rows, queries_of, shared_bytes
from attn_tune.ops.fields.cache import LATENT, SAME
from attn_tune.ops.ragged_paged.problem import Problem
from attn_tune.schema.device import Device

MAX_HEAD_DIM = 256
# A copy by descriptor starts rows at multiples of 16 bytes, and spreads rows of 32 bytes at least over the banks.
_MULTIPLE, _CODES_MULTIPLE, _FEWEST_CODES = 8, 16, 32
# Rows after which the pattern repeats in which such a copy spreads rows over the banks of shared memory.
LEAST_CHUNK = 8
# A key head's group fits the largest tile that is tried.
_MOST_GROUP = 2 * ROWS
_HOPPER = 90
# Gluon, the part of Triton that this is written in, has no such descriptors in earlier versions. What widens codes was
# proven with 3.9 alone.
_OLDEST_TRITON, _OLDEST_FOR_CODES = (3, 6), (3, 9)
# Registers a thread for the output, one tile of logits and its weights in 16 bits; the others are for addresses,
# statistics and what ptxas keeps apart. Of 240 a thread has 208 for these, of fewer as many less.
_MOST_REGISTERS, _OTHER_REGISTERS = 208, 32
# Registers a thread that ptxas wants beside one product's output where all threads still have equally many.
_PRODUCT_REGISTERS = 30


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device, or None."""
    del direction  # a forward only
    p = problem
    if reason := refuses_device(device):
        return reason
    if device.compute_capability != _HOPPER:
        return f"it is written for the warpgroup instructions of Hopper (sm_90); {device} is {device.family}"
    widths = {"h": p.head_dim, "v": p.v_head_dim}
    has_codes = p.kv_dtype != SAME
    multiple, fewest = (_CODES_MULTIPLE, _FEWEST_CODES) if has_codes else (_MULTIPLE, _MULTIPLE)
    odd = next((f"{n}={x}" for n, x in widths.items() if x % multiple or not fewest <= x <= MAX_HEAD_DIM), "")
    range_of = f"from {fewest} to {MAX_HEAD_DIM} of a cache of codes" if has_codes else f"up to {MAX_HEAD_DIM}"
    asked = {
        "it copies keys and values apart; layout=latent has values within keys": p.layout == LATENT,
        f"warpgroups multiply 16-bit numbers; dtype is {p.dtype}": p.dtype == "float32",
        f"it multiplies 16-bit queries; those of qscale={p.q_scale} are codes": p.q_scale != "none",
        "weights times scales of tokens need the range of bfloat16; dtype is float16 (kvscale=token)": p.kv_scale
        == "token"
        and p.dtype == "float16",
        f"{odd} is no multiple of {multiple} {range_of}": bool(odd),
        f"{p.group_size} query heads share a key head: over codes rows of values of {p.v_head_dim} columns are {ROWS} "
        "at most": has_codes and p.group_size > ROWS and padded(p.v_head_dim) == MAX_HEAD_DIM,
        f"page={p.page_size} is no multiple of {LEAST_CHUNK}, the rows of the least copy by descriptor": p.page_size
        % LEAST_CHUNK
        > 0,
        f"{p.group_size} query heads share a key head: a tile holds {_MOST_GROUP} at most": p.group_size > _MOST_GROUP,
        f"scale={p.scale!r} is not positive": p.scale <= 0,
    }
    oldest = _OLDEST_FOR_CODES if has_codes else _OLDEST_TRITON
    return next((reason for reason, wanted in asked.items() if wanted), None) or refuses_triton(oldest)


def infeasible(problem: Problem, device: Device, config: Config) -> str | None:
    """The reason that a config cannot run on the device, or None. Never refuses what compiles and fits."""
    needed, limit = shared_bytes(problem, config), shared_limit(device)
    if needed > limit:
        return f"its tiles need {needed} bytes of shared memory; {device.family} has {limit}"
    there = config.multiplying_registers(has_codes=problem.kv_dtype != SAME)
    held, most = registers(problem, config), min(_MOST_REGISTERS, there - _OTHER_REGISTERS)
    if held > most:
        return f"its accumulators, logits and weights need {held} registers a thread; there are {most} for them"
    if problem.kv_dtype != SAME:
        held = max(padded(problem.v_head_dim), config.block_k) // 2 + _PRODUCT_REGISTERS
        most = config.launch_registers(has_codes=True)
        if held > most:
            return f"one of its products needs {held} registers a thread; beside warps that widen it starts with {most}"
    if not queries_of(problem.group_size, config) or config.block_q % group_rows(problem.group_size):
        return f"its {config.block_q} rows do not hold whole queries of {problem.group_size} heads that share keys"
    if problem.num_kv_heads % config.heads_per_section:
        return f"heads_per_section={config.heads_per_section} does not divide the {problem.num_kv_heads} key heads"
    return refuses_decoding(problem, device, config)


def registers(problem: Problem, config: Config) -> int:
    """Registers a thread for what the two products read and write; a thread has half a row of 64."""
    return padded(problem.v_head_dim) // 2 + config.block_k // 2 + config.block_k // 4
