"""Read the text that libtpu writes of its last schedule (``--xla_jf_dump_llo_text``): bundles, branches, loops.

One line begins a bundle: its address, maybe a mark (``LB`` a loop's body, ``PF`` where a skipped region ends), and
the instructions in braces. A branch names the region that it goes to; the bundle where that region starts says so in a
comment.
The four bundles after a branch are executed whether it is taken or not.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from attn_tune.tuner.offline.predict.schedule import KernelSchedule, Stretch

DELAY_SLOTS = 4
VMEM_TILE_BYTES = 4096  # one vector register: 8 x 128 x 4

_BUNDLE = re.compile(r"^\s*(0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?:(?:\s*>)*\s*\{")
_BRANCH = re.compile(r"sbr\.rel\s+\(.*?target = \$region(\d+)")
_REGION = re.compile(r"Start(?:/End empty)? region (\d+)")
_EXIT = re.compile(r"scmp\.\w+\.s32\.totalorder %s\w+, (\d+) /\* loop exit test \*/")
_ALLOCATION = re.compile(r"#allocation\d+ \[shape = '[^']*', space=vmem, size = (0x[0-9a-f]+)")
_SPILL_SLOT = re.compile(r"vst \[vmem:\[(#allocation\d+_spill)")
_UNITS = (
    ("matmul", re.compile(r"= vmatmul")),
    ("transcendental", re.compile(r"= v(?:pow2|exp2|rcp|rsqrt|log2|tanh|erf)\b")),
    ("cross_lane", re.compile(r"= v(?:max|add|min)\.xlane|= v(?:xpose|rot)")),
    ("spill", re.compile(r"v(?:st|ld) \[vmem:\[#allocation\d+_spill")),
)


@dataclass
class _Bundle:
    address: int
    regions: list[int] = field(default_factory=list)
    target: int | None = None
    exit_count: int | None = None
    units: Counter[str] = field(default_factory=Counter)


def read_schedule(name: str, bundles: Iterable[str], allocations: Iterable[str] = ()) -> KernelSchedule:
    """The schedule in the lines of a ``final_bundles`` file, with VMEM from those of a ``pre-finalize`` file."""
    found, slots = _bundles(bundles)
    spilled = len(slots) * VMEM_TILE_BYTES
    return KernelSchedule(
        name=name,
        stretches=_stretches(found),
        vmem_bytes=_allocated(allocations) + spilled,
        spill_bytes=spilled,
    )


def _bundles(lines: Iterable[str]) -> tuple[list[_Bundle], set[str]]:
    bundles: list[_Bundle] = []
    slots: set[str] = set()
    for line in lines:
        if begin := _BUNDLE.match(line):
            bundles.append(_Bundle(int(begin[1], 16)))
        if not bundles:
            continue
        bundle = bundles[-1]
        bundle.regions += map(int, _REGION.findall(line))
        if branch := _BRANCH.search(line):
            bundle.target = int(branch[1])
        if test := _EXIT.search(line):
            bundle.exit_count = int(test[1])
        for unit, pattern in _UNITS:
            if count := len(pattern.findall(line)):
                bundle.units[unit] += count
        slots.update(_SPILL_SLOT.findall(line))
    return bundles, slots


@dataclass(frozen=True, slots=True)
class _Span:
    """Bundles ``first`` to ``last``: a loop's body, or a region that a branch skips."""

    first: int
    last: int
    is_loop: bool
    trips: int | None = None


def _spans(bundles: list[_Bundle]) -> Iterator[_Span]:
    starts = {region: bundle.address for bundle in reversed(bundles) for region in bundle.regions}
    for bundle in bundles:
        if bundle.target is None or bundle.target not in starts:
            continue
        target = starts[bundle.target]
        after = bundle.address + DELAY_SLOTS
        if target > after:
            yield _Span(after + 1, target - 1, is_loop=False)
        elif target <= bundle.address:
            tests = [b for b in bundles if target <= b.address <= after and b.exit_count is not None]
            # The test nearest to the branch is that of this loop; inner loops end earlier.
            trips = tests[-1].exit_count if tests else None
            yield _Span(target, after, is_loop=True, trips=trips)


def _stretches(bundles: list[_Bundle]) -> tuple[Stretch, ...]:
    """Bundles grouped by the spans around them, in order."""
    spans = sorted(_spans(bundles), key=lambda span: (span.first, -span.last))
    groups: dict[tuple[_Span, ...], list[_Bundle]] = {}
    for bundle in bundles:
        around = tuple(s for s in spans if s.first <= bundle.address <= s.last)
        groups.setdefault(around, []).append(bundle)
    return tuple(_stretch(around, inside) for around, inside in groups.items())


def _stretch(around: tuple[_Span, ...], inside: list[_Bundle]) -> Stretch:
    units: Counter[str] = sum((bundle.units for bundle in inside), Counter())
    skippable = 0
    for span in around:
        skippable = 0 if span.is_loop else skippable + 1
    return Stretch(
        bundles=len(inside),
        skippable=skippable,
        loops=tuple(span.trips for span in around if span.is_loop),
        units=dict(units),
    )


def _allocated(lines: Iterable[str]) -> int:
    """The bytes of VMEM; the list of allocations stands at the top of the file."""
    held = 0
    for line in lines:
        if _BUNDLE.match(line):
            break
        if allocation := _ALLOCATION.search(line):
            held += int(allocation[1], 16)
    return held
