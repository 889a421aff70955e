"""The equations of a traced program, those of the programs inside it too."""

from collections.abc import Iterator
from typing import Any


def equations(jaxpr: Any, primitive: str) -> Iterator[Any]:
    """The equations of a primitive in a jaxpr and in those that its equations hold, in order."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == primitive:
            yield equation
        else:
            for inner in inner_jaxprs(equation.params):
                yield from equations(inner, primitive)


def inner_jaxprs(params: Any) -> Iterator[Any]:
    """The jaxprs among the parameters of an equation, such as a loop's or a call's."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            program = getattr(item, "jaxpr", item)
            if hasattr(program, "eqns"):
                yield program
