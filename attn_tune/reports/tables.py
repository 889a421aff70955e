"""DataFrames as text: columns of words, Markdown, CSV. The only place where numbers become words."""

import contextlib
import json
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from attn_tune.reports.layout import Column
from attn_tune.schema import Grade
from attn_tune.schema.words import config_words, duration, printable, rate

MISSING = "-"
# Words that are quantities or times of day, which stay on one line as numbers do.
_QUANTITY = re.compile(r"-|[\d.,:%x+ -]+|[\d.]+ ?[A-Za-z/%]{1,8}")

# Underscores within a word are no markup.
_MARKUP = re.compile(r"[\\`*~|\[\]<>&]|(?<![^\W_])_|_(?![^\W_])|(?<=:)//|(?<=www)\.", re.IGNORECASE)
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "//": "&#47;&#47;", ".": "&#46;"}


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _ratio(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.2f}"


def _config(config: str | Mapping[str, Any]) -> str:
    return config_words(json.loads(config) if isinstance(config, str) else config)


def _source(is_stale: bool | str) -> str:
    return Grade.STALE if is_stale else ""


# By column name. The header is what people read; CSV and JSON keep the column's own name.
_FORMATS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "median_ns": ("time", duration),
    "heuristic_ns": ("untuned", duration),
    "speedup": ("speedup", lambda value: f"{value:.2f}x"),
    "regret_bound": ("regret <=", _percent),
    "worst_error": ("error/allowed", _ratio),
    "predicted_ns": ("predicted", duration),
    "low_ns": ("from", duration),
    "high_ns": ("to", duration),
    "gain_over_default": ("over library default", lambda value: f"{value:.2f}x"),
    "gain_over_untuned": ("over untuned", lambda value: f"{value:.2f}x"),
    "before_ns": ("time before", duration),
    "after_ns": ("time after", duration),
    "ratio": ("ratio", lambda value: f"{value:.2f}x"),
    "a_ns": ("A", duration),
    "b_ns": ("B", duration),
    "b_over_a": ("B/A", lambda value: f"{value:.3f}"),
    "tflops": ("compute", lambda value: rate(value * 1e12, "FLOP/s")),
    "tb_s": ("memory", lambda value: rate(value * 1e12, "B/s")),
    "bandwidth": ("of peak", _percent),
    "config": ("config", _config),
    "stale": ("source", _source),
}


def formatted(frame: pd.DataFrame) -> pd.DataFrame:
    """The same table in words: units, percent signs, ``-`` where there is nothing."""
    columns = {}
    for name in frame.columns:
        header, words = _FORMATS.get(str(name), (str(name), _plain))
        columns[header] = [MISSING if _missing(v) else words(v) for v in frame[name]]
    return pd.DataFrame(columns, columns=list(columns))


def columns(frame: pd.DataFrame) -> list[Column]:
    """The columns of ``frame`` in words, for a layout."""
    return _columns(frame, formatted(frame))


def plain_columns(frame: pd.DataFrame) -> list[Column]:
    """The columns of ``frame`` under their own names, numbers with six digits and all else as it is."""
    words = [[_plain_word(v) for v in row] for row in frame.itertuples(index=False)]
    return _columns(frame, pd.DataFrame(words, columns=frame.columns, dtype=str))


def _plain_word(value: Any) -> str:
    if _missing(value):
        return MISSING
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _columns(frame: pd.DataFrame, words: pd.DataFrame) -> list[Column]:
    return [
        Column(
            name=str(name),
            header=printable(" ".join(str(header).split())),
            cells=tuple(printable(" ".join(str(cell).split())) for cell in words[header]),
            numeric=_is_numeric(frame[name]) or all(_QUANTITY.fullmatch(cell) for cell in words[header]),
        )
        for header, name in zip(words.columns, frame.columns, strict=True)
    ]


def _is_numeric(column: Iterable[Any]) -> bool:
    """Whether a column's cells are numbers; one in which nothing is known counts too."""
    known = (value for value in column if not _missing(value))
    return all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in known)


def to_markdown(frame: pd.DataFrame) -> str:
    """A GitHub table that shows headers and cells as they are, each on one line."""
    words = formatted(frame)
    first, *rest = [[markdown_text(cell) for cell in line] for line in (words.columns, *words.values.tolist())]
    return _markdown_lines(first, rest)


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A GitHub table from cells that are Markdown already, but for vertical bars."""
    first, *rest = [[str(cell).replace("|", "\\|") for cell in line] for line in (headers, *rows)]
    return _markdown_lines(first, rest)


def markdown_text(text: Any) -> str:
    """``text`` on one line of Markdown that shows it as it is: no markup, HTML, link or control character."""
    return _MARKUP.sub(lambda one: _ENTITIES.get(one[0], f"\\{one[0]}"), printable(" ".join(str(text).split())))


def _markdown_lines(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headers, ["---"] * len(headers), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def to_csv(frame: pd.DataFrame) -> str:
    """CSV with the columns' own names and unrounded numbers; control characters of texts are escapes."""
    texts = {
        name: pd.Series([printable(v) if isinstance(v, str) else v for v in frame[name]], frame.index, dtype=object)
        for name in frame.select_dtypes(["object", "string"])
    }
    shown = frame.assign(**texts).rename(columns=printable)
    return shown.to_csv(index=False, lineterminator="\n")


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
