"""What a caller insists on: ``platform=`` and ``cfg=`` as a ``Request``."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from attn_tune.kernels import registry
from attn_tune.kernels.flash_attention.core import Request
from attn_tune.kernels.flash_attention.problem import NAME
from attn_tune.schema.errors import UsageError, unknown_name


def request_of(platform: str | Mapping[str, str | None] | None, cfg: Any) -> Request:
    """The request of a call.

    Raises:
      UsageError: an unknown kernel (near names are given) or direction, or a config of no kernel.
    """
    return Request(kernels=_kernels(platform), configs=_configs(cfg))


DIRECTIONS = ("fwd", "bwd")


def _kernels(platform: Any) -> dict[str, str]:
    if not isinstance(platform, Mapping):
        platform = dict.fromkeys(DIRECTIONS, platform)
    if unknown := [key for key in platform if key not in DIRECTIONS]:
        raise UsageError(
            f"platform has the key {unknown[0]!r}; its keys are {' and '.join(DIRECTIONS)}"
        )
    chosen = {direction: _kernel(name) for direction, name in platform.items()}
    return {direction: name for direction, name in chosen.items() if name is not None}


def _kernel(platform: Any) -> str | None:
    if platform is None or platform == "auto":
        return None
    specs = registry.kernels_of(NAME)
    names = [spec.name for spec in specs]
    if not isinstance(platform, str):
        raise UsageError(
            "platform must be the name of a kernel, 'auto', None, or a mapping from directions to these, "
            f"got {platform!r}"
        )
    if platform in names:
        return platform
    # "pallas" is what users of several backends say for whichever of them this project has.
    of_backend = [
        s.name for s in specs if s.backend == platform or s.backend.startswith(platform + "_")
    ]
    if len(of_backend) == 1:
        return of_backend[0]
    raise unknown_name(f"kernel of {NAME}", platform, ["auto", *names])


def _configs(cfg: Any) -> dict[str, Any]:
    if cfg is None:
        return {}
    if dataclasses.is_dataclass(cfg) and not isinstance(cfg, type):
        directions = {
            direction
            for spec in registry.kernels_of(NAME)
            for direction, search in spec.searches.items()
            if search.config is type(cfg)
        }
        if not directions:
            raise UsageError(
                f"cfg is a {type(cfg).__name__}, which is the config of no kernel of {NAME}"
            )
        return dict.fromkeys(sorted(directions), cfg)
    if isinstance(cfg, Mapping) and cfg and set(cfg) <= set(DIRECTIONS):
        return {direction: config for direction, config in cfg.items() if config is not None}
    raise UsageError(
        f"cfg must be a config dataclass or a mapping with the keys {' and '.join(DIRECTIONS)}, got {cfg!r}"
    )
