"""The schedule that the TPU's compiler made of one launch, cut down to a prediction's needs. Plain data.

A TPU core issues one bundle of instructions a cycle, in order, and its compiler knows every latency: the bundles
that are executed *are* the cycles, but for waits on copies. So a schedule is a list of stretches of bundles and the
conditions under which they are executed.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

# Steps that only fill and drain the pipeline: the compiler counts them in the loop.
PIPELINE_STEPS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Stretch:
    """Bundles that are executed together.

    Attributes:
      bundles: cycles of one execution, without those of stretches inside it.
      skippable: how many branches may skip it within its innermost loop.
      loops: trip counts of the loops around it, outermost first; None for one that the compiler did not know.
      units: instructions by unit: ``matmul``, ``transcendental``, ``cross_lane``, ``spill``.
    """

    bundles: int
    skippable: int = 0
    loops: tuple[int | None, ...] = ()
    units: Mapping[str, int] = field(default_factory=dict)

    @property
    def multiplies(self) -> bool:
        """Whether the matrix unit is used."""
        return self.units.get("matmul", 0) > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelSchedule:
    """The schedule of one launch.

    Attributes:
      name: the compiler's, without its number.
      stretches: bundles by the condition under which they are executed.
      vmem_bytes: everything that it holds in VMEM.
      spill_bytes: the part of that for spilled registers.
      steps: of the whole grid, on all cores; None where they are not known.
      is_parallel: whether cores may share the grid.
    """

    name: str
    stretches: tuple[Stretch, ...]
    vmem_bytes: int = 0
    spill_bytes: int = 0
    steps: int | None = None
    is_parallel: bool = False

    @property
    def bundles(self) -> int:
        """All bundles, each once."""
        return sum(stretch.bundles for stretch in self.stretches)

    @property
    def multiplies(self) -> bool:
        """Whether the matrix unit is used."""
        return any(stretch.multiplies for stretch in self.stretches)

    @property
    def grid_steps(self) -> int | None:
        """Trip count of the outermost loop; None where the compiler did not know it."""
        return next((stretch.loops[0] for stretch in self.stretches if stretch.loops), None)

    def with_steps(self, steps: int | None) -> "KernelSchedule":
        """This schedule with the trips of a grid of ``steps``.

        The outermost loop goes over all steps of a core, and over those that fill and drain the pipeline.
        """
        if self.steps is None or steps is None or self.grid_steps is None:
            return self
        trips = round((self.grid_steps - PIPELINE_STEPS) * steps / self.steps) + PIPELINE_STEPS
        return replace(
            self,
            steps=steps,
            stretches=tuple(replace(s, loops=(trips, *s.loops[1:])) if s.loops else s for s in self.stretches),
        )


def schedule_to_dict(schedule: KernelSchedule) -> dict[str, Any]:
    """The plain-data form."""
    return asdict(schedule)


def schedule_from_dict(data: Mapping[str, Any]) -> KernelSchedule:
    """The inverse of ``schedule_to_dict``."""
    stretches = tuple(Stretch(**{**s, "loops": tuple(s["loops"])}) for s in data["stretches"])
    return KernelSchedule(**{**data, "stretches": stretches})
