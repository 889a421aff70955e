"""Configs that somebody proposes: a search tries them first, and proves and times them like all others."""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.kernels.registry import find_kernel
from attn_tune.kernels.spec import Search
from attn_tune.ops.registry import get_op
from attn_tune.schema.config import config_from_dict
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Signature
from attn_tune.schema.trial import WHOLE
from attn_tune.tuner.plan.case import Case
from attn_tune.tuner.plan.strategies.nearness import distance


@dataclass(frozen=True, kw_only=True)
class Hint:
    """A config of a kernel, as its source spells it.

    Attributes:
      kernel: ``"op/name"``.
      direction: name of the direction.
      config: the knobs of the whole direction.
      signature: text of the problem that it comes from, ``""`` for any.
    """

    kernel: str
    direction: str
    config: Mapping[str, Any]
    signature: str = ""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A hint that has been checked.

    Attributes:
      kernel: ``"op/name"``.
      direction: name of the direction.
      config: the config, of the dataclass of the search.
      signature: the problem that it comes from, None for any.
    """

    kernel: str
    direction: str
    config: Any
    signature: Signature | None


def check_hint(hint: Hint) -> Proposal:
    """The proposal that ``hint`` is.

    Raises:
      UsageError: its kernel is not installed here or does not implement the direction, it has a knob that the kernel
        does not have or a value that the knob may not have, or its signature is no problem of the op.
    """
    spec = find_kernel(hint.kernel)
    search = spec and spec.searches.get(hint.direction)
    if search is None:
        raise UsageError(f"{hint.kernel} is no kernel here that implements {hint.direction}")
    signature = get_op(hint.kernel.partition("/")[0]).parse_signature(hint.signature) if hint.signature else None
    return Proposal(
        kernel=hint.kernel,
        direction=hint.direction,
        config=config_from_dict(search.config, hint.config),
        signature=signature,
    )


def proposed(
    proposals: Iterable[Proposal], kernel: str, search: Search, case: Case, device: Device
) -> dict[str, list[Any]]:
    """The configs by part that ``proposals`` have for ``kernel`` on ``case``, those of the nearest problems first.

    The config of another problem is adapted to that of ``case``, as a lookup would; where that cannot be, it is tried
    as it is.
    """
    problem = case.op.from_signature(case.signature)
    mine = [one for one in proposals if (one.kernel, one.direction) == (kernel, case.direction)]
    mine.sort(key=lambda one: distance(one.signature, case.signature, case.op.fields) if one.signature else 0.0)
    found: dict[str, list[Any]] = {part: [] for part in search.parts}
    for one in mine:
        config = one.config
        if one.signature is not None and one.signature != case.signature:
            tuned = case.op.from_signature(one.signature)
            with contextlib.suppress(UsageError):
                config = search.adapt(tuned, problem, device, config) or config
        for part, configs in found.items():
            configs.append(config if part == WHOLE else getattr(config, part))
    return found
