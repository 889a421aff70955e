"""The frames that a page is made of, and the names that its parts share."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from attn_tune.reports.page.markup import Markup, breakable, element


@dataclass(frozen=True, kw_only=True, eq=False)
class PageData:
    """Everything that a page shows.

    Attributes:
      trials: the database's frame ``trials``, narrowed.
      winners: of ``page.frames.winners``, one row a decision.
      kernels: the same of the best config of every kernel, not of the winner alone.
      races: of ``page.frames.races``, the samples behind decisions.
      cells: of ``page.coverage_cells.cells``, one row a (point, direction, device).
      finals: the database's frame ``finals``, narrowed.
      software: the database's frame ``software``, narrowed.
      names: the names of points by signature text.
      widen: a sentence without its end that says how to see more of what was left out.
      left_out: by what it is, how many things the part that is being made leaves out.
      room: a factor on the sizes that parts may have, above 1 where other parts need less.
    """

    trials: pd.DataFrame
    winners: pd.DataFrame
    kernels: pd.DataFrame
    races: pd.DataFrame
    cells: pd.DataFrame
    finals: pd.DataFrame
    software: pd.DataFrame
    names: Mapping[str, str]
    widen: str = "A page of fewer problems shows more of each: --point, --op, --device, --direction"
    left_out: dict[str, int] = field(default_factory=dict)
    room: float = 1.0

    def budget(self, size: int) -> int:
        """The bytes that a part of ``size`` may take."""
        return int(size * self.room)

    @functools.cached_property
    def ops(self) -> list[str]:
        """The ops, sorted."""
        return sorted({text.partition("/")[0] for text in self.signatures})

    @functools.cached_property
    def devices(self) -> list[str]:
        """The devices, sorted."""
        return sorted({str(d) for frame in (self.trials, self.cells) for d in frame["device"].unique() if d})

    @functools.cached_property
    def signatures(self) -> list[str]:
        """The texts of the problems, by name."""
        texts = {str(t) for frame in (self.trials, self.cells) for t in frame["signature"].unique()}
        return sorted(texts, key=lambda text: (self.name(text), text))

    @functools.cached_property
    def _places(self) -> dict[str, dict[str, int]]:
        lists = {"o": self.ops, "d": self.devices, "p": self.signatures}
        return {key: {name: place for place, name in enumerate(names)} for key, names in lists.items()}

    def name(self, signature: str) -> str:
        """The name of a problem, its signature where it has none."""
        return self.names.get(signature) or signature

    def marks(self, *, signature: str = "", device: str = "") -> dict[str, Any]:
        """The attributes by which the filter finds an element."""
        found: dict[str, Any] = {}
        if signature:
            found["data_o"] = self._places["o"].get(signature.partition("/")[0])
            found["data_p"] = self._places["p"].get(signature)
        if device:
            found["data_d"] = self._places["d"].get(device)
        return found

    def label(self, signature: str, *more: str, device: str = "") -> Markup:
        """The heading of an item: the problem, then lesser words. The device is named where there are several."""
        lesser = [word for word in (*more, device if len(self.devices) > 1 else "") if word]
        name = element("b", breakable(self.name(signature)))
        return Markup(name + element("span", " · ".join(lesser), class_="sub")) if lesser else name


def fitting[T](items: Iterable[T], make: Callable[[T], Markup], budget: int) -> tuple[list[Markup], int]:
    """The first ``items`` as ``make`` draws them, at most ``budget`` bytes together, and how many are left out."""
    waiting = list(items)
    kept: list[Markup] = []
    for place, item in enumerate(waiting):
        made = make(item)
        budget -= len(made.encode())
        if budget < 0:
            return kept, len(waiting) - place
        kept.append(made)
    return kept, 0


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows of a frame, with its columns as attributes."""
    yield from frame.itertuples(index=False)


def how_many(mask: Any) -> int:
    """The number of rows for which ``mask``, a column of truth values, is true."""
    return int(mask.sum())
