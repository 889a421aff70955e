"""Lookups in a mutated pack, for ``fuzz_packs.py``: a lookup proves only the rows it uses.

The oracle reads the JSON on its own and knows nothing of the reader's shortcuts. Of a pack that is sound as a whole a
lookup must find exactly what a search through all rows finds, on every rung. Of one that is not, which a reader of the
whole refuses, a lookup may still answer: with a row that is sound by itself and the only one of its problem, kernel and
rank, or with none.
"""

import dataclasses
import hashlib
import json
import math
import re
from typing import Any

from attn_tune.packs.archive import MANIFEST, SUMS
from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import Row
from attn_tune.runtime.active.row_index import RowIndex
from attn_tune.runtime.lookup.answer import Rung, SourceKind
from attn_tune.runtime.lookup.ladder import Match, RowQuestion, walk
from attn_tune.schema import Field, FieldKind, Grade, Signature
from tests.soak.fuzz_good import DEVICE, Files

FIELDS = (
    Field(name="b", kind=FieldKind.SCALABLE, is_int=True),
    Field(name="t", kind=FieldKind.SCALABLE, is_int=True),
    Field(name="dtype", kind=FieldKind.CATEGORICAL, is_int=False),
)
ASKED = [Signature.parse(f"toy/v1 b=1 t={t} dtype=bfloat16", FIELDS) for t in (1024, 2048, 1100, 2900)]
STATES = ("winner", "tie", "only", "heuristic", "predicted")
TEXT = re.compile(r"toy/v1 b=([1-9][0-9]*) t=([1-9][0-9]*) dtype=bfloat16")
KNOWN = {f.name for f in dataclasses.fields(Row)} - {"op", "direction"}


class Judge:
    """Lets everything pass: what may run is another matter."""

    @staticmethod
    def grade(row: Row, pack: Pack) -> Grade:
        return Grade.VERIFIED

    @staticmethod
    def takes_part(row: Row) -> bool:
        return True

    @staticmethod
    def refusal(row: Row, pack: Pack) -> str | None:
        return None

    @staticmethod
    def adapt(row: Row) -> Row:
        return row


def check_lookups(opened: Pack, files: Files, *, is_sound: bool) -> None:
    """Checks the answers that ``opened`` gives; ``is_sound`` says that the whole pack was proven."""
    manifest = json.loads(files[MANIFEST])
    for direction in ("fwd", "bwd"):
        index = RowIndex(opened, "toy", direction, FIELDS)
        rows, tainted = sound_rows(files, manifest, direction)
        for asked in ASKED:
            question = RowQuestion(op="toy", direction=direction, signature=asked, fields=FIELDS, device=DEVICE)
            found = walk(question, iter([(SourceKind.USER, index)]), Judge()).match
            if is_sound:
                expected = search(rows, asked.text)
                assert (found and (found.rung, found.row)) == expected, f"not {expected}: {found}"
            elif found is not None:
                check_row(found, rows, tainted)


def check_row(found: Match, rows: list[Row], tainted: set[str]) -> None:
    """Checks a row that a lookup found in a pack that is broken somewhere."""
    assert found.row in rows, "a lookup used a row that is not there, or is broken"
    assert type_of(found.row) in [type_of(row) for row in rows if row == found.row]
    assert found.row.signature not in tainted, "a lookup used a row beside a broken one"
    same = [row for row in rows if row.key[:3] == found.row.key[:3]]
    assert len({row.kernel for row in same}) == len({row.rank for row in same}) == len(same), (
        "a lookup used one of two answers"
    )


def search(rows: list[Row], asked: str) -> tuple[Rung, Row] | None:
    """The row that must answer, by looking at all of them."""
    mine = [row for row in rows if row.device == DEVICE.digest]
    if exact := [row for row in mine if row.signature == asked]:
        return Rung.EXACT, min(exact, key=lambda row: (row.state == "predicted", row.rank))
    sizes = TEXT.fullmatch(asked)
    assert sizes is not None
    near = []
    for row in mine:
        tuned = TEXT.fullmatch(row.signature)
        if tuned is None or row.rank:
            continue
        pairs = [(int(a), int(b)) for a, b in zip(sizes.groups(), tuned.groups(), strict=True)]
        if any(max(pair) > 2 * min(pair) for pair in pairs):
            continue
        away = round(sum(abs(math.log2(a / b)) for a, b in pairs), 9)
        in_bucket = all((a - 1).bit_length() == (b - 1).bit_length() for a, b in pairs)
        order = (away, row.state == "predicted", row.rank, row.signature, row.kernel)
        near.append((not in_bucket, order, row))
    if not near:
        return None
    outside, _, row = min(near, key=lambda one: one[:2])
    return (Rung.NEIGHBOUR if outside else Rung.BUCKET), row


def sound_rows(files: Files, manifest: dict[str, Any], direction: str) -> tuple[list[Row], set[str]]:
    """The rows of one direction that are sound by themselves; and the signatures that broken ones name."""
    rows: list[Row] = []
    tainted: set[str] = set()
    kernels = {entry["kernel"] for entry in manifest["kernels"]}
    for shard in manifest["shards"]:
        if not shard["path"].endswith(f"/toy.{direction}.json"):
            continue
        line = f"{hashlib.sha256(files[shard['path']]).hexdigest()}  {shard['path']}\n"
        if line.encode() not in files[SUMS]:
            continue  # changed without its sum: nothing of it may answer
        for item in items_of(files[shard["path"]].decode("utf-8", "replace")):
            if (
                is_row(item)
                and item["device"] in manifest["devices"]
                and item["env"] in manifest["environments"]
                and f"toy/{item['kernel']}" in kernels
            ):
                given = {k: v for k, v in item.items() if k in KNOWN}
                rows.append(Row(op="toy", direction=direction, **given))
            elif isinstance(item, dict) and isinstance(item.get("signature"), str):
                tainted.add(item["signature"])
    return rows, tainted


def items_of(text: str) -> list[Any]:
    """The rows as JSON; where the whole is none, what its lines are."""
    try:
        found = json.loads(text, object_pairs_hook=pairs_of)
        return found if isinstance(found, list) else []
    except (ValueError, RecursionError):
        pass
    found = []
    for line in text.split("\n"):
        try:
            found.append(json.loads(line.removesuffix(","), object_pairs_hook=pairs_of))
        except (ValueError, RecursionError):
            continue
    return found


def pairs_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; one with a key twice is marked, and so is no row."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else {**found, "twice": found.pop("config", None)}


def is_row(item: Any) -> bool:
    """Whether it is what the format's page calls a row."""
    if not isinstance(item, dict):
        return False
    texts = [item.get(name) for name in ("device", "env", "signature", "kernel")]
    counts = [item.get("rank"), item.get("samples", 0)]
    maybe = [item.get(name) for name in ("median_ns", "heuristic_ns", "error_ppm", "features")]
    signed = [item.get(name) for name in ("gain_ppm", "regret_ppm")]
    return (
        all(isinstance(text, str) and 0 < len(text) <= 1000 for text in texts)
        and bool(re.fullmatch(r"[A-Za-z0-9_.-]{1,100}", item["kernel"]))
        and item["signature"].startswith("toy/v")
        and item.get("state") in STATES
        and all(is_int(n) and n >= 0 for n in counts)
        and all(n is None or (is_int(n) and n >= 0) for n in maybe)
        and all(n is None or is_int(n) for n in signed)
        and type(item.get("repeatable")) in (bool, type(None))
        and is_config(item.get("config"), parts=True)
    )


def is_config(value: Any, *, parts: bool) -> bool:
    """Whether it is knobs with plain values or, with ``parts``, parts with such knobs."""
    return isinstance(value, dict) and all(
        (parts and is_config(v, parts=False))
        if isinstance(v, dict)
        else (is_int(v) if type(v) is int else v is None or isinstance(v, bool | str | float))
        for v in value.values()
    )


def is_int(value: Any) -> bool:
    """Whether it is an integer that can be stored."""
    return type(value) is int and -(2**63) <= value < 2**63


def type_of(row: Row) -> str:
    """Tells 1 from True and 1.0, which are equal."""
    return repr(sorted(row.config.items(), key=str)) + repr((row.rank, row.samples, row.median_ns))
