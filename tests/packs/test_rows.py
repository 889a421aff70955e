"""Rows: written as one canonical line, checked field by field, made from decisions."""

import dataclasses
import json

import pytest
from hypothesis import given, settings, strategies as st

from attn_tune.packs.rows import Row, parse_row
from attn_tune.packs.strict_json import parse_json
from attn_tune.schema import Decision, Rule, Signature
from attn_tune.schema.digest import canonical_json
from attn_tune.schema.errors import IntegrityError
from tests.runtime.packbuilder import ENVIRONMENT, FIELDS, H200, sig

TEXT = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
COUNT = st.integers(0, 2**63 - 1)
INTEGER = st.integers(-(2**63), 2**63 - 1)
MAYBE = st.none() | COUNT
SCALAR = st.none() | st.booleans() | INTEGER | TEXT | st.floats(allow_nan=False, allow_infinity=False)
FLAT = st.dictionaries(TEXT | st.sampled_from(["block_q", "device", "env", "config"]), SCALAR, max_size=3)
ROWS = st.builds(
    Row,
    op=st.just("toy"),
    direction=st.just("fwd"),
    device=TEXT,
    signature=TEXT.map(lambda text: "toy/v1 " + text),
    kernel=st.sampled_from(["alpha", "b.e-t_a"]),
    rank=COUNT,
    config=FLAT | st.dictionaries(TEXT, FLAT, max_size=2),
    state=st.sampled_from([rule.value for rule in Rule]),
    env=TEXT,
    median_ns=MAYBE,
    heuristic_ns=MAYBE,
    gain_ppm=st.none() | INTEGER,
    regret_ppm=st.none() | INTEGER,
    error_ppm=st.none() | st.integers(0, 10**6),
    samples=COUNT,
    repeatable=st.none() | st.booleans(),
    features=MAYBE,
)
STORED = {field.name for field in dataclasses.fields(Row)} - {"op", "direction"}


def parsed(line):
    return parse_row(parse_json(line, "it"), op="toy", direction="fwd")


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_row_survives_its_line(row):
    assert parsed(row.line) == row
    assert canonical_json(parse_json(row.line, "it")) == row.line


def plain(**changes):
    """A row as plain data, with every field."""
    row = {
        "config": {"block_q": 64, "split": None},
        "device": "b2:aa",
        "env": "b2:bb",
        "error_ppm": 4,
        "features": 12,
        "gain_ppm": -3,
        "heuristic_ns": 15,
        "kernel": "alpha",
        "median_ns": 10,
        "rank": 0,
        "regret_ppm": 0,
        "repeatable": True,
        "samples": 3,
        "signature": "toy/v1 t=1",
        "state": "winner",
    }
    return {**row, **changes}


def test_line_of_a_row_has_every_field_but_two_unknown_ones():
    assert json.loads(parsed(json.dumps(plain())).line) == plain()
    unknown = plain(repeatable=None, features=None, median_ns=None)
    line = parsed(json.dumps(unknown)).line
    assert json.loads(line).keys() == STORED - {"repeatable", "features"}


@pytest.mark.parametrize("name", sorted(STORED))
def test_row_with_a_wrong_value_is_refused_by_the_name_of_the_field(name):
    for wrong in ([], -1.5, "\u0000" * 2000, 2**63, {"a": {"b": {}}}):
        with pytest.raises(IntegrityError, match=f"^{name} "):
            parsed(json.dumps(plain(**{name: wrong})))


def test_a_row_that_says_itself_that_it_is_wrong_is_refused():
    with pytest.raises(IntegrityError, match=r"^error_ppm must be an integer from 0 to 1000000, the largest error of"):
        parsed(json.dumps(plain(error_ppm=10**6 + 1)))


@pytest.mark.parametrize("name", sorted(STORED - {"gain_ppm", "regret_ppm"}))
def test_row_with_a_negative_value_is_refused_where_none_can_be(name):
    with pytest.raises(IntegrityError, match=f"^{name} "):
        parsed(json.dumps(plain(**{name: -1})))


@pytest.mark.parametrize("name", sorted(STORED))
def test_row_without_a_field_is_refused_unless_it_may_be_unknown(name):
    row = {key: value for key, value in plain().items() if key != name}
    if name in ("config", "device", "env", "kernel", "rank", "signature", "state"):
        with pytest.raises(IntegrityError, match=f"lacks '{name}'"):
            parsed(json.dumps(row))
    else:
        assert getattr(parsed(json.dumps(row)), name) == (0 if name == "samples" else None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a":1,"a":2}', "appears twice"),
        ('{"a":NaN}', "NaN"),
        ('{"a":-Infinity}', "Infinity"),
        ('{"a":1e400}', "out of range"),
        ('{"a":' + "9" * 5000 + "}", "too many digits"),
        ('{"a":' + "[" * 100_000, "nested too deeply"),
        ('{"a":1', "not JSON"),
        ('{"a":1} {', "not JSON"),
        (b'{"a":"\xff"}', "not UTF-8"),
        ("\ufeff{}", "not JSON"),
    ],
)
def test_json_without_one_meaning_is_refused(text, words):
    with pytest.raises(IntegrityError, match=f"^it.*{words}"):
        parse_json(text, "it")


def test_row_of_a_decision_says_what_the_decision_says():
    decision = Decision(
        op="toy",
        direction="bwd",
        signature=Signature.parse(sig(64), FIELDS),
        device=H200,
        environment=ENVIRONMENT,
        kernel="toy/alpha",
        config={"block": 64},
        rule=Rule.TIE,
        median_ns=1000,
        gain=1.25,
        regret_bound=-0.0000004,
        worst_error=0.2,
        samples=30,
        repeatable=False,
        features=3,
        rank=1,
    )
    assert Row.of(decision) == Row(
        op="toy",
        direction="bwd",
        device=H200.digest,
        signature=sig(64),
        kernel="alpha",
        rank=1,
        config={"block": 64},
        state="tie",
        env=ENVIRONMENT.digest,
        median_ns=1000,
        heuristic_ns=None,
        gain_ppm=250_000,
        regret_ppm=0,
        error_ppm=200_000,
        samples=30,
        repeatable=False,
        features=3,
    )
