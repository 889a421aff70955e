"""Dense attention left to XLA. It has nothing to tune; it is swept so that it can be compared."""

from attn_tune.kernels.attention.xla.config import Config
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.ops.attention.problem import Problem
from attn_tune.schema.device import Device

_HERE = "attn_tune.kernels.attention.xla"


def _unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    return None


def _search(direction: str) -> Search:
    return Search(
        config=Config,
        heuristic=lambda problem, device: Config(),
        candidates={"": lambda problem, device: (Config(),)},
        call=f"{_HERE}.kernel:{direction}",
    )


SPEC = KernelSpec(
    op="attention",
    name="xla",
    backend="xla",
    searches={
        "fwd": _search("forward"),
        "bwd": _search("backward"),
    },
    unsupported=_unsupported,
    summary="dense attention with its weights, compiled by XLA",
)
