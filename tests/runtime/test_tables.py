"""The quick reading of a shard says what the one that parses says, or leaves it to that one."""

import json

import pytest
from hypothesis import given, settings, strategies as st

from attn_tune.db.pack_files import _shard_text
from attn_tune.runtime.rows import Row, row_from_json
from attn_tune.runtime.strict_json import parse_json
from attn_tune.runtime.tables import Rows, parsed_table, plain_table
from attn_tune.schema.errors import IntegrityError

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
COUNT = st.integers(0, 10**19)
MAYBE = st.none() | COUNT
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(10**19), 10**19)
    | TEXT
    | st.floats(allow_nan=False, allow_infinity=False)
)
FLAT = st.dictionaries(
    TEXT | st.sampled_from(["block_q", "device", "env", "config"]), SCALAR, max_size=3
)
ROWS = st.builds(
    Row,
    op=st.just("toy"),
    direction=st.just("fwd"),
    device=TEXT,
    signature=TEXT.map(lambda text: "toy/v1 " + text),
    kernel=st.sampled_from(["alpha", "b.e-t_a"]),
    rank=COUNT,
    config=FLAT | st.dictionaries(TEXT, FLAT, max_size=2),
    state=st.sampled_from(["winner", "tie", "only", "predicted", "heuristic"]),
    env=TEXT,
    median_ns=MAYBE,
    heuristic_ns=MAYBE,
    gain_ppm=st.none() | st.integers(-(10**19), 10**19),
    regret_ppm=st.none() | st.integers(-(10**19), 10**19),
    error_ppm=MAYBE,
    samples=COUNT,
    repeatable=st.none() | st.booleans(),
    features=MAYBE,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, max_size=4))
def test_both_readings_agree_on_whatever_can_be_written(rows):
    data = _shard_text(rows).encode()
    quick = plain_table(data, op="toy", direction="fwd")
    try:
        read = [row_from_json(item, op="toy", direction="fwd") for item in parse_json(data, "x")]
    except IntegrityError:
        assert quick is None
        return
    slow = parsed_table(read, op="toy", direction="fwd")
    if quick is None:
        return
    assert Rows([quick]) == Rows([slow]) == tuple(read)
    for name in ("devices", "signatures", "kernels", "ranks", "envs", "lines"):
        assert list(getattr(quick, name)) == list(getattr(slow, name))


def plain_row(**changes):
    row = {
        "config": {"block_q": 64, "split": None},
        "device": "b2:aa",
        "env": "b2:bb",
        "error_ppm": None,
        "gain_ppm": -3,
        "heuristic_ns": 15,
        "kernel": "alpha",
        "median_ns": 10,
        "rank": 0,
        "regret_ppm": 0,
        "samples": 3,
        "signature": "toy/v1 t=1",
        "state": "winner",
    }
    return {**row, **changes}


def shard(*rows):
    lines = [json.dumps(r, sort_keys=True, separators=(",", ":")) for r in rows]
    return ("[\n" + ",\n".join(lines) + "\n]\n").encode()


def test_what_the_writer_writes_is_read_quickly():
    rows = [plain_row(), plain_row(config={}), plain_row(config={"dq": {"a": 1}, "dkv": {"a": 2}})]
    table = plain_table(shard(*rows), op="toy", direction="fwd")
    assert table is not None
    assert [dict(table.row(i).config) for i in range(3)] == [r["config"] for r in rows]
    assert list(table.find("toy/v1 t=1")) == [0, 1, 2]
    assert list(table.find("toy/v1 t=2")) == []


@pytest.mark.parametrize("repeatable", [None, False, True])
@pytest.mark.parametrize("features", [None, 0, 12])
def test_rows_with_or_without_the_facts_of_the_proof_are_read_quickly(repeatable, features):
    said = {"repeatable": repeatable, "features": features}
    row = plain_row(**{name: value for name, value in said.items() if value is not None})
    table = plain_table(shard(row, plain_row()), op="toy", direction="fwd")
    assert table is not None
    assert (table.row(0).repeatable, table.row(0).features) == (repeatable, features)
    assert (table.row(1).repeatable, table.row(1).features) == (None, None)
    assert table.row(0) == row_from_json(row, op="toy", direction="fwd")
    written = _shard_text([table.row(0), table.row(1)]).encode()
    assert plain_table(written, op="toy", direction="fwd") is not None


@pytest.mark.parametrize("wrong", [{"repeatable": 1}, {"repeatable": "no"}, {"features": -1}])
def test_wrong_facts_of_the_proof_are_refused_by_both_readers(wrong):
    row = plain_row(**wrong)
    assert plain_table(shard(row), op="toy", direction="fwd") is None
    with pytest.raises(IntegrityError, match=next(iter(wrong))):
        row_from_json(row, op="toy", direction="fwd")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"rank":0', '"rank":00'),
        ('"rank":0', '"rank":-0'),
        ('"rank":0', '"rank":NaN'),
        ('"block_q":64', '"block_q":64,"block_q":64'),
        ('"block_q":64', '"zz":1,"block_q":64'),
        ('"block_q":64', '"block_q":064'),
        ('"block_q":64', '"block_q":64,'),
        ('"state":"winner"', '"state":"champion"'),
        ('"signature":"toy', '"signature":"tay'),
        ('"signature":"toy', '"signature":"toy\x01'),
        ('"signature":"toy', '"signature":"toy\\n'),
        ('"device":"b2', '"device":"\n'),
        ("\n]", ",\n]"),
        ("},\n{", "}\n{"),
        ("},\n{", "},{"),
        ("},\n{", "},\n\n{"),
        ("[\n", "[\n\n"),
        ('"config":{', '"config":{},"config":{'),
        ('"median_ns":10', '"median_ns":' + "9" * 19),
    ],
)
def test_anything_else_is_left_to_the_parser(old, new):
    data = shard(plain_row(), plain_row(signature="toy/v1 t=2"))
    assert plain_table(data, op="toy", direction="fwd") is not None
    edited = data.decode().replace(old, new, 1).encode()
    assert edited != data
    assert plain_table(edited, op="toy", direction="fwd") is None
