"""The time that a kernel should take with each of a few configs: what untuned choices on Hopper are made by.

A launch is so many programs, each of which walks so many tiles. It takes the time of all tiles on all multiprocessors,
or that of the longest program, or that of the memory: their fourth powers are summed, so that the longest counts most.
The figures of ``costs_sm_90.json`` are fitted to races of drawn problems (``benchmarks/fit_costs.py``): bfloat16, no
bias, mask, dropout or explicit positions.
"""

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from attn_tune.kernels.lang.gluon import TILE_ROWS
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

_HOPPER = 90
# Multiprocessors of a device that does not say: those of an H100 or H200 SXM.
_UNITS = 132
# GB/s of the memory of a device that does not say, those of an H200; what part of them a kernel reaches.
_PEAK_GBS, _REACHED = 4814, 0.914
# Tokens of a packed document, and how many a row has; mean keys that count of padded ones. No signature says either.
_DOCUMENT, _FEWEST_DOCUMENTS, _MOST_DOCUMENTS = 1024, 3, 64
COUNTED = 0.75
# Up to so many queries, and rows that share keys, a forward is bound by memory.
_FEW_QUERIES, _FEW_ROWS = 8, 32
# Facts of a problem that change the time of a launch by a factor of their own, and that of some of its configs by
# another: with the tanh of a soft cap, say, some have no registers left.
FACTS = ("cap", "cut", "causal", "narrow", "odd", "shared", "sinks", "lengths", "documents")
# Rows and keys of a tile where no knob says: `triton_hopper` owns so many rows, cuDNN chooses both.
_CUDNN_TILE = (128, 128)
_WIDTHS = (64, 128, 256)


class Launch(NamedTuple):
    """One launch with one config.

    Attributes:
      name: as in ``triton/dkv``.
      knobs: of the config, in the order of its fields, without those that are None.
      splits: programs that share the keys of one tile of rows.
    """

    name: str
    knobs: tuple[int, ...]
    splits: int = 1


class Work(NamedTuple):
    """The work of one launch.

    Attributes:
      programs: programs of the launch.
      tiles: tiles that they walk, all together.
      longest: tiles that one walks at most.
      facts: which of ``FACTS`` hold.
      ranges: the tiles to walk are found by programs that run before.
    """

    programs: int
    tiles: float
    longest: int
    facts: tuple[bool, ...]
    ranges: bool


def known(device: Device) -> bool:
    """Whether there are figures for the device."""
    return device.compute_capability == _HOPPER


def units(device: Device) -> int:
    """Multiprocessors."""
    return device.units or _UNITS


def bandwidth(device: Device) -> float:
    """Bytes a microsecond that kernels read at most."""
    return _REACHED * 1e3 * (device.bandwidth_gbs or _PEAK_GBS)


def modelled(problem: Problem) -> bool:
    """Whether the figures hold for the configs of a problem: nothing of it is outside what they were fitted to."""
    has_more = problem.has_positions or problem.bias_dims is not None
    has_more |= problem.mask_dims is not None or problem.dropout_rate > 0
    return not has_more and problem.dtype != "float32" and width(problem) <= _WIDTHS[-1]


def has_fast_tanh(problem: Problem) -> bool:
    """Whether the hardware's tanh, of 11 bits, is enough for a soft cap: it has more than bfloat16, and not float16."""
    return problem.soft_cap is not None and problem.dtype == "bfloat16"


def width(problem: Problem) -> int:
    """The larger head dim."""
    return max(problem.head_dim, problem.v_head_dim)


def choices(name: str, problem: Problem) -> Iterator[tuple[int, ...]]:
    """The knobs of each config of a launch that has figures, for the problem's head dim."""
    return (tuple(config["knobs"]) for config in _configs_of(name, problem))


@functools.lru_cache(maxsize=4096)
def launch_us(launch: Launch, problem: Problem, device: Device) -> float:
    """Microseconds of one launch on a device with figures, without what every call of its kernel costs.

    Raises:
      KeyError: there are no figures for the config.
    """
    configs = {tuple(config["knobs"]): config for config in _configs_of(launch.name, problem)}
    config = configs[launch.knobs]
    of_launch, work = _table()["launches"][launch.name], work_of(launch, problem)
    true = [fact for fact, holds in zip(FACTS, work.facts, strict=True) if holds]
    factor = math.prod(of_launch["factors"][fact] * config["factors"].get(fact, 1.0) for fact in true)
    each, emptiness = work.programs / units(device), 1.0
    # The last round takes as long as a full one, and the multiprocessor with the most programs longest, the more so
    # the less the programs differ.
    for rounds, power in ((each / config["resident"], "tail"), (each, "busiest")):
        idle = math.ceil(rounds) / rounds if rounds > 1 else 1.0
        emptiness *= idle ** of_launch[power]["causal" if problem.causal else "full"]
    busy = (work.programs * config["start"] + work.tiles * config["tile"]) / units(device)
    lone = config["first"] + work.longest * config["lone"]
    memory = of_launch["memory"] * memory_us(problem, device)
    us = ((busy * emptiness * factor) ** 4 + (lone * factor) ** 4 + memory**4) ** 0.25
    kernel = _table()["kernels"][kernel_of(launch.name)]
    if launch.splits > 1:
        us += kernel["combine"] + launch.splits * kernel["split"] + parts_us(problem, launch.splits, device)
    return us + kernel["ranges"] * work.ranges


def call_us(name: str, problem: Problem, device: Device) -> float:
    """Microseconds that every call of the kernel of a launch costs, however small."""
    kernel = _table()["kernels"][kernel_of(name)]
    extras = kernel["sinks"] * problem.has_sinks + kernel["lengths"] * problem.has_lengths
    return kernel["launch"] + kernel["prepare"] * prepared_us(problem, device) + extras


def kernel_of(name: str) -> str:
    """The kernel and direction of a launch, as in ``triton bwd``."""
    kernel, _, part = name.partition("/")
    return f"{kernel} {'fwd' if part == 'fwd' else 'bwd'}"


def work_of(launch: Launch, problem: Problem) -> Work:
    """Programs, tiles and facts of a launch."""
    rows, keys = tile_of(launch)
    if launch.name == "triton_split/fwd":
        return _split_work(launch, problem, rows, keys)
    of_keys = launch.name == "triton/dkv"
    # A program of dk/dv walks the rows of all heads that share its keys.
    heads, walks = (problem.num_kv_heads, problem.group_size) if of_keys else (problem.num_q_heads, 1)
    programs, tiles, longest = _tiles(problem, rows, keys, of_keys=of_keys)
    return Work(
        programs=problem.batch * heads * programs,
        tiles=problem.batch * heads * walks * tiles * _counted(problem),
        longest=walks * longest,
        facts=_facts(problem, rows, keys),
        ranges=_has_ranges(launch, problem, rows, keys),
    )


def tile_of(launch: Launch) -> tuple[int, int]:
    """Rows and keys of a tile."""
    kernel = launch.name.partition("/")[0]
    if kernel == "cudnn":
        return _CUDNN_TILE
    if kernel == "triton_hopper":
        return TILE_ROWS, launch.knobs[0]
    return launch.knobs[0], launch.knobs[1]


def memory_us(problem: Problem, device: Device) -> float:
    """Microseconds to read and write each array of a forward once, of packed documents those that a few rows see."""
    per_token = 2 * (problem.head_dim + problem.v_head_dim)
    keys = visible_keys(problem) * _counted(problem)
    if has_documents(problem) and 4 * problem.q_len < problem.kv_len:
        keys *= min(1.0, (_document_length(problem) + problem.q_len) / problem.kv_len)
    tokens = keys * problem.num_kv_heads + problem.q_len * problem.num_q_heads
    return problem.batch * tokens * per_token / bandwidth(device)


def prepared_us(problem: Problem, device: Device) -> float:
    """Microseconds to read what a backward's row sums are made of."""
    return problem.batch * problem.q_len * problem.num_q_heads * 4 * problem.v_head_dim / bandwidth(device)


def parts_us(problem: Problem, splits: int, device: Device) -> float:
    """Microseconds to write the parts of a split output."""
    rows = problem.batch * problem.q_len * problem.num_q_heads
    return rows * splits * 4 * problem.v_head_dim / bandwidth(device)


def visible_keys(problem: Problem) -> int:
    """Keys that some row may see, as far as causal and window go by their number."""
    left, _ = problem.bounds
    if left is None or problem.has_positions:
        return problem.kv_len
    return min(problem.kv_len, left + problem.q_len)


def has_few_queries(problem: Problem) -> bool:
    """Whether all that counts is to read keys and values once."""
    few = problem.q_len <= _FEW_QUERIES
    return few and problem.q_len * problem.group_size <= _FEW_ROWS


def is_narrow(problem: Problem) -> bool:
    """Whether a window or documents bound what a row sees before itself."""
    return _bounds(problem)[0] is not None


def has_documents(problem: Problem) -> bool:
    """Whether several sequences are packed in a row."""
    return problem.has_segments and not problem.has_lengths


def _split_work(launch: Launch, problem: Problem, rows: int, keys: int) -> Work:
    """The rows of a group are one head's, and causal leaves out what no row of the call sees."""
    packed = problem.q_len * problem.group_size
    programs = problem.batch * problem.num_kv_heads * -(-packed // rows) * launch.splits
    share = problem.visible_pairs / (problem.q_len * problem.kv_len)
    # Tiles under the diagonal are whole.
    share = max(share, 0.5) if problem.causal else share
    mean = max(1.0, visible_keys(problem) * share / keys / launch.splits)
    # The last rows see all keys.
    longest = max(1, math.ceil(visible_keys(problem) / keys / launch.splits))
    facts = _facts(problem, rows, keys)
    return Work(programs, programs * mean * _counted(problem), longest, facts, ranges=False)


def _facts(problem: Problem, rows: int, keys: int) -> tuple[bool, ...]:
    return (
        problem.soft_cap is not None,
        problem.q_len % rows != 0 or problem.kv_len % keys != 0,
        problem.causal,
        is_narrow(problem),
        problem.head_dim not in _WIDTHS,
        problem.group_size > 1,
        problem.has_sinks,
        problem.has_lengths,
        has_documents(problem),
    )


def _has_ranges(launch: Launch, problem: Problem, rows: int, keys: int) -> bool:
    from attn_tune.kernels.lang.triton.device.static import skips_segments

    kernel = launch.name.partition("/")[0]
    if not problem.has_segments or kernel not in ("triton", "triton_hopper"):
        return False
    if kernel == "triton_hopper":
        return not problem.has_lengths
    return skips_segments(problem, rows, keys, of_keys=launch.name == "triton/dkv")


def _counted(problem: Problem) -> float:
    return COUNTED if problem.has_lengths else 1.0


def _document_length(problem: Problem) -> int:
    length = max(problem.q_len, problem.kv_len)
    number = min(max(length // _DOCUMENT, _FEWEST_DOCUMENTS), _MOST_DOCUMENTS, length)
    return length // number


def _bounds(problem: Problem) -> tuple[int | None, int | None]:
    """The bounds of the window, or of a document of the usual length."""
    if not has_documents(problem):
        return problem.bounds
    reach = _document_length(problem)
    left, right = (reach if bound is None else min(bound, reach) for bound in problem.bounds)
    return left, right


def _tiles(problem: Problem, rows: int, keys: int, *, of_keys: bool) -> tuple[int, int, int]:
    """Programs of one head; tiles that they walk, all together and at most. ``of_keys``: a program owns keys."""
    bounds = _bounds(problem)
    return _count(problem.q_len, problem.kv_len, problem.offset, bounds, rows, keys, of_keys)


@functools.lru_cache(maxsize=4096)
def _count(
    q_len: int,
    kv_len: int,
    offset: int,
    bounds: tuple[int | None, int | None],
    rows: int,
    keys: int,
    of_keys: bool,
) -> tuple[int, int, int]:
    left, right = bounds
    if of_keys:
        # Row r sees the keys from r + offset - left to r + offset + right.
        left, right, offset = right, left, -offset
        q_len, kv_len, rows, keys = kv_len, q_len, keys, rows
    seen = []
    for first in range(offset, offset + q_len, rows):
        last = min(first + rows, offset + q_len) - 1
        low = 0 if left is None else max(0, first - left)
        high = kv_len - 1 if right is None else min(kv_len - 1, last + right)
        seen.append(max(0, high // keys - low // keys + 1) if high >= max(low, 0) else 0)
    return len(seen), sum(seen), max(seen)


def _configs_of(name: str, problem: Problem) -> list[dict[str, Any]]:
    bound = next((w for w in _WIDTHS if width(problem) <= w), _WIDTHS[-1])
    return _table()["launches"][name]["widths"][str(bound)]


@functools.cache
def _table() -> dict[str, Any]:
    return json.loads(Path(__file__).with_name("costs_sm_90.json").read_text())
