"""The blocks and layouts of a config, by the naming that all kernels share."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

# What JAX's own TPU kernels use unless they are told otherwise.
JAX_DEFAULT_BLOCK = 128
JAX_DEFAULT_LAYOUT = "head_dim_minor"


def has_default_blocks(config: Mapping[str, Any]) -> bool:
    """Whether every block is JAX's default, every layout too, and there is one."""
    blocks = _blocks(config)
    layouts = [value for name, value in _knobs(config) if name.endswith("_layout")]
    return (
        bool(blocks)
        and all(block == JAX_DEFAULT_BLOCK for block in blocks)
        and all(layout == JAX_DEFAULT_LAYOUT for layout in layouts)
    )


def has_block_of(config: Mapping[str, Any], lengths: Collection[int]) -> bool:
    """Whether a block of a config is as long as one of ``lengths``: then there is only one."""
    return any(block in lengths for block in _blocks(config))


def _blocks(config: Mapping[str, Any]) -> list[Any]:
    """The sizes of those along lengths: not of a batch's."""
    knobs = _knobs(config)
    return [value for name, value in knobs if name.startswith("block_") and name != "block_b"]


def _knobs(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Those of each part, too."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _knobs(value)
        else:
            yield name, value
