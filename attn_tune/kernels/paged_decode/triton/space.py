"""The configs worth trying, nearest to the untuned choice first."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator

from attn_tune.kernels.knobs import tried
from attn_tune.kernels.lang.space import nearest_first
from attn_tune.kernels.lang.triton.limits import OLDEST_WITH_CLUSTERS
from attn_tune.kernels.lang.triton.tiles import MIN_BLOCK, block_cap, fitted
from attn_tune.kernels.paged_decode._triton.config import MOST_PROGRAMS, NARROW, Config
from attn_tune.kernels.paged_decode.triton.limits import fits, infeasible, lacks_narrow
from attn_tune.ops.fields.cache import CODES, LATENT
from attn_tune.ops.paged_decode.problem import Problem, visible_keys
from attn_tune.schema.device import Device

_FIRST = 10
# Multiprocessors of a device that does not say.
_UNITS = 132
_MOST_ROWS = 64
# The same of latents: two tiles of 32 rows take 0.8 of the time of one of 64, though both read the cache (H200).
_MOST_ROWS_LATENT = 32
# Programs a multiprocessor: two hide one's waiting behind the other's. Tiles of eight rows leave room for four.
_WANTED, _WANTED_NARROW = 2, 4
_TRIED = (1, 2, 3, 4, 6, 8)
# Keys of a program of a cluster, at most: with more, more programs than a cluster has are faster (H200).
_MOST_KEYS = 256
# Keys of a program between which clusters of tiles of eight rows over pages take 0.90 to 0.99 of the time of other
# choices, and programs of such clusters, at least: fewer were not measured (H200).
_LEAST_KEYS_NARROW, _MOST_KEYS_NARROW = 129, 512
_LEAST_CLUSTERED = 128
# Parts of a sequence above which combining them takes longer than one program more a multiprocessor wins (H200).
_MOST_PARTS = 132
# Programs of clusters for each multiprocessor, at most.
_MOST_CLUSTERED = 4
# Equal sequences that give each multiprocessor so many programs are not cut: there is no second launch then.
_ENOUGH = 1.5
# The same of latents, whose tiles leave room for one program at a time: the last turn must not matter.
_ENOUGH_LATENT = 6
# Programs for each multiprocessor, and keys of each, from which on less shared memory a program pays: several are
# resident, and one reads while another begins. 64 sequences of 2k keys take 124 us and not 139 (H200).
_MANY_PROGRAMS, _MANY_KEYS = 3, 2048


def place(problem: Problem, direction: str, device: Device) -> int:
    """The place in the untuned order."""
    del problem, direction, device
    return _FIRST


def heuristic(problem: Problem, device: Device) -> Config:
    """The untuned config: one tile for a group, and keys shared so that multiprocessors have two to four programs."""
    wide = fitted(_tile(problem), functools.partial(fits, problem, device))
    narrow = _narrow(problem, device)
    tile = wide if narrow is None or not fits(problem, device, narrow) else narrow
    wanted, enough = (1, _ENOUGH_LATENT) if problem.layout == LATENT else (_WANTED, _ENOUGH)
    if tile.block_q == NARROW:
        wanted = _WANTED_NARROW
    is_even = problem.workload == "eq" or problem.window is not None or problem.batch == 1
    if is_even and problem.batch * lanes(problem, tile) >= enough * units(device):
        return _co_resident(problem, device, tile)
    if is_even and (clustered := _narrow_cluster(problem, device) or _clustered(problem, device, wide)) is not None:
        return clustered
    cut = dataclasses.replace(tile, num_programs=_shared(problem, device, tile, wanted))
    if (cut.num_programs or 0) > _MOST_PARTS * problem.batch:
        cut = dataclasses.replace(cut, num_programs=_shared(problem, device, tile, 1))
    return cut


def _tile(problem: Problem) -> Config:
    is_latent = problem.layout == LATENT
    wide = max(problem.head_dim, problem.v_head_dim) > 128 or problem.dtype == "float32"
    # Latents are the wide operand of Hopper's products, which has 64 rows.
    block_k = 64 if is_latent and problem.dtype != "float32" else 32 if wide else 64
    if problem.cache_dtype in CODES and not is_latent:
        block_k *= 2
    block_q = min(_MOST_ROWS_LATENT if is_latent else _MOST_ROWS, block_cap(rows(problem)))
    many = is_latent and (block_q > 16 or problem.cache_dtype in CODES)
    # A page table is read a stage or two before the keys that it names. A tile of 64 latents of DeepSeek is 72 KB.
    stages = (5, 3) if not is_latent else (3, 2)
    return Config(
        block_q=block_q,
        block_k=min(block_k, block_cap(problem.kv_len)),
        num_warps=8 if many else 4,
        num_stages=stages[0 if problem.page_size else 1],
    )


def _narrow(problem: Problem, device: Device) -> Config | None:
    """A tile of eight rows for codes in pages, which takes 0.80 to 0.93 of the time of one of sixteen; or None."""
    if problem.cache_dtype not in CODES or not (_can_be_narrow(problem) and _is_usual(problem, device)):
        return None
    return Config(block_q=NARROW, block_k=min(64, block_cap(problem.kv_len)), num_warps=2, num_stages=6)


def _co_resident(problem: Problem, device: Device, tile: Config) -> Config:
    """``tile`` with few stages and warps where there are many programs, so that a multiprocessor runs several."""
    is_plain = problem.cache_dtype not in CODES and tile.block_q == MIN_BLOCK
    many = problem.batch * lanes(problem, tile) >= _MANY_PROGRAMS * units(device)
    if not (is_plain and many and _most_keys(problem) >= _MANY_KEYS and _is_usual(problem, device)):
        return tile
    return dataclasses.replace(tile, num_warps=2, num_stages=2)


def _narrow_cluster(problem: Problem, device: Device) -> Config | None:
    """The largest cluster of tiles of eight rows over pages; None where wider tiles or more programs are faster."""
    cluster = max(tried(Config, "cluster"))
    own = -(-_most_keys(problem) // cluster)
    if not (_LEAST_KEYS_NARROW <= own <= _MOST_KEYS_NARROW and _can_be_narrow(problem) and _is_usual(problem, device)):
        return None
    config = Config(block_q=NARROW, block_k=64, num_warps=2, num_stages=5, cluster=cluster)
    programs = problem.batch * lanes(problem, config) * cluster
    is_measured = _LEAST_CLUSTERED <= programs <= _WANTED * units(device)
    return config if is_measured and fits(problem, device, config) else None


def _clustered(problem: Problem, device: Device, tile: Config) -> Config | None:
    """``tile`` with the largest cluster that leaves each program few keys; None where there is no such."""
    if (device.compute_capability or 0) < OLDEST_WITH_CLUSTERS:
        return None
    keys = _most_keys(problem)
    clusters = problem.batch * lanes(problem, tile)
    for cluster in reversed(tried(Config, "cluster")):
        own = -(-keys // cluster)
        if own > _MOST_KEYS:
            return None
        if own >= MIN_BLOCK and clusters * cluster <= _WANTED * units(device):
            block_k = min(block_cap(own), 2 * tile.block_k)
            config = dataclasses.replace(tile, block_k=block_k, cluster=cluster, num_warps=4 if block_k > 32 else 2)
            return fitted(config, functools.partial(fits, problem, device))
    return None


def adapt(tuned: Problem, problem: Problem, device: Device, config: Config) -> Config:
    """The config of ``tuned`` for ``problem``: as many programs a multiprocessor as there."""
    is_narrow = config.block_q == NARROW and _can_be_narrow(problem)
    tile = dataclasses.replace(
        config,
        block_q=config.block_q if is_narrow else min(max(MIN_BLOCK, config.block_q), block_cap(rows(problem))),
        block_k=min(config.block_k, block_cap(problem.kv_len)),
    )
    if config.num_programs is None:
        return tile
    ratio = lanes(tuned, config) / lanes(problem, tile)
    return dataclasses.replace(tile, num_programs=min(MOST_PROGRAMS, max(1, round(config.num_programs * ratio))))


def candidates(problem: Problem, device: Device) -> tuple[Config, ...]:
    """Tiles for all rows that share keys, or half of them, and programs for each multiprocessor."""
    start = heuristic(problem, device)
    feasible = (c for c in _all(problem, device) if infeasible(problem, device, c) is None)
    # A number of programs has no distance: nearest are those with the tile of the untuned choice.
    return nearest_first(start, feasible, doubling=("block_q", "block_k", "num_warps", "num_stages"))


def _all(problem: Problem, device: Device) -> Iterator[Config]:
    cap = min(128, block_cap(rows(problem)))
    keys = _most_keys(problem)
    sizes = {cap, max(16, cap // 2)} | ({NARROW} if _can_be_narrow(problem) else set())
    for block_q, block_k in itertools.product(sorted(sizes), (16, 32, 64, 128)):
        if block_k > block_cap(problem.kv_len):
            continue
        few = (2, 4) if block_k < 128 else (4, 8)
        if block_q == NARROW and problem.cache_dtype in CODES:
            # Four warps would take the instructions of a warpgroup, which read wide numbers from shared memory.
            few = (1, 2)
        for warps, stages in itertools.product(few if block_q <= 32 else (4, 8), (2, 3, 4, 5, 6)):
            tile = Config(block_q=block_q, block_k=block_k, num_warps=warps, num_stages=stages)
            for programs in sorted({_shared(problem, device, tile, each) for each in _TRIED}):
                yield dataclasses.replace(tile, num_programs=programs)
            clusters = problem.batch * lanes(problem, tile)
            if clusters >= units(device):
                yield tile
            for cluster in tried(Config, "cluster"):
                # More programs fill the device without a cluster; with fewer keys than that some would have none.
                is_useful = clusters * cluster <= _MOST_CLUSTERED * units(device) and cluster * block_k <= 2 * keys
                if is_useful and keys <= 2 * _MOST_KEYS * cluster:
                    yield dataclasses.replace(tile, cluster=cluster)


def _is_usual(problem: Problem, device: Device) -> bool:
    """Whether an H200 was measured with the like, on a device that has what it has."""
    is_plain = problem.page_size > 0 and problem.layout != LATENT and problem.dtype != "float32"
    is_small = max(problem.head_dim, problem.v_head_dim) <= 128
    return is_plain and is_small and (device.compute_capability or 0) >= OLDEST_WITH_CLUSTERS


def _can_be_narrow(problem: Problem) -> bool:
    return rows(problem) <= NARROW and lacks_narrow(problem) is None


def _shared(problem: Problem, device: Device, tile: Config, each: int) -> int:
    """The programs of a key head and tile that give each multiprocessor ``each``, and each of them a block of keys."""
    most = sum(-(-visible_keys(problem, length) // tile.block_k) for length in problem.lengths)
    return max(1, min(each * units(device) // lanes(problem, tile), most, MOST_PROGRAMS))


def _most_keys(problem: Problem) -> int:
    """The keys that the longest sequence shows."""
    return max(visible_keys(problem, length) for length in problem.lengths)


def lanes(problem: Problem, tile: Config) -> int:
    """Tiles of rows that walk the same keys, of all key heads."""
    return problem.num_kv_heads * -(-rows(problem) // tile.block_q)


def rows(problem: Problem) -> int:
    """Rows that share keys: every query of every head of a group."""
    return problem.q_len * problem.group_size


def units(device: Device) -> int:
    """The multiprocessors of the device."""
    return device.units or _UNITS
