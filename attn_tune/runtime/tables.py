"""The rows of a shard in two spellings: the writer's own, checked by one expression a line, and any other, parsed.

Both accept and refuse the same and say the same; a job pays for the second only when a pack was edited by hand. Rows
become objects when they are asked for: a lookup needs one or two of hundreds.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from attn_tune.runtime.rows import (
    MAX_TEXT,
    OMITTED,
    OPTIONAL,
    STATES,
    Row,
    check_config,
    decision_line,
)
from attn_tune.runtime.strict_json import parse_json
from attn_tune.schema.digest import canonical_json
from attn_tune.schema.errors import IntegrityError


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Table:
    """One shard in columns, a place a row. ``lines`` is what the decision digest covers."""

    op: str
    direction: str
    devices: Sequence[str]
    signatures: Sequence[str]
    kernels: Sequence[str]
    ranks: Sequence[int]
    envs: Sequence[str]
    lines: Sequence[str]
    row: Callable[[int], Row]

    def __len__(self) -> int:
        return len(self.signatures)

    def holds_device(self, digest: str) -> bool:
        """Whether a row is of this device."""
        return digest in self.devices

    def find(self, signature: str) -> Iterator[int]:
        """The places of the rows of exactly this signature."""
        place = -1
        try:
            while True:
                place = self.signatures.index(signature, place + 1)
                yield place
        except ValueError:
            return


class Rows(Sequence[Row]):
    """All rows of a pack, in the order of its shards; a row becomes an object when it is asked for."""

    def __init__(self, tables: Iterable[Table]):
        self.tables = tuple(tables)

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        return tuple(self)[index]

    def __iter__(self) -> Iterator[Row]:
        return (table.row(place) for table in self.tables for place in range(len(table)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(line for table in self.tables for line in table.lines))


def parsed_table(rows: Sequence[Row], *, op: str, direction: str) -> Table:
    """A table of rows that are objects already."""
    return Table(
        op=op,
        direction=direction,
        devices=[r.device for r in rows],
        signatures=[r.signature for r in rows],
        kernels=[r.kernel for r in rows],
        ranks=[r.rank for r in rows],
        envs=[r.env for r in rows],
        lines=[decision_line(r) for r in rows],
        row=rows.__getitem__,
    )


# A text ends at its quote; its characters are looked at all at once, later. A config is a flat
# object, or one with parts; its inside is looked at on its own, once for each distinct one.
_TEXT = '"([^"]+)"'
_COUNT = "(0|[1-9][0-9]{0,17})"
_MAYBE_COUNT = "(null|0|[1-9][0-9]{0,17})"
_MAYBE = "(null|-?[1-9][0-9]{0,17}|0)"
_CELLS = {
    "config": r"(\{[^}]*\}|\{(?:\"[^\"]*\":(?:\{[^}]*\}|[^{},]*),?)+\})",
    "device": _TEXT,
    "env": _TEXT,
    "error_ppm": _MAYBE_COUNT,
    "features": _COUNT,
    "gain_ppm": _MAYBE,
    "heuristic_ns": _MAYBE_COUNT,
    "kernel": '"([A-Za-z0-9_.-]{1,100})"',
    "median_ns": _MAYBE_COUNT,
    "rank": _COUNT,
    "regret_ppm": _MAYBE,
    "repeatable": "(true|false)",
    "samples": _COUNT,
    "signature": _TEXT,
    "state": f'"({"|".join(sorted(STATES))})"',
}
_COLUMNS = ("config", "device", "env", "kernel", "rank", "signature")


def _line(columns: Iterable[str]) -> str:
    """The expression of one row that captures ``columns``."""
    cells = ""
    for name, cell in _CELLS.items():
        cell = cell if name in columns else cell.replace("(", "(?:", 1)
        cells += f'(?:"{name}":{cell},)?' if name in OMITTED else f'"{name}":{cell},'
    return r"\{" + cells.removesuffix(",") + r"\}"


_ROW = re.compile(_line(_CELLS))
# A comma if, and only if, another row follows.
_LINES = re.compile(rf"^{_line(_COLUMNS)}(?:,(?=\n\{{)|(?=\n\]))", re.MULTILINE)
_FLAT = re.compile(
    r'\{(?:"[A-Za-z0-9_]+":(?:-?[1-9][0-9]{0,17}|0|true|false|null)(?:,(?=")|(?=\})))*\}'
)

# All of ASCII that prints, but for what ends a text or starts an escape.
_PRINTED = bytes(c for c in range(0x20, 0x7F) if c not in b'"\\')


def plain_table(data: bytes, *, op: str, direction: str) -> Table | None:
    """The table of a shard that is spelled as the writer spells it; None if it is not, or if anything is wrong.

    Fields in order, one row a line, no spaces between, no escapes: then one expression says all that parsing would.
    """
    if not (data.startswith(b"[\n{") and data.endswith(b"}\n]\n") and data.isascii()):
        return None
    text = data.decode("ascii")
    cells = _LINES.findall(text)
    # As many line ends as the rows need: then there is nothing between the rows.
    if text.count("\n") != len(cells) + 2:
        return None
    configs, devices, envs, kernels, ranks, signatures = zip(*cells, strict=True)
    texts = "".join((*set(devices), *set(envs), *signatures))
    start = f"{op}/v"
    if not (
        not texts.encode().translate(None, _PRINTED)
        and max(map(len, (*set(devices), *set(envs), *signatures))) <= MAX_TEXT
        and all([s.startswith(start) for s in signatures])  # noqa: C419 (twice as fast)
        and all(map(_is_plain_config, set(configs)))
    ):
        return None
    return Table(
        op=op,
        direction=direction,
        devices=devices,
        signatures=signatures,
        kernels=kernels,
        ranks=list(map(int, ranks)),
        envs=envs,
        # What canonical_json makes of it: none of these texts needs an escape.
        lines=[f'["{d}","{s}","{direction}","{k}",{r},{c}]' for c, d, _, k, r, s in cells],
        row=_Maker(text, op, direction),
    )


@functools.lru_cache(maxsize=4096)
def _is_plain_config(text: str) -> bool:
    """Whether ``text`` is the canonical spelling of a config: a kernel has few, a pack names them often."""
    if _FLAT.fullmatch(text):
        names = text.split('"')[1::2]
        return names == sorted(set(names))
    try:
        config = parse_json(text.encode(), "config")
        check_config(config)
    except IntegrityError:
        return False
    return canonical_json(config) == text


def plain_row(line: str, *, op: str, direction: str) -> Row | None:
    """The row of one line without its comma; None if the writer would not spell it so, or if anything is wrong."""
    match = _ROW.fullmatch(line)
    if match is None or not (line.isascii() and line.isprintable()):
        return None
    data: dict[str, Any] = dict(zip(_CELLS, match.groups(), strict=True))
    texts = (data["device"], data["env"], data["signature"])
    if not (
        _is_plain_config(data["config"])
        and data["signature"].startswith(f"{op}/v")
        and all("\\" not in text and len(text) <= MAX_TEXT for text in texts)
    ):
        return None
    return _row(data, op, direction)


def _row(data: dict[str, Any], op: str, direction: str) -> Row:
    """The row of cells that were matched, as texts."""
    data["config"] = json.loads(data["config"])
    for name in ("rank", "samples"):
        data[name] = int(data[name])
    for name in OPTIONAL:
        data[name] = None if data[name] in (None, "null") else int(data[name])
    data["repeatable"] = None if data["repeatable"] is None else data["repeatable"] == "true"
    return Row(op=op, direction=direction, **data)


class _Maker:
    """Makes rows of a shard's text; the lines are found when the first row is asked for."""

    def __init__(self, text: str, op: str, direction: str):
        self._text = text
        self._op, self._direction = op, direction

    @functools.cached_property
    def _lines(self) -> list[str]:
        return self._text.split("\n")

    def __call__(self, place: int) -> Row:
        match = _ROW.match(self._lines[place + 1])
        assert match is not None, "the whole text was matched before"
        return _row(dict(zip(_CELLS, match.groups(), strict=True)), self._op, self._direction)
