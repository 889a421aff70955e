"""DataFrames as text: rich tables, Markdown, CSV. The only place where numbers become words."""

import contextlib
import json
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from attn_tune.schema.words import config_words, duration

if TYPE_CHECKING:
    from rich.table import Table

MISSING = "-"


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _ratio(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.2f}"


def _config(config: str | Mapping[str, Any]) -> str:
    return config_words(json.loads(config) if isinstance(config, str) else config)


# By column name. The header is what people read; CSV and JSON keep the column's own name.
_FORMATS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "median_ns": ("time", duration),
    "heuristic_ns": ("default", duration),
    "speedup": ("speedup", lambda value: f"{value:.2f}x"),
    "regret_bound": ("regret <=", _percent),
    "worst_error": ("error/allowed", _ratio),
    "predicted_ns": ("predicted", duration),
    "low_ns": ("from", duration),
    "high_ns": ("to", duration),
    "gain_over_default": ("over default", lambda value: f"{value:.2f}x"),
    "gain_over_untuned": ("over untuned", lambda value: f"{value:.2f}x"),
    "before_ns": ("time before", duration),
    "after_ns": ("time after", duration),
    "ratio": ("ratio", lambda value: f"{value:.2f}x"),
    "a_ns": ("A", duration),
    "b_ns": ("B", duration),
    "b_over_a": ("B/A", lambda value: f"{value:.3f}"),
    "tflops": ("TFLOP/s", lambda value: f"{value:.3g}"),
    "tb_s": ("TB/s", lambda value: f"{value:.3g}"),
    "bandwidth": ("of peak", _percent),
    "config": ("config", _config),
}


def formatted(frame: pd.DataFrame) -> pd.DataFrame:
    """The same table in words: units, percent signs, ``-`` where there is nothing."""
    columns = {}
    for name in frame.columns:
        header, words = _FORMATS.get(str(name), (str(name), _plain))
        columns[header] = [MISSING if _missing(v) else words(v) for v in frame[name]]
    return pd.DataFrame(columns, columns=list(columns))


# Columns to drop, in this order, if a terminal is too narrow for all of them.
_DROPPED = (
    "features", "deterministic", "samples", "rank", "version", "environment", "device", "heuristic_ns", "worst_error",
    "tflops", "bandwidth", "tb_s", "rule", "backend", "low_ns", "high_ns", "tried", "refused", "regret_bound",
    "place", "part",
)  # fmt: skip
# A column of words folds down to so many characters before a column of numbers is left out for it.
_WORDS_WIDTH = 16
# A column of single words, such as names of kernels, folds only beyond this.
_NAME_WIDTH = 32
_GAP = 3


def fit(frame: pd.DataFrame, width: int) -> pd.DataFrame:
    """The frame without its least important columns, as many of them as numbers need to stay on one line.

    ``width`` is in characters. The rest may still be too wide: words fold.
    """
    needed = _least_widths(frame)
    for name in _DROPPED:
        if sum(needed.values()) <= width:
            break
        needed.pop(name, None)
    return frame.loc[:, list(needed)]


def least_width(frame: pd.DataFrame) -> int:
    """The characters that the table needs at least: below it something would be cut off."""
    return sum(_least_widths(frame).values())


def _least_widths(frame: pd.DataFrame) -> dict[Any, int]:
    words = formatted(frame)
    widths = {}
    for header, name in zip(words.columns, frame.columns, strict=True):
        cells = [str(header), *words[header]]
        folds = _folds(cells) and not _is_numeric(frame[name])
        widths[name] = (_WORDS_WIDTH if folds else max(map(len, cells))) + _GAP
    return widths


def _folds(cells: Iterable[str]) -> bool:
    """Whether a column of words may be folded: text, and names that are very long."""
    return any(len(c) > (_WORDS_WIDTH if " " in c else _NAME_WIDTH) for c in cells)


def _is_numeric(column: Iterable[Any]) -> bool:
    """Whether a column's cells are numbers; one in which nothing is known counts too."""
    known = (value for value in column if not _missing(value))
    return all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in known)


def to_rich(frame: pd.DataFrame, *, title: str | None = None) -> "Table":
    """A rich table; numbers to the right. Only long words fold."""
    return _rich(formatted(frame), frame, title)


def to_plain(frame: pd.DataFrame) -> "Table":
    """As ``to_rich``, with every value as it is."""
    words = [[MISSING if _missing(v) else str(v) for v in row] for row in frame.itertuples(index=False)]
    return _rich(pd.DataFrame(words, columns=frame.columns, dtype=str), frame, None)


def _rich(words: pd.DataFrame, frame: pd.DataFrame, title: str | None) -> "Table":
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for header, name in zip(words.columns, frame.columns, strict=True):
        numeric = _is_numeric(frame[name])
        table.add_column(
            str(header),
            justify="right" if numeric else "left",
            overflow="fold",
            no_wrap=numeric or not _folds([str(header), *words[header]]),
        )
    for row in words.itertuples(index=False):
        table.add_row(*(_unmarked(cell) for cell in row))
    return table


def to_text(frame: pd.DataFrame, *, title: str | None = None, width: int = 500) -> str:
    """The rich table as plain text, without colour, at a fixed width."""
    return as_text(to_rich(frame, title=title), width)


def as_text(table: "Table", width: int) -> str:
    """A rich table as plain text, without colour, at a fixed width."""
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def to_markdown(frame: pd.DataFrame) -> str:
    """A GitHub table."""
    words = formatted(frame)
    return markdown_table([str(c) for c in words.columns], words.values.tolist())


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A GitHub table from its cells; vertical bars are escaped."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def to_csv(frame: pd.DataFrame) -> str:
    """CSV with the columns' own names and unrounded numbers."""
    return frame.to_csv(index=False, lineterminator="\n")


def to_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as plain data for JSON: what is missing is null, infinity is ``"inf"``, configs are objects."""
    rows = []
    for row in frame.astype(object).to_dict("records"):
        data = {str(key): _json_value(value) for key, value in row.items()}
        for key in ("config", "a_config", "b_config"):
            if isinstance(text := data.get(key), str):
                with contextlib.suppress(ValueError):  # a query may call any text so
                    data[key] = json.loads(text)
        rows.append(data)
    return rows


def _json_value(value: Any) -> Any:
    if _missing(value):
        return None
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _missing(value: Any) -> bool:
    return value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value))


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _unmarked(text: str) -> str:
    from rich.markup import escape

    return escape(text)
