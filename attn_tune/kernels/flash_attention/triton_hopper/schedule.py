"""The tiles of each program, dealt out when a call is traced: what a tile costs is known then."""

# The heap starts with whole numbers and takes others.
# pyright: reportArgumentType=false

import functools
import heapq

import numpy as np

from attn_tune.kernels.lang.gluon.attention.config import BLOCK_Q, ForwardConfig
from attn_tune.kernels.lang.gluon.attention.plan import has_documents, num_programs, num_tiles
from attn_tune.ops.flash_attention.problem import Problem

# What ending a tile costs, in keys: it is divided and stored with no product of its own to run beside.
_END = 64
# Operations of both products that take an H200 some 0.1 ms: zeroing takes three of its hundredths.
_SHORT = 5e10
# Tiles whose schedule is written into the program: 1 MB.
_MOST_TILES = 2**18


def is_dynamic(problem: Problem, devices: int = 1) -> bool:
    """Whether programs take tiles from a queue, which costs zeroing its counter: 2 % of a short launch.

    So it is with documents, with more tiles than a schedule is written for, and in a job of several devices.

    There a launch may run beside a transfer, which holds some multiprocessors until it is done. With a schedule the
    programs that wait for one of these begin all of their tiles then; from a queue others take them. Who computes a
    tile changes none of its bits.
    """
    operations = 2 * (problem.head_dim + problem.v_head_dim) * problem.visible_pairs
    is_short = problem.batch * problem.num_q_heads * operations < _SHORT
    shares = devices > 1 and not is_short
    return shares or has_documents(problem) or num_tiles(problem) > _MOST_TILES


@functools.lru_cache(64)
def schedule(problem: Problem, config: ForwardConfig) -> np.ndarray:
    """The tiles of each program in their order, as ``[programs, most + 2]`` int32, filled up with -1.

    Tiles are dealt out section after section, the longest of each first, each to the program that is done first (list
    scheduling, Graham 1969). Numbers are ``(batch * N + head) * blocks + block``.
    """
    costs = _costs(problem, config)
    longest_first = sorted(range(len(costs)), key=lambda block: -costs[block])
    heads = problem.batch * problem.num_q_heads
    programs = num_programs(problem, config)
    free = [(0, program) for program in range(programs)]
    tiles: list[list[int]] = [[] for _ in free]
    for section in range(0, heads, config.heads_per_section):
        for block in longest_first:
            for head in range(section, section + config.heads_per_section):
                done, program = free[0]
                heapq.heapreplace(free, (done + costs[block] + _END, program))
                tiles[program].append(head * len(costs) + block)
    # A program asks for a tile two ahead of the one that it is at.
    table = np.full((programs, max(map(len, tiles)) + 2), -1, np.int32)
    for row, own in zip(table, tiles, strict=True):
        row[: len(own)] = own
    table.setflags(write=False)
    return table


def _blocks(problem: Problem) -> int:
    return -(-problem.q_len // BLOCK_Q)


def _costs(problem: Problem, config: ForwardConfig) -> list[float]:
    """The cost of each tile of a head, in keys."""
    blocks = range(_blocks(problem))
    return [float(_visible_keys(problem, config, block)) for block in blocks]


def _visible_keys(problem: Problem, config: ForwardConfig, block: int) -> int:
    """Keys that a tile walks, in whole tiles of keys, as far as causal and window go."""
    left, right = problem.bounds
    first = block * config.block_q + problem.offset
    last = min((block + 1) * config.block_q, problem.q_len) - 1 + problem.offset
    end = problem.kv_len if right is None else min(max(last + right + 1, 1), problem.kv_len)
    begin = 0 if left is None else min(max(first - left, 0), end - 1)
    return (-(-end // config.block_k) - begin // config.block_k) * config.block_k
