"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

from attn_tune.kernels.flash_attention import costs
from attn_tune.kernels.flash_attention.costs import units
from attn_tune.kernels.flash_attention.triton_hopper.limits import infeasible
from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.gluon.attention.config import ForwardConfig
from attn_tune.kernels.lang.gluon.attention.plan import has_documents, num_tiles
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# Keys and values of the heads that are worked on together: half of the L2 cache of an H100, which holds 50 MB in two
# parts. Fewer than four heads or more than 16 never won on an H200, except where a program has few tiles and all heads
# fit the cache: there one section deals them out evenly (1.03 times as fast at 1x2816, 1.1 at 4x512).
_SECTION_BYTES, _CACHED_BYTES, _FEW_TILES = 16 * 2**20, 32 * 2**20, 6
_FEWEST_HEADS, _MOST_HEADS = 4, 16
_LAUNCH = "triton_hopper/fwd"


def heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The untuned config: the tile of keys that should take least."""
    block_k, stages, ping_pong = least(problem, device)[1]
    return ForwardConfig(
        block_k=block_k,
        num_stages=stages,
        heads_per_section=_nearest_section(problem, _wanted_heads(problem, device)),
        num_programs=min(num_tiles(problem), units(device)),
        ping_pong=bool(ping_pong),
        # Another tanh takes longer than the products: 1.13 times as fast at 8x1280, head dim 256.
        fast_tanh=costs.has_fast_tanh(problem),
    )


def least(problem: Problem, device: Device) -> tuple[float, tuple[int, ...]]:
    """Microseconds, and keys of a tile, stages and turns, of the launch that should take least."""
    return min(
        (costs.launch_us(costs.Launch(_LAUNCH, knobs), problem, device), knobs)
        for knobs in costs.choices(_LAUNCH, problem)
    )


def adapt(tuned: Problem, problem: Problem, device: Device, config: ForwardConfig) -> ForwardConfig:
    """The config of ``tuned`` for ``problem``: its section, against the untuned one, and all multiprocessors."""
    more = _wanted_heads(problem, device) / _wanted_heads(tuned, device)
    return dataclasses.replace(
        config,
        heads_per_section=_nearest_section(problem, config.heads_per_section * more),
        num_programs=min(num_tiles(problem), units(device)),
    )


def candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Tiles of keys, stages, sections of half to twice the heads, with and without turns and the fast tanh."""
    start = heuristic(problem, device)
    feasible = {c for c in _all(problem, start) if infeasible(problem, device, c) is None}
    others = sorted(feasible - {start}, key=lambda c: (_distance(start, c), str(c)))
    return (start, *others)


def _all(problem: Problem, start: ForwardConfig) -> Iterator[ForwardConfig]:
    near = (start.heads_per_section / 2, start.heads_per_section, start.heads_per_section * 2)
    sections = [n for n in _divisors(problem) if n in near]
    sizes = tried(ForwardConfig, "block_k")
    blocks_k = sizes[:2] if problem.head_dim > 128 else sizes[1:]
    tanhs = (False,) if problem.soft_cap is None else (False, True)
    for block_k, stages, section, ping_pong, fast_tanh in itertools.product(
        blocks_k, tried(ForwardConfig, "num_stages"), sections, (False, True), tanhs
    ):
        yield dataclasses.replace(
            start,
            block_k=block_k,
            num_stages=stages,
            heads_per_section=section,
            ping_pong=ping_pong,
            fast_tanh=fast_tanh,
        )


def _wanted_heads(problem: Problem, device: Device) -> float:
    """Heads whose keys and values stay in the L2 cache."""
    bytes_per_head = 4 * problem.kv_len * problem.head_dim / problem.group_size
    all_heads = problem.batch * problem.num_q_heads
    is_cached = all_heads * bytes_per_head <= _CACHED_BYTES
    has_few = num_tiles(problem) <= _FEW_TILES * units(device)
    most = all_heads if is_cached and has_few else _MOST_HEADS
    wanted = min(max(_SECTION_BYTES / bytes_per_head, _FEWEST_HEADS), most)
    if has_documents(problem):
        # Of packed documents little is read at a time: 1.1 times as fast with eight times the heads.
        wanted *= 8
    return wanted


def _nearest_section(problem: Problem, wanted: float) -> int:
    """Whole groups, a divisor of all heads of the batch."""
    return min(_divisors(problem), key=lambda n: (abs(math.log2(n / wanted)), n))


def _divisors(problem: Problem) -> list[int]:
    heads, step = problem.batch * problem.num_q_heads, problem.group_size
    return [n for n in range(step, heads + 1, step) if heads % n == 0]


def _distance(start: ForwardConfig, other: ForwardConfig) -> float:
    """Doublings of the knobs; taking turns is one, the fast tanh, which helps wherever it is admitted, half of one."""
    names = ("block_k", "num_stages", "heads_per_section")
    steps = sum(abs(math.log2(getattr(other, n) / getattr(start, n))) for n in names)
    steps += 0.5 * (start.fast_tanh != other.fast_tanh)
    return steps + (start.ping_pong != other.ping_pong)
