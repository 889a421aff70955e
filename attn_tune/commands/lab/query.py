"""Ask a lab database one SQL query, which can only read.

The query is a SELECT over the views winners, failures and samples and the tables trial, run and decision, or the name
of one of the questions that --list shows after the columns.

Example: attn-tune lab query "SELECT kernel, count(*) AS trials FROM trial GROUP BY kernel"

Example: attn-tune lab query "SELECT * FROM winners WHERE speedup >= :least" -p least=1.2 --format csv

Example: attn-tune lab query failures
"""

import json as json_format
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.database import open_lab
from attn_tune.schema import UsageError
from attn_tune.schema.errors import short, unknown_name

LIMIT = 1000


def command(
    db: options.Database,
    sql: str | None = options.argument("SQL", "A SELECT, or the name of a question.", None),
    parameter: list[str] | None = options.option(
        None,
        "--param -p",
        "NAME=VALUE",
        "The value of :NAME in the query. Numbers and null are such; text may stand in double quotes. Repeatable.",
    ),
    limit: int = options.option(LIMIT, "--limit", "N", "At most so many rows; 0 is all of them.", min=0, max=10**9),
    listed: bool = options.flag("--list", "Show the views and tables with their columns, and the questions."),
    fmt: options.Format = options.option(options.Format.TABLE, "--format -f", "", "The format of the answer."),
    json: options.Json = False,
) -> None:
    from attn_tune.db.questions import QUESTIONS

    fmt = options.Format.JSON if json else fmt
    if listed:
        _list(fmt)
        return
    if not sql:
        raise UsageError("no query given: give a SELECT or the name of a question; --list shows what there is")
    if sql.isidentifier() and sql not in QUESTIONS:
        raise unknown_name("question", sql, QUESTIONS)
    text = QUESTIONS[sql].sql if sql in QUESTIONS else sql
    with open_lab(db) as database:
        found = database.query(text, _parameters(parameter or ()), limit=limit + 1 if limit else None)
    is_cut = bool(limit) and len(found) > limit
    found = found.head(limit) if is_cut else found
    if is_cut:
        output.note(f"only the first {limit} rows are here; --limit 0 gives all")
    if fmt is options.Format.JSON:
        output.emit_json(rows=found, cut=is_cut)
    elif fmt is options.Format.TABLE:
        output.emit_rows(found)
    else:
        output.emit_formatted(found, fmt)


def _parameters(words: Sequence[str]) -> dict[str, Any]:
    """The values by name.

    Raises:
      UsageError: a word is not ``name=value``, or names a parameter twice, or a number is out of SQLite's range.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name.isidentifier() or name in found:
            raise UsageError(f"--param {word!r} must be NAME=VALUE, once for each name")
        try:
            value = json_format.loads(text, parse_int=_integer, parse_float=_fraction, parse_constant=str)
        except (json_format.JSONDecodeError, RecursionError):
            value = text
        found[name] = value if value is None or isinstance(value, str | int | float) else text
    return found


def _integer(text: str) -> int:
    # Python refuses to read thousands of digits.
    if len(text) > 20 or not -(2**63) <= (value := int(text)) < 2**63:
        raise UsageError(
            f"--param: the integer {short(text, 40)} is beyond 64 bits; as text it stands in double quotes"
        )
    return value


def _fraction(text: str) -> float:
    if math.isinf(value := float(text)):
        raise UsageError(f"--param: the number {short(text, 40)} is out of range; as text it stands in double quotes")
    return value


def _list(fmt: options.Format) -> None:
    from attn_tune.db.described import relations
    from attn_tune.db.questions import QUESTIONS

    found = relations()
    if fmt is options.Format.JSON:
        questions = [{"name": name, **asdict(one)} for name, one in QUESTIONS.items()]
        output.emit_json(relations=[asdict(one) for one in found], questions=questions)
        return
    if fmt is not options.Format.TABLE:
        raise UsageError("--list has no other format than a table and --json")
    for one in found:
        output.say(f"{one.name} ({one.kind}): {one.about}")
        for line in _aligned(one.columns.items()):
            output.say(line)
        print()
    print("Questions:")
    print(*_aligned((name, one.title) for name, one in QUESTIONS.items()), sep="\n")


def _aligned(pairs: Any) -> Iterator[str]:
    pairs = list(pairs)
    width = max(len(name) for name, _ in pairs)
    return (f"  {name:{width}}  {says}" for name, says in pairs)
