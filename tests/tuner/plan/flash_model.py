"""A model of how long the Triton flash kernel takes on an H200: rugged, structured, and with failures, but no device.

It follows a roofline: waves of tiles over the multiprocessors, as many at once as shared memory and registers allow,
each walking its blocks at the rate of the tensor cores or of memory. On it come the penalties that make tuning
hard: unhidden loads, spills, ragged last tiles and waves, and quirks that no formula explains.
"""

import functools
import math
import random

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.registry import get_op
from attn_tune.schema.config import config_digest, config_to_dict
from attn_tune.tuner.plan.grid import load_grid
from attn_tune.tuner.plan.replay import RecordedCase

KERNEL = "flash_attention/triton"
POINTS = {
    "llama3-8b": ("1x512", "8x2k", "4x4k", "2x8k"),
    "gemma2-9b": ("8x2k", "4x4k"),
    "gpt-oss-20b": ("8x2k", "4x4k", "2x8k"),
    "qwen3-0.6b": ("8x2k", "4x4k"),
    "gemma3-27b": ("4x4k", "2x8k"),
}
_FLOPS_A_SM, _BYTES_A_SM = 989e12 / 132, 4.8e12 / 132
_SHARED, _LATENCY_S, _STEP_S = 227 * 1024, 1.2e-6, 0.12e-6
# (products of T*S*H a pair, accumulators in units of owned*H, arrays of H held, walked)
_LAUNCHES = {"": (2, 1, 1, 2), "dq": (3, 1, 2, 2), "dkv": (4, 2, 2, 2)}


@functools.cache
def recorded_cases(parts: tuple[str, ...] = ("", "dq", "dkv")) -> tuple[RecordedCase, ...]:
    """An exhaustive sweep of the Triton kernel over ``POINTS``, as the model has it."""
    spec, device = get_kernel(KERNEL), device_from_kind("nvidia-h200")
    op = get_op(spec.op)
    cases = []
    for grid, names in POINTS.items():
        for point in load_grid(grid, lengths=names).points:
            problem = op.from_signature(point.signature)
            for direction, search in spec.searches.items():
                for part in (p for p in search.candidates if p in parts):
                    configs = [
                        config
                        for config in search.candidates[part](problem, device)
                        if not search.infeasible(problem, device, config)
                    ]
                    cases.append(_case(point.signature, problem, direction, part, configs))
    return tuple(cases)


def _case(signature, problem, direction, part, configs) -> RecordedCase:
    times = {}
    for config in configs:
        seconds = model_seconds(problem, part, config, signature.text)
        if seconds is not None:
            times[config_digest(config)] = round(seconds * 1e9)
    return RecordedCase(
        kernel=KERNEL,
        direction=direction,
        part=part,
        signature=signature,
        candidates=tuple(config_to_dict(config) for config in configs),
        times=times,
        fields=get_op("flash_attention").fields,
    )


def model_seconds(problem, part: str, config, salt: str) -> float | None:
    """Seconds of one launch; None when it fails."""
    products, accumulators, held, walked_arrays = _LAUNCHES[part]
    by_keys = part == "dkv"
    owned, walked = config.block_q, config.block_k
    owned_length, walked_length = problem.q_len, problem.kv_len
    if by_keys:
        owned, walked, owned_length, walked_length = walked, owned, walked_length, owned_length
    h, warps, stages = problem.head_dim, config.num_warps, config.num_stages
    shared = 2 * h * (held * owned + walked_arrays * stages * walked)
    registers = (accumulators * owned * h + 2 * owned * walked) / (warps * 32) + 40
    name = f"{part} {config_digest(config)}"
    if shared > _SHARED or registers > 640 or random.Random(f"fails {name} {h}").random() < 0.03:
        return None
    at_once = min(_SHARED // max(shared, 1), 65536 // (min(registers, 255) * warps * 32), 32 // warps)
    at_once = max(1, int(at_once))
    tiles = problem.batch * problem.num_q_heads * math.ceil(owned_length / owned)
    steps = max(1.0, _steps(problem, owned, walked, walked_length))
    fill = min(1.0, owned / (16 * warps)) * (1.0 if owned >= 64 else 0.7)
    rate = _FLOPS_A_SM * fill * (0.55 + 0.1 * min(at_once, 3)) * walked / (walked + 24)
    compute = products * 2 * owned * walked * h / rate * at_once
    load = walked_arrays * 2 * walked * h / (_BYTES_A_SM * 3) * at_once
    hidden = (stages - 1) * compute + (at_once - 1) * compute / at_once
    step = max(compute, load) + max(0.0, _LATENCY_S - hidden) + _STEP_S * warps / 4
    spill = 1 + max(0.0, registers - 255) / 200
    waves = tiles / (132 * at_once)
    ragged = 0.6 * math.ceil(waves) + 0.4 * max(waves, 1.0)
    quirk = math.exp(random.Random(f"quirk {name} {h} {problem.window}").gauss(0, 0.05))
    here = math.exp(random.Random(f"here {name} {salt}").gauss(0, 0.02))
    return (ragged * (steps * step + 2e-6) * spill + 3e-6) * quirk * here


def _steps(problem, owned: int, walked: int, length: int) -> float:
    window = problem.window[0]
    if window is not None and window < length:
        return math.ceil((window + owned) / walked) + 1
    share = 0.5 if problem.causal else 1.0
    return length * share / walked + share * owned / walked
