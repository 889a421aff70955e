"""The name that a call of an op leaves in the program: in the jaxpr, in StableHLO and in HLO alike.

Each launch is traced as a ``jax.jit`` of its own whose name spells the signature, in letters that every printer keeps.
XLA inlines such calls: neither the numbers nor the cost change.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_PREFIX = "attn_tune"
# Printers append numbers to a name that is taken: the end must be seen.
_NAME = re.compile(
    rf"{_PREFIX}\.(?P<op>\w+)\.v(?P<version>\d+)\.(?P<direction>fwd|bwd)(?P<items>(?:\.[a-z]+_\w[\w+-]*)*)\.end"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a marker says: a launch of one direction of one problem."""

    signature: str
    direction: str


def mark_name(signature: str, direction: str) -> str:
    """The name for a launch: ``attn_tune.flash_attention.v1.fwd.b_4.t_4096...end``."""
    head, *items = signature.split()
    op, _, version = head.partition("/")
    words = (f"{name}_{value}" for name, _, value in (item.partition("=") for item in items))
    return ".".join((_PREFIX, op, version, direction, *words, "end"))


def find_mark(text: str) -> Mark | None:
    """The marker in ``text``, wherever it stands there; None without one."""
    match = _NAME.search(text)
    if match is None:
        return None
    items = [item.replace("_", "=", 1) for item in match["items"].split(".") if item]
    head = f"{match['op']}/v{match['version']}"
    return Mark(" ".join((head, *items)), match["direction"])


def marked(
    call: Callable[..., Any], problem: Any, config: Any, signature: str, direction: str
) -> Callable[[Any], Any]:
    """``inputs -> call(problem, config, inputs)`` under the launch's name.

    Equal launches share one trace, and one function in the program, if problem and config can be hashed.
    """
    name = mark_name(signature, direction)
    try:
        return _cached(call, problem, config, name)
    except TypeError:
        # A config of somebody else's kernel may hold what has no hash.
        return _marked(call, problem, config, name)


def named_jit(function: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """``jax.jit`` of ``function`` under another name, which is seen in the program."""
    import jax

    function.__name__ = function.__qualname__ = name
    return jax.jit(function)


def _marked(call: Callable[..., Any], problem: Any, config: Any, name: str) -> Callable[[Any], Any]:
    def launch(inputs: Any) -> Any:
        return dict(call(problem, config, inputs))

    return named_jit(launch, name)


_cached = functools.lru_cache(maxsize=4096)(_marked)
