"""The name that a call of an op leaves in the program: in the jaxpr, in StableHLO and in HLO alike.

Each launch is traced as a ``jax.jit`` of its own whose name spells the signature, in letters that every printer keeps.
XLA inlines such calls: neither the numbers nor the cost change.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_tune.ops.cached import cached

_PREFIX = "attn_tune"
# Printers append numbers to a name that is taken: the end must be seen.
_NAME = re.compile(
    rf"{_PREFIX}\.(?P<op>\w+)\.v(?P<version>\d+)\.(?P<direction>[a-z][a-z0-9_]*)(?P<items>(?:\.[a-z]+_\w[\w+-]*)*)\.end(?P<cut>\.cut)?"
)


@dataclass(frozen=True, slots=True)
class Mark:
    """The content of a marker: a launch of one direction of one problem.

    Attributes:
      signature, direction: those of the launch; the signature is its text.
      is_cut: XLA cuts it over devices, and the launches of the shards have marks of their own.
    """

    signature: str
    direction: str
    is_cut: bool = False


def mark_name(signature: str, direction: str) -> str:
    """The name for a launch: ``attn_tune.OP.v1.fwd.b_4.t_4096...end``."""
    head, *items = signature.split()
    op, _, version = head.partition("/")
    words = (f"{name}_{value}" for name, _, value in (item.partition("=") for item in items))
    return ".".join((_PREFIX, op, version, direction, *words, "end"))


def cut_name(signature: str, direction: str, packs: str) -> str:
    """The name for a launch that XLA cuts over devices; ``packs`` names what decides the configs of its shards.

    XLA's compilation cache knows a program before it is cut only, so this must be part of the program.
    """
    return f"{mark_name(signature, direction)}.cut.{packs}"


def find_mark(text: str) -> Mark | None:
    """The innermost marker in ``text``, wherever it stands there; None without one."""
    matches = list(_NAME.finditer(text))
    if not matches:
        return None
    match = matches[-1]
    items = [item.replace("_", "=", 1) for item in match["items"].split(".") if item]
    head = f"{match['op']}/v{match['version']}"
    return Mark(" ".join((head, *items)), match["direction"], match["cut"] is not None)


def named_jit(function: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """``jax.jit`` of ``function`` under another name, which is seen in the program."""
    import jax

    function.__name__ = function.__qualname__ = name
    return jax.jit(function)  # pyright: ignore[reportUnknownMemberType]


@cached
def marked(call: Callable[..., Any], problem: Any, config: Any, signature: str, direction: str) -> Callable[[Any], Any]:
    """``inputs -> call(problem, config, inputs)`` under the launch's name.

    Equal launches share one trace, and one function in the program, if problem and config can be hashed.
    """

    def launch(inputs: Any) -> Any:
        return call(problem, config, inputs)

    return named_jit(launch, mark_name(signature, direction))
