"""Names of directions, and of the parts that a direction is made of."""

import re

WHOLE = ""
_DIRECTION = re.compile(r"[a-z][a-z0-9_]*")


def is_direction(name: object) -> bool:
    """Whether ``name`` may name a direction of an op."""
    return isinstance(name, str) and _DIRECTION.fullmatch(name) is not None
