"""An executor that answers from a table instead of a device, and kernels made of nothing but their declarations."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.trial import Measurement, OutputError, Protocol, Resources, Status
from attn_tune.tuner.protocol import Finals, FinalsOutcome, Outcome, Run
from attn_tune.tuner.run.executor import CaseError


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A config of one launch."""

    size: int = 4


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A config of two launches."""

    a: Tile = Tile()
    b: Tile = Tile()


def one_launch(name: str, sizes, *, infeasible=lambda problem, device, config: None, grows=()) -> KernelSpec:
    """A forward with a single part; ``Tile(4)`` is the heuristic."""
    search = Search(
        config=Tile,
        heuristic=lambda problem, device: Tile(),
        candidates={"": lambda problem, device: [Tile(size=s) for s in sizes]},
        call="attn_tune.kernels.flash_attention.xla.forward:forward",
        infeasible=infeasible,
        grows=grows,
    )
    return kernel(name, {"fwd": search})


def two_launches(name: str, a_sizes, b_sizes) -> KernelSpec:
    """A forward with parts ``a`` and ``b``."""
    search = Search(
        config=Pair,
        heuristic=lambda problem, device: Pair(),
        candidates={
            "a": lambda problem, device: [Tile(size=s) for s in a_sizes],
            "b": lambda problem, device: [Tile(size=s) for s in b_sizes],
        },
        call="attn_tune.kernels.flash_attention.xla.forward:forward",
        outputs={"a": ("out",), "b": ("lse",)},
    )
    return kernel(name, {"fwd": search})


def kernel(name: str, searches: Mapping[str, Search], **changes) -> KernelSpec:
    """A kernel of ``flash_attention`` that supports everything, unless changed."""
    values = {
        "op": "flash_attention",
        "name": name,
        "backend": "xla",
        "searches": searches,
        "unsupported": lambda problem, direction, device: None,
    }
    return KernelSpec(**(values | changes))


@dataclass
class ReplayExecutor:
    """``times`` gives nanoseconds by (kernel name, part, size or sizes); what is absent is ``incorrect``.

    So is a size of ``wrong_on_features`` on a feature problem; ``on_features`` are the sizes that were run on one.
    Sizes from ``too_large`` on are out of resources; ``programs`` are the digests of what sizes lower to. The bits of
    ``wavering`` sizes differ from run to run, by where that is seen: ``"search"``, ``"features"`` or ``"finals"``.
    """

    times: Mapping[tuple, int]
    wrong_on_features: Collection[int] = ()
    on_features: list = field(default_factory=list)
    broken_finals: bool = False
    too_large: float = math.inf
    programs: Mapping[int, str] = field(default_factory=dict)
    wavering: Mapping[int, str] = field(default_factory=dict)
    # What was measured; feature problems are not.
    runs: list[Run] = field(default_factory=list)
    races: list[Finals] = field(default_factory=list)
    expected: list = field(default_factory=list)
    interrupt: object = None

    def expect(self, refs, device) -> None:
        self.expected.append(tuple(refs))

    def run(self, request: Run) -> Outcome:
        if request.measure:
            self.runs.append(request)
        ref = request.ref
        config = ref.config[ref.part] if ref.part else ref.config
        resources = Resources()
        if "size" in config:
            if config["size"] >= self.too_large:
                return Outcome(status=Status.OUT_OF_RESOURCES, reason="shared memory is full")
            resources = Resources(code_digest=self.programs.get(config["size"], ""))
            if request.measure and (twin := request.same_program_outcome(resources)):
                return twin
        ns = self.times.get((ref.kernel.partition("/")[2], ref.part, _sizes(config)))
        if ref.problem is not None:
            self.on_features += [_sizes(config)] * (_sizes(config) not in self.on_features)
        if ns is None or (ref.problem is not None and _sizes(config) in self.wrong_on_features):
            bad = (OutputError(output="out", error=2.0, allowed=1.0),)
            return Outcome(status=Status.INCORRECT, reason="out is wrong", errors=bad)
        if not request.measure:
            return Outcome(status=Status.OK, repeatable=self._repeats(config, "features"))
        return replace(self._ok(ns), resources=resources, repeatable=self._repeats(config, "search"))

    def finals(self, request: Finals) -> FinalsOutcome:
        self.races.append(request)
        if self.broken_finals:
            raise CaseError("the finals died")
        return FinalsOutcome(
            outcomes=tuple(
                replace(
                    self._ok(
                        self.times[ref.kernel.partition("/")[2], ref.part, _sizes(ref.config)],
                        round_id=request.round_id,
                    ),
                    repeatable=self._repeats(ref.config, "finals"),
                )
                for ref in request.refs
            )
        )

    def _repeats(self, config: Mapping, where: str) -> bool:
        return self.wavering.get(config.get("size")) != where

    def _ok(self, ns: int, *, round_id: str = "") -> Outcome:
        protocol = Protocol(timer="host", warmup=1, flush_l2=False, interleaved=bool(round_id))
        measurement = Measurement(samples_ns=(ns,) * (24 if round_id else 3), protocol=protocol, round_id=round_id)
        good = (OutputError(output="out", error=0.5, allowed=1.0),)
        return Outcome(
            status=Status.OK,
            errors=() if round_id else good,
            measurement=measurement,
        )


def _sizes(config: Mapping) -> int | tuple[int, ...]:
    if "size" in config:
        return config["size"]
    return tuple(part["size"] for part in config.values())
