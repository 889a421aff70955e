"""Tiles of attention-like Triton kernels: their knobs, the sizes worth trying, and their fit to other lengths.

Importing this loads neither jax nor triton.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from attn_tune.kernels.knobs import Knobs, PowerOfTwo, Range, tried
from attn_tune.kernels.lang.triton.device.static import padded
from attn_tune.schema.device import Device

DECIDES_NO_CODE = "candidates and checks of tiles; a row holds its config"

MIN_BLOCK = 16  # tl.dot needs at least 16 rows and columns
_SIZES = (16, 32, 64, 128, 256)
# Rows or keys of the owned side that one warp has at least, as in the untuned choice.
_FEWEST_A_WARP = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile(Knobs):
    """One launch: a tile of ``block_q`` query rows by ``block_k`` keys.

    ``owns_keys`` is no knob: a program owns the keys of a tile and walks rows; otherwise it owns rows and walks keys.
    """

    owns_keys: ClassVar[bool] = False

    block_q: Annotated[int, PowerOfTwo(MIN_BLOCK, 512, tried=_SIZES, doc="query rows of a tile")]
    block_k: Annotated[int, PowerOfTwo(MIN_BLOCK, 512, tried=_SIZES, doc="keys of a tile")]
    num_warps: Annotated[int, PowerOfTwo(1, 16, tried=(2, 4, 8, 16), doc="warps of 32 threads that share one tile")]
    num_stages: Annotated[
        int,
        Range(1, 8, tried=(1, 2, 3, 4, 5), doc="tiles in flight between device and shared memory"),
    ]
    max_registers: Annotated[
        int | None,
        Range(
            32,
            255,
            doc="registers a thread at most, so that one more block fits a multiprocessor, what does not fit is "
            "spilled; None leaves it to the compiler",
        ),
    ] = None

    @property
    def owned(self) -> int:
        """Rows or keys of the side that a program owns."""
        return self.block_k if self.owns_keys else self.block_q

    @property
    def walked(self) -> int:
        """Rows or keys of the side that a program walks."""
        return self.block_q if self.owns_keys else self.block_k


def block_cap(length: int) -> int:
    """The largest block worth having for a length: the power of two, at least 16, that covers it."""
    return padded(length)


def cut_tile[T: Tile](tile: T, rows: int, keys: int) -> T:
    """``tile`` with no block longer than what covers ``rows`` and ``keys``; a shorter owned block has fewer warps."""
    cut = dataclasses.replace(
        tile,
        block_q=min(tile.block_q, block_cap(rows)),
        block_k=min(tile.block_k, block_cap(keys)),
    )
    if cut.owned < tile.owned:
        most = max(1, cut.owned // _FEWEST_A_WARP)
        cut = dataclasses.replace(cut, num_warps=min(tile.num_warps, most))
    return cut


def halved[T: Tile](tile: T) -> T:
    """``tile`` with half of the walked block, or of the owned one once the walked one is the smallest."""
    walked, owned = ("block_q", "block_k") if tile.owns_keys else ("block_k", "block_q")
    name = walked if tile.walked > MIN_BLOCK else owned
    return dataclasses.replace(tile, **{name: max(MIN_BLOCK, getattr(tile, name) // 2)})


def smaller[T: Tile](tile: T) -> T:
    """One step down: fewer stages, then a shorter walked block, then a shorter owned one; itself if there is none.

    Two stages are the least: without a pipeline ``mma.sync`` takes more shared memory, not less.
    """
    if tile.num_stages > 2:
        return dataclasses.replace(tile, num_stages=tile.num_stages - 1)
    return halved(tile)


def fitted[T: Tile](tile: T, fits: Callable[[T], bool]) -> T:
    """The first tile from ``tile`` down that ``fits``; the smallest one where none does."""
    while not fits(tile) and (less := smaller(tile)) != tile:
        tile = less
    return tile


def owned_sizes(most: int) -> tuple[int, ...]:
    """Blocks of the side that a program owns."""
    return tuple(size for size in tried(Tile, "block_q") if size <= most)


def walked_sizes(width: int, most: int) -> tuple[int, ...]:
    """Blocks of the side that it walks, of arrays of this head dim."""
    # Wide heads walk in short steps: at H256 a tile of 128 keys and its values are 128 KB a stage.
    return tuple(s for s in tried(Tile, "block_k") if s <= (most // 2 if width > 128 else most))


def grid(
    device: Device,
    owned_length: int,
    walked_length: int,
    owned_sizes: Iterable[int],
    walked_sizes: Iterable[int],
    most_stages: int,
) -> Iterator[tuple[int, int, int, int]]:
    """``(owned, walked, num_warps, num_stages)``, without sizes that lengths or architecture make pointless."""
    owned_cap, walked_cap = block_cap(owned_length), block_cap(walked_length)
    hopper = (device.compute_capability or 0) == 90
    for owned, walked in itertools.product(owned_sizes, walked_sizes):
        if owned > owned_cap or walked > walked_cap:
            continue
        # Tiny tiles only where the length is tiny: elsewhere they read the walked arrays too often.
        if owned < min(owned_cap, 32) or walked < min(walked_cap, 32 if walked_cap <= 64 else 16):
            continue
        blocks = -(-walked_length // walked)
        for warps in _warps(owned, hopper):
            for stages in range(1, most_stages + 1):
                if stages == 1 or stages <= blocks:
                    yield owned, walked, warps, stages


def _warps(owned: int, hopper: bool) -> tuple[int, ...]:
    """Each warp needs 16 rows of its own; on Hopper four warps share a ``wgmma`` of 64."""
    if owned <= 32:
        return (2, 4)
    if owned == 64:
        return (4, 8) if hopper else (2, 4, 8)
    return (4, 8) if owned == 128 else (8, 16)


def nearest_first[T: Tile](
    start: T, tiles: Iterable[T], knobs: Sequence[str] = ("block_q", "block_k", "num_warps")
) -> tuple[T, ...]:
    """``start``, then the others by how many doublings of ``knobs`` away they are; all distinct."""

    def distance(tile: T) -> tuple:
        steps = [abs(math.log2(getattr(tile, name) / getattr(start, name))) for name in knobs]
        capped = 0 if tile.max_registers is None else 1
        far = sum(steps) + abs(tile.num_stages - start.num_stages) + capped
        # The text last: it tells apart what differs in a knob of its own kernel.
        return (far, *(getattr(tile, name) for name in knobs), tile.num_stages, capped, str(tile))

    others = sorted(set(tiles) - {start}, key=distance)
    return (start, *others)
