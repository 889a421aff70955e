"""Types of jaxlib's compiled module, which ships none: without them all of ``jax.numpy`` is partially unknown."""

from typing import Any

class Device: ...

def __getattr__(name: str) -> Any: ...
