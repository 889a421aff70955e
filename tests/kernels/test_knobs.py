"""Knobs: what a declaration admits, what it says of a value that it does not, and what is tried."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import pytest

from attn_tune.kernels.knobs import (
    Choice,
    Flag,
    Knobs,
    Multiple,
    PowerOfTwo,
    Range,
    first_reason,
    knobs_of,
    parts_of,
    tried,
)
from attn_tune.kernels.registry import kernels
from attn_tune.schema.config import config_from_dict, config_to_dict
from attn_tune.schema.errors import UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch(Knobs):
    block: Annotated[int, PowerOfTwo(16, 64, tried=(16, 32), doc="rows of a tile")]
    step: Annotated[int, Multiple(8)] = 8
    count: Annotated[int, Multiple()] = 1
    stages: Annotated[int, Range(2, 4)] = 2
    groups: Annotated[int, Choice((1, 2, 3), tried=(1, 2))] = 1
    layout: Annotated[str, Choice(("rows", "columns"))] = "rows"
    fast: Annotated[bool, Flag()] = False
    cap: Annotated[int | None, Range(32, 255)] = None

    def conflict(self):
        return "fast needs three stages" if self.fast and self.stages < 3 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Both:
    first: Launch
    second: Launch


REFUSED = {
    "block must be a power of two between 16 and 64, got 48": {"block": 48},
    "block must be a power of two between 16 and 64, got 128": {"block": 128},
    "block must be a power of two between 16 and 64, got 16.0": {"block": 16.0},
    "step must be a positive multiple of 8, got 12": {"step": 12},
    "step must be a positive multiple of 8, got 0": {"step": 0},
    "count must be a positive integer, got True": {"count": True},
    "stages must be between 2 and 4, got 5": {"stages": 5},
    "groups must be 1, 2 or 3, got True": {"groups": True},
    "layout must be rows or columns, got 'rowz'": {"layout": "rowz"},
    "fast must be true or false, got 1": {"fast": 1},
    "cap must be between 32 and 255, or None, got 8": {"cap": 8},
    "stages must be between 2 and 4, got None": {"stages": None},
    "fast needs three stages": {"fast": True},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_a_knob_outside_its_values_is_refused_by_name(sentence):
    with pytest.raises(UsageError) as caught:
        Launch(**{"block": 16, **REFUSED[sentence]})
    assert str(caught.value) == sentence


def test_a_subclass_narrows_a_knob_and_keeps_its_place():
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Narrow(Launch):
        block: Annotated[int, PowerOfTwo(16, 32, tried=(32,))]

    assert dataclasses.fields(Narrow)[0].name == "block"
    assert (tried(Launch, "block"), tried(Narrow, "block")) == ((16, 32), (32,))
    Launch(block=64)
    with pytest.raises(UsageError, match="between 16 and 32, got 64"):
        Narrow(block=64)


def test_parts_are_judged_one_by_one_with_their_names():
    def infeasible(problem, device, launch):
        return f"{launch.block} is too many" if launch.block > 16 else None

    small, large = Launch(block=16), Launch(block=32)
    assert first_reason(infeasible, None, None, large) == "32 is too many"
    both = Both(first=small, second=large)
    assert dict(parts_of(both)) == {"first": small, "second": large}
    assert first_reason(infeasible, None, None, both) == "second: 32 is too many"
    assert first_reason(infeasible, None, None, Both(first=small, second=small)) is None


def _launches():
    for spec in kernels().values():
        for search in spec.searches.values():
            for field in dataclasses.fields(search.config):
                if dataclasses.is_dataclass(field.type):
                    yield spec.id, field.type
            yield spec.id, search.config


@pytest.mark.parametrize(("kernel", "config"), list(_launches()), ids=str)
def test_every_shipped_knob_is_declared_described_and_admits_what_is_tried(kernel, config):
    knobs = knobs_of(config)
    for field in dataclasses.fields(config):
        if dataclasses.is_dataclass(field.type):
            continue
        knob, is_optional = knobs[field.name]
        assert knob.doc
        assert all(knob.admits(value) for value in knob.tried)
        if field.default is not dataclasses.MISSING:
            assert knob.admits(field.default) or (is_optional and field.default is None)


def test_knobs_survive_the_round_trip_through_plain_data():
    config = Launch(block=32, cap=64)
    assert config_from_dict(Launch, config_to_dict(config)) == config
