"""The blocks of a config, by the naming that all kernels share."""

from collections.abc import Iterator, Mapping
from typing import Any

# What JAX's own TPU kernels use unless they are told otherwise.
JAX_DEFAULT_BLOCK = 128


def has_default_blocks(config: Mapping[str, Any]) -> bool:
    """Whether every block is JAX's default, every layout too, and there is one."""
    blocks = list(_blocks(config))
    return bool(blocks) and all(block == JAX_DEFAULT_BLOCK for block in blocks)


def _blocks(config: Mapping[str, Any]) -> Iterator[Any]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _blocks(value)
        elif name.startswith("block_") and name != "block_b":
            yield value
