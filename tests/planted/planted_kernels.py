"""Kernels with planted defects, as a third party would ship them: found through the entry point beside."""

from collections.abc import Callable
from dataclasses import dataclass

from attn_tune.kernels.spec import KernelSpec, Search

PHASES = {"hang_in_compile", "raise_in_trace", "exit_in_trace"}
DEFECTS = (
    "none",
    "wrong",
    "wrong_on_odd",
    "nan",
    "flaky",
    "missing_lse",
    "raise_in_trace",
    "out_of_memory",
    "raise_in_run",
    "exit_in_trace",
    "segfault_in_run",
    "hang_in_compile",
    "hang_in_run",
)


@dataclass(frozen=True, kw_only=True)
class ForwardConfig:
    """``defect`` is what goes wrong; ``turn`` tells apart configs that are otherwise the same."""

    defect: str = "none"
    turn: int = 0


@dataclass(frozen=True, kw_only=True)
class PartConfig:
    """The config of one launch of the backward."""

    defect: str = "none"
    turn: int = 0


@dataclass(frozen=True, kw_only=True)
class BackwardConfig:
    """Two launches, searched apart."""

    dq: PartConfig = PartConfig()
    dkv: PartConfig = PartConfig()


def _forwards(*configs: ForwardConfig) -> Search:
    return Search(
        config=ForwardConfig,
        heuristic=lambda problem, device: ForwardConfig(),
        candidates={"": lambda problem, device: configs},
        call="planted_launches:forward",
        outputs={"": ()},
    )


def _infeasible(problem, device, config) -> str | None:
    if getattr(config, "turn", 0) == 99:
        return "99 turns need more shared memory than there is"
    return None


BACKWARD = Search(
    config=BackwardConfig,
    heuristic=lambda problem, device: BackwardConfig(),
    candidates={
        "dq": lambda problem, device: (PartConfig(turn=1), PartConfig(turn=99)),
        "dkv": lambda problem, device: (PartConfig(defect="wrong_dk"), PartConfig(turn=1)),
    },
    call="planted_launches:backward",
    outputs={"dq": ("dq",), "dkv": ("dk", "dv")},
    infeasible=_infeasible,
)


def _kernel(
    name: str,
    searches: dict[str, Search],
    unsupported: Callable = lambda problem, direction, device: None,
) -> KernelSpec:
    return KernelSpec(
        op="flash_attention",
        name=name,
        backend="xla",
        searches=searches,
        unsupported=unsupported,
        modules=("planted_kernels", "planted_launches"),
    )


def _broken(problem, device):
    raise ZeroDivisionError("no tile is small enough")


def specs() -> list[KernelSpec]:
    """One kernel a defect, an honest one, and some that cannot be planned."""
    defects = [
        _kernel(
            f"planted_{defect}",
            {"fwd": _forwards(ForwardConfig(defect=defect), ForwardConfig(turn=1))},
        )
        for defect in DEFECTS
    ]
    refused = _kernel("planted_refused", {"fwd": _forwards()}, lambda *_: "it never works here")
    backward = _kernel("planted_backward", {"bwd": BACKWARD})
    broken = _kernel(
        "planted_broken",
        {
            "fwd": Search(
                config=ForwardConfig,
                heuristic=_broken,
                candidates={"": lambda problem, device: ()},
                call="planted_launches:forward",
                outputs={"": ()},
            )
        },
    )
    return [*defects, refused, backward, broken]
