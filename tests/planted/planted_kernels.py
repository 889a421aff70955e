"""Kernels with planted defects, as a third party would ship them: found through the entry point beside."""

import os
from dataclasses import dataclass

from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.tuner.work import side_effects

# Much of the planted harm is a callback. Workers are processes of their own and inherit the variable.
if os.environ.get("PLANTED_CALLBACKS") == "1":
    side_effects.callbacks_allowed = True


@dataclass(frozen=True, kw_only=True)
class ForwardConfig:
    """``defect`` is what goes wrong; ``turn`` tells apart configs that are otherwise the same.

    Of ``slips`` and ``wavers``, ``turn`` is the call that goes wrong, counted from 0 for each traced program.
    """

    defect: str = "none"
    turn: int = 0


@dataclass(frozen=True, kw_only=True)
class PartConfig:
    """The config of one launch of the backward. ``work`` makes it slower."""

    defect: str = "none"
    work: int = 8


@dataclass(frozen=True, kw_only=True)
class BackwardConfig:
    """Two launches, searched apart."""

    dq: PartConfig = PartConfig()
    dkv: PartConfig = PartConfig()


WRONG = (
    "wrong",
    "wrong_on_odd",
    "flaky",
    "missing_lse",
)
# Other defects are tried by ``planted_battery``. The last one is merely wrong, but the next config dies of what it
# leaves behind. There are more feature problems.
DEADLY = ("exit_in_trace", "poison")
TOO_BIG = 99


def _forward(*defects: str) -> Search:
    configs = (*(ForwardConfig(defect=defect) for defect in defects), ForwardConfig(turn=1))
    return Search(
        config=ForwardConfig,
        heuristic=lambda problem, device: ForwardConfig(),
        candidates={"": lambda problem, device: configs},
        call="planted_launches:forward",
    )


def _infeasible(problem, device, config) -> str | None:
    if getattr(config, "work", 0) == TOO_BIG:
        return f"work={TOO_BIG} needs more shared memory than there is"
    return None


BACKWARD = Search(
    config=BackwardConfig,
    heuristic=lambda problem, device: BackwardConfig(),
    candidates={
        "dq": lambda problem, device: (PartConfig(work=0), PartConfig(work=TOO_BIG)),
        "dkv": lambda problem, device: (
            PartConfig(defect="wrong_dk", work=0),
            PartConfig(work=0),
        ),
    },
    call="planted_launches:backward",
    outputs={"dq": ("dq",), "dkv": ("dk", "dv")},
    infeasible=_infeasible,
)


def _short_keys_only(problem, direction, device) -> str | None:
    """Keeps the feature problems down to one, for the tests' sake; a truthful limit all the same."""
    return "it holds 200 keys at most" if problem.kv_len > 200 else None


def _tiny_only(problem, direction, device) -> str | None:
    """A truthful limit that no feature problem is within, for a kernel that can prove nothing."""
    return "it holds 20 keys at most" if problem.kv_len > 20 else None


def _whole_sixteens(problem, direction, device) -> str | None:
    if problem.q_len % 16 or problem.kv_len % 16:
        return "its lengths are multiples of 16"
    return None


def _kernel(name: str, searches: dict[str, Search], unsupported=_short_keys_only) -> KernelSpec:
    return KernelSpec(
        op="flash_attention",
        name=name,
        backend="xla",
        searches=searches,
        unsupported=unsupported,
    )


# Right only in a process that has traced others before it.
NEEDS_OTHERS = Search(
    config=ForwardConfig,
    heuristic=lambda problem, device: ForwardConfig(),
    candidates={
        "": lambda problem, device: (
            ForwardConfig(defect="wrong", turn=2),
            ForwardConfig(defect="wrong_alone", turn=1),
        )
    },
    call="planted_launches:forward",
)


# The causal edge is at the top left: right where there are as many queries as keys.
TOP_LEFT = Search(
    config=ForwardConfig,
    heuristic=lambda problem, device: ForwardConfig(),
    candidates={"": lambda problem, device: ()},
    call="planted_launches:top_left",
)


def _no_heuristic(problem, device):
    raise ZeroDivisionError("no tile is small enough")


def specs() -> list[KernelSpec]:
    """Kernels that run, with configs that are wrong or deadly, and kernels that cannot be planned."""
    broken = Search(
        config=ForwardConfig,
        heuristic=_no_heuristic,
        candidates={"": lambda problem, device: ()},
        call="planted_launches:forward",
    )
    return [
        _kernel("planted_wrong", {"fwd": _forward(*WRONG)}),
        _kernel("planted_deadly", {"fwd": _forward(*DEADLY)}),
        _kernel("planted_backward", {"bwd": BACKWARD}),
        _kernel("planted_refused", {"fwd": _forward()}, lambda *_: "it never works here"),
        _kernel("planted_broken", {"fwd": broken}),
        _kernel("needs_others", {"fwd": NEEDS_OTHERS}),
        _kernel("top_left", {"fwd": TOP_LEFT}, _whole_sixteens),
        _kernel("quick", {"fwd": _forward("wrong", "nan")}),
        _kernel("tiny_only", {"fwd": _forward()}, _tiny_only),
    ]
