"""The kernels and configs that a caller insists on: ``platform=`` and ``cfg=`` as a ``Request``."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_tune.kernels import registry
from attn_tune.ops.registry import get_op
from attn_tune.schema.errors import UsageError, shown, unknown_name

type Platform = str | Mapping[str, str | None] | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """The kernel and the config that a caller insists on, by direction.

    Attributes:
      kernels: names of kernels; a direction that is absent is free.
      configs: config dataclasses, or their plain-data form beside a kernel's name.
    """

    kernels: Mapping[str, str] = field(default_factory=dict)
    configs: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((frozenset(self.kernels.items()), frozenset(self.configs.items())))


def request_of(op: str, platform: Platform, cfg: Any) -> Request:
    """The request of a call of ``op``.

    Raises:
      UsageError: an unknown kernel (near names are given) or direction, or a config of no kernel.
    """
    if platform is None and cfg is None:
        return Request()
    directions = get_op(op).directions
    return Request(kernels=_kernels(op, directions, platform), configs=_configs(op, directions, cfg))


def _kernels(op: str, directions: tuple[str, ...], platform: Any) -> dict[str, str]:
    if not isinstance(platform, Mapping):
        platform = dict.fromkeys(directions, platform)
    if unknown := [key for key in platform if key not in directions]:
        raise UsageError(f"platform has the key {unknown[0]!r}; its keys are {' and '.join(directions)}")
    chosen = {direction: _kernel(op, name) for direction, name in platform.items()}
    return {direction: name for direction, name in chosen.items() if name is not None}


def _kernel(op: str, platform: Any) -> str | None:
    if platform is None or (isinstance(platform, str) and platform == "auto"):
        return None
    specs = registry.kernels_of(op)
    names = [spec.name for spec in specs]
    if not isinstance(platform, str):
        raise UsageError(
            "platform must be the name of a kernel, 'auto', None, or a mapping from directions to these, "
            f"got {shown(platform)}"
        )
    if platform in names:
        return platform
    # "pallas" is what users of several backends say for whichever of them this project has.
    of_backend = [s.name for s in specs if s.backend == platform or s.backend.startswith(platform + "_")]
    if len(of_backend) == 1:
        return of_backend[0]
    raise unknown_name(f"kernel of {op}", platform, ["auto", *names])


def _configs(op: str, directions: tuple[str, ...], cfg: Any) -> dict[str, Any]:
    if cfg is None:
        return {}
    if dataclasses.is_dataclass(cfg) and not isinstance(cfg, type):
        owned = {
            direction
            for spec in registry.kernels_of(op)
            for direction, search in spec.searches.items()
            if search.config is type(cfg)
        }
        if not owned:
            raise UsageError(f"cfg is a {type(cfg).__name__}, which is the config of no kernel of {op}")
        return dict.fromkeys(sorted(owned), cfg)
    if isinstance(cfg, Mapping) and cfg and set(cfg) <= set(directions):
        return {direction: config for direction, config in cfg.items() if config is not None}
    raise UsageError(
        f"cfg must be a config dataclass or a mapping with the keys {' and '.join(directions)}, got {shown(cfg)}"
    )
