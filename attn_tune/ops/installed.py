"""Entry points of installed packages, loaded one by one; a broken package is left out and reported."""

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attn_tune.schema.errors import short
from attn_tune.schema.signals import is_of_handler
from attn_tune.schema.words import printable

_MAX_ERROR = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenPackage:
    """An installed package whose ops or kernels are left out.

    Attributes:
      package: the name of the distribution.
      entry_point: the entry point that failed, as ``name = module:attribute``.
      error: the error as one line, with its type.
      offers: ``"ops"`` or ``"kernels"``.
    """

    package: str
    entry_point: str
    error: str
    offers: str = "kernels"

    def __str__(self) -> str:
        return f"the {self.offers} of package {self.package!r} ({self.entry_point}) are left out: {self.error}"


def entry_points(group: str) -> tuple[importlib.metadata.EntryPoint, ...]:
    """The entry points of a group. Reading their names imports none of them."""
    return tuple(importlib.metadata.entry_points(group=group))


def load_entry_points[T](
    points: Iterable[importlib.metadata.EntryPoint],
    read: Callable[[importlib.metadata.EntryPoint], Iterable[T]],
    offers: str,
) -> Iterator[T | BrokenPackage]:
    """Yields what ``read`` makes of each entry point; of each broken one the failure instead.

    An entry point is used whole or not at all. Loading runs the package's code, which may raise anything: a job must
    not end for a package that it does not use. ``KeyboardInterrupt`` passes, and what a signal handler raises.
    """
    for point in points:
        try:
            found = tuple(read(point))
        except BaseException as error:  # SystemExit too
            if isinstance(error, KeyboardInterrupt) or is_of_handler(error):
                raise
            yield BrokenPackage(
                package=point.dist.name if point.dist else point.value.partition(":")[0],
                entry_point=f"{point.name} = {point.value}",
                error=one_line(error),
                offers=offers,
            )
        else:
            yield from found


def one_line(error: Any) -> str:
    """An error and its type as one short line, which a terminal shows and does not obey."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # the package's own exception may not even have a text
        text = type(error).__name__
    return printable(" ".join(short(text, _MAX_ERROR).split()))
