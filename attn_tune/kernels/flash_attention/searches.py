"""Searches of this op's kernels: what most kernels declare alike, so that their folders say what is their own."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

from attn_tune.kernels.knobs import first_reason
from attn_tune.kernels.spec import Config, Problem, Search
from attn_tune.schema.device import Device
from attn_tune.schema.direction import WHOLE

type Candidates = Callable[[Problem, Device], Iterable[Config]]


def forward(package: str, config: type, *, candidates: Candidates, **more: Any) -> Search:
    """The search of ``package.forward:forward``, one launch that makes ``out`` and ``lse``."""
    return Search(
        config=config,
        candidates={WHOLE: candidates},
        call=f"{package}.forward:forward",
        **more,
    )


def backward(
    package: str,
    config: type,
    *,
    candidates: Candidates,
    **more: Any,
) -> Search:
    """The search of ``package.backward:backward``, one launch that makes all gradients."""
    return Search(
        config=config,
        candidates={WHOLE: candidates},
        call=f"{package}.backward:backward",
        **more,
    )


def backward_in_parts(
    package: str,
    config: type,
    *,
    dq: Candidates,
    dkv: Candidates,
    infeasible: Callable[[Problem, Device, Config], str | None],
    has_dbias: bool = False,
    **more: Any,
) -> Search:
    """The search of ``package.backward:backward``, of two launches: one makes ``dq``, one ``dk`` and ``dv``.

    Args:
      infeasible: of one launch; of a whole config the first reason counts.
      has_dbias: the launch of ``dq`` makes the gradient of a bias too.
    """
    return Search(
        config=config,
        candidates={"dq": dq, "dkv": dkv},
        call=f"{package}.backward:backward",
        outputs={"dq": ("dq", "dbias") if has_dbias else ("dq",), "dkv": ("dk", "dv")},
        infeasible=functools.partial(first_reason, infeasible),
        **more,
    )
