"""Layout of a table at a width: what stays, what gives way, and when one record a block is printed instead.

No number is cut or folded, at any width. Columns give way in this order: kernels of one op lose its name, which the
title then says; headers fold; columns of words fold down to ``ROOMY`` characters; lesser columns are left out, in the
order of ``LESSER``; columns of words fold down to ``TIGHT`` characters, and single names lose their beginning, but for
columns that stay whole. What still does not fit becomes one record a block.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

# Columns that are left out, in this order, where a table is too wide.
LESSER = (
    "features", "deterministic", "example", "samples", "rank", "version", "environment", "device", "known",
    "heuristic_ns", "worst_error", "tflops", "bandwidth", "tb_s", "rule", "backend", "needs", "basis", "low_ns",
    "high_ns", "tried", "refused", "regret_bound", "state", "place", "part", "before_ns", "after_ns",
)  # fmt: skip
ROOMY = 32
TIGHT = 12
# A name without spaces keeps so many characters.
NAME = 16
# Lines of one cell; more are cut off.
MOST_LINES = 3
# Below it a table that does not fit as it is becomes records.
NARROW = 50
GAP = 2
ELLIPSIS = "…"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column in words.

    Attributes:
      name: its name in the frame.
      header: its header.
      cells: its words.
      numeric: whether it holds numbers, which stay on one line.
      width: the characters that it has; 0 is as many as it needs.
      whole: whether no cell may be cut: it folds at its spaces, on as many lines as it takes.
    """

    name: str
    header: str
    cells: tuple[str, ...]
    numeric: bool
    width: int = 0
    whole: bool = False

    @property
    def natural(self) -> int:
        """The width on one line."""
        return max(map(text_width, (self.header, *self.cells)))

    @property
    def has_words(self) -> bool:
        """Whether a cell has spaces at which it may be folded."""
        return not self.numeric and any(" " in cell for cell in self.cells)

    @property
    def is_name(self) -> bool:
        """Whether the cells are names; those of a point may have others joined, behind a space."""
        return not self.has_words or self.name == "point"

    @property
    def _rigid(self) -> int:
        """The width below which the header or a number would be cut."""
        header = max(map(text_width, self.header.split()), default=0)
        return max(header, *map(text_width, self.cells), 1) if self.numeric else header

    def least(self, words: int, name: int) -> int:
        """The least width where words fold down to ``words`` characters and names shrink to ``name``."""
        if self.numeric:
            return self._rigid
        longest = max((text_width(word) for cell in self.cells for word in cell.split()), default=0)
        if self.whole:
            words, name = max(longest, words), longest
        room = max(min(longest, name), words) if self.has_words else name
        return max(self._rigid, min(max(map(text_width, self.cells), default=0), room))

    def lines(self, cell: str) -> list[str]:
        """The lines of ``cell``."""
        if self.numeric or not self.width or text_width(cell) <= self.width:
            return [cell]
        if " " not in cell:
            return [shortened(cell, self.width)]
        lines = list(folded(cell, self.width, cut=shortened))
        if len(lines) > MOST_LINES and not self.whole:
            last = lines[MOST_LINES - 1]
            while " " in last and text_width(last) + 2 > self.width:
                last = last.rpartition(" ")[0]
            lines = [*lines[: MOST_LINES - 1], shortened(f"{last} {ELLIPSIS}", self.width)]
        return lines

    @property
    def is_cut(self) -> bool:
        """Whether a cell is not there in full."""
        return any(ELLIPSIS in line and ELLIPSIS not in cell for cell in self.cells for line in self.lines(cell))


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The columns of a table that fits.

    Attributes:
      columns: those that are shown, each with its width.
      dropped: the headers of those that are not.
      as_records: whether the table is printed as one record a block, in which nothing is left out.
    """

    columns: tuple[Column, ...]
    dropped: tuple[str, ...] = ()
    as_records: bool = False

    @property
    def cut(self) -> tuple[str, ...]:
        """The headers of the columns that are not there in full."""
        return () if self.as_records else tuple(one.header for one in self.columns if one.is_cut)


def lay_out(columns: Sequence[Column], width: int | None) -> Layout:
    """The layout of ``columns`` at ``width`` characters; None has room for everything."""
    if width is None or fits(columns, width):
        return Layout(columns=tuple(replace(one, width=one.natural) for one in columns))
    if width < NARROW:
        return Layout(columns=tuple(columns), as_records=True)
    kept, dropped = list(columns), []
    for name in ("", *LESSER):
        if gone := next((one for one in kept if one.name == name), None):
            kept.remove(gone)
            dropped.append(gone)
        if fitted := _fitted(kept, width, lambda one: one.least(ROOMY, ROOMY)):
            return Layout(columns=fitted, dropped=tuple(one.header for one in columns if one in dropped))
    if fitted := _fitted(kept, width, lambda one: one.least(TIGHT, NAME)):
        return Layout(columns=fitted, dropped=tuple(one.header for one in columns if one in dropped))
    return Layout(columns=tuple(columns), as_records=True)


def fits(columns: Sequence[Column], width: int) -> bool:
    """Whether everything is there on one line each."""
    return _total(one.natural for one in columns) <= width


def _fitted(columns: Sequence[Column], width: int, least: Callable[[Column], int]) -> tuple[Column, ...]:
    """``columns`` with their ``least`` widths and a share of the room that is left; empty where they are too wide."""
    widths = [least(one) for one in columns]
    spare = width - _total(widths)
    if spare < 0:
        return ()
    while spare:
        # A character for the column that lacks most; names come first, for a name that is cut may be any of several.
        lacks = [(one.is_name, one.natural - widths[i], -i) for i, one in enumerate(columns)]
        lacks = [lack for lack in lacks if lack[1] > 0]
        if not lacks:
            break
        widths[-max(lacks)[2]] += 1
        spare -= 1
    return tuple(replace(one, width=own) for one, own in zip(columns, widths, strict=True))


def _total(widths: Iterable[int]) -> int:
    found = list(widths)
    return sum(found) + GAP * max(0, len(found) - 1)


def text_width(text: str) -> int:
    """The columns that ``text`` takes in a terminal."""
    from rich.cells import cell_len

    return cell_len(text)


def shortened(text: str, width: int) -> str:
    """The end of ``text`` behind an ellipsis, in ``width`` characters; no number loses a digit.

    Names of one table begin alike more often than they end alike.
    """
    if text_width(text) <= width:
        return text
    start = max(0, len(text) - max(0, width - 1))
    while text_width(text[start:]) > width - 1 and start < len(text):
        start += 1
    tail = text[start:]
    if re.search(r"[\d.]$", text[:start]):
        tail = re.sub(r"^[\d.]*\d", "", tail)
    return f"{ELLIPSIS}{tail}"


def folded(text: str, width: int, *, indent: int = 0, cut: Callable[[str, int], str] | None = None) -> Iterator[str]:
    """The lines of ``text``, folded at spaces, those after the first behind ``indent`` spaces.

    A word that is too long is ``cut``, or broken beside its numbers.
    """
    line, is_open = " " * (len(text) - len(text.lstrip(" "))), False
    for word in text.lstrip(" ").split(" "):
        if is_open and text_width(line) + 1 + text_width(word) > width:
            yield line
            line, is_open = " " * indent, False
        if not is_open and (room := max(1, width - text_width(line))) < text_width(word):
            *whole, word = [cut(word, room)] if cut else list(_pieces(word, room))
            for piece in whole:
                yield line + piece
                line = " " * indent
        line, is_open = f"{line} {word}" if is_open else f"{line}{word}", True
    yield line


def _pieces(word: str, width: int) -> Iterator[str]:
    """``word`` in pieces of at most ``width`` characters; a number stays whole where it fits."""
    piece = ""
    for atom in re.findall(r"\d[\d.]*|.", word):
        if piece and text_width(piece + atom) > width:
            yield piece
            piece = ""
        piece += atom
    yield piece
