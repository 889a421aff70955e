"""A DataFrame for people: a table that fits a width, or one record a block, and a line that says what is not shown."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from attn_tune.reports import layout, tables
from attn_tune.reports.layout import Column, Layout
from attn_tune.schema.words import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

# Columns that move into the title where all rows have the same.
_SHARED = ("device", "target", "pack", "version", "environment", "directions")


def to_text(
    frame: pd.DataFrame,
    *,
    title: str | None = None,
    width: int | None = None,
    notes: Mapping[str, str] = {},
    whole: Collection[str] = (),
) -> str:
    """The table as plain text, without colour, in lines of at most ``width`` characters; None is as wide as needed."""
    return as_text(renderables(frame, title=title, width=width, notes=notes, whole=whole), width)


def as_text(parts: "Iterable[RenderableType]", width: int | None) -> str:
    """Parts as rich prints them, as plain text without colour."""
    import io

    from rich.console import Console

    file = io.StringIO()
    console = Console(file=file, width=width or 100_000, color_system=None, legacy_windows=False)
    for part in parts:
        console.print(part, soft_wrap=True)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def renderables(
    frame: pd.DataFrame,
    *,
    title: str | None = None,
    width: int | None = None,
    notes: Mapping[str, str] = {},
    cut: Mapping[str, str] = {},
    whole: Collection[str] = (),
) -> "Iterator[RenderableType]":
    """The parts that rich prints, from top to bottom, without columns that hold nothing.

    ``notes`` explain columns, by name, also those that do not fit. They come last. ``cut`` stands for columns that do
    not fit. Of the columns ``whole`` no cell is cut.
    """
    if not frame.empty:
        frame = frame.loc[:, ((frame != "") & frame.notna()).any()]
    frame, title = _with_title(frame, title)
    columns = [replace(one, whole=one.name in whole) for one in tables.columns(frame)]
    if width is not None and not layout.fits(columns, width):
        columns, title = _without_op(columns, title)
    yield from of_columns(columns, title=title, width=width, notes=notes, cut=cut)


def of_columns(
    columns: Sequence[Column],
    *,
    title: str | None = None,
    width: int | None = None,
    notes: Mapping[str, str] = {},
    cut: Mapping[str, str] = {},
) -> "Iterator[RenderableType]":
    """The same parts of columns that are words already."""
    from rich.text import Text

    if title:
        yield Text("\n".join(_lines(title, width)), style="bold")
        yield ""
    found = layout.lay_out(columns, width)
    if found.as_records and width is not None:
        yield from _records(found.columns, width)
    else:
        yield _table(found)
    if remark := remark_of(found):
        yield Text("\n".join(_lines(remark, width)), style="dim")
    said = [cut[one.name] for one in columns if one.name in cut and one.header in (*found.dropped, *found.cut)]
    for note in (*said, *(notes[one.name] for one in columns if one.name in notes)):
        yield Text("\n".join(line for part in note.splitlines() for line in _lines(part, width)))


def remark_of(found: Layout) -> str:
    """The sentence that names what is left out and what is cut; empty where everything is there."""
    parts = [("not shown", found.dropped), ("cut", found.cut)]
    said = "; ".join(f"{what}: {', '.join(headers)}" for what, headers in parts if headers)
    return f"{said} (all of it: a wider terminal, or --json)" if said else ""


def _with_title(frame: pd.DataFrame, title: str | None) -> tuple[pd.DataFrame, str | None]:
    """The frame without the columns that move into the title, and that title."""
    for name in _SHARED:
        if name in frame and len(frame.columns) > 1 and not frame.empty:
            values = set(map(str, tables.formatted(frame.loc[:, [name]]).iloc[:, 0]))
            if len(values) == 1 and tables.MISSING not in values:
                (value,) = values
                frame = frame.drop(columns=name)
                if value not in (title or ""):
                    title = f"{title}, {name} {value}" if title else f"{name.capitalize()} {value}"
    return frame, title


def _without_op(columns: Sequence[Column], title: str | None) -> tuple[list[Column], str | None]:
    """The columns with kernels by their short names, where all are of one op, and the title that says which."""
    found = []
    for one in columns:
        ops = {cell.rpartition("/")[0] for cell in one.cells}
        if one.name == "kernel" and len(ops) == 1 and (op := ops.pop()):
            one = replace(one, cells=tuple(cell.rpartition("/")[2] for cell in one.cells))
            title = f"{title}, kernels of {op}" if title else f"Kernels of {op}"
        found.append(one)
    return found, title


def _table(found: Layout) -> Any:
    """The table; its cells are folded and cut already."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, layout.GAP - 1, 0, 0))
    for one in found.columns:
        table.add_column(
            Text("\n".join(layout.folded(one.header, one.width))),
            justify="right" if one.numeric else "left",
            no_wrap=True,
            width=one.width,
        )
    for row in zip(*(one.cells for one in found.columns), strict=True):
        lines = [one.lines(cell) for one, cell in zip(found.columns, row, strict=True)]
        table.add_row(*(Text("\n".join(cell)) for cell in lines))
    return table


def _records(columns: Iterable[Column], width: int) -> Iterator[Any]:
    """Each row as a block of ``header  value`` lines; a value that is too long has more lines, indented."""
    from rich.text import Text

    columns = list(columns)
    room = min(max((layout.text_width(one.header) for one in columns), default=0), max(8, width // 3)) + 2
    rows = len(columns[0].cells) if columns else 0
    for row in range(rows):
        lines = []
        for one in (one for one in columns if one.cells[row]):
            header, value = one.header, one.cells[row]
            if layout.text_width(header) > room - 2:
                lines += layout.folded(header, width)
                header = ""
            first, *rest = layout.folded(value, max(1, width - room))
            lines += [f"{header:<{room}}{first}", *(" " * room + line for line in rest)]
        yield Text("\n".join(lines) + ("\n" if row < rows - 1 else ""))


def _lines(text: str, width: int | None) -> Iterator[str]:
    text = printable(text)
    yield from layout.folded(text, width) if width else [text]
