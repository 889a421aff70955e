"""``Database.past_searches``: the newest time of each config, failures included, refused configs left out."""

import math

import pytest

from attn_tune.db import Database
from attn_tune.schema import Status, config_digest
from tests.db.facts import (
    DEVICE,
    ENVIRONMENT,
    KERNEL,
    NEWER,
    OTHER_DEVICE,
    SIGNATURE,
    begin,
    make_signature,
    make_trial,
)

A, B, C = ({"block_q": size, "num_warps": 4} for size in (32, 64, 128))
LONG = make_signature(q_len=512)


@pytest.fixture
def database(tmp_path):
    trials = [
        make_trial(A, (100, 101, 102)),
        make_trial(B, (90,), is_heuristic=True),
        make_trial(C, status=Status.OUT_OF_RESOURCES),
        make_trial({"block_q": 999}, status=Status.UNSUPPORTED),
        make_trial(A, (50,), round_id="finals are another protocol"),
        make_trial(A, (80,)),
        make_trial(A, (70,), environment=NEWER),
        make_trial(A, (60,), signature=LONG),
        make_trial({"x": 1}, (40,), direction="bwd", part="dq"),
        make_trial(A, (30,), device=OTHER_DEVICE),
    ]
    with Database.open(tmp_path / "lab.db", create=True) as database:
        run = begin(database)
        for trial in trials:
            database.record(run, trial)
        yield database


def test_a_past_search_has_the_newest_time_of_each_config_the_untuned_first(database):
    first, *_ = database.past_searches(kernel=KERNEL, direction="fwd", part="")
    assert (first.signature, first.device, first.environment) == (
        SIGNATURE,
        DEVICE.digest,
        ENVIRONMENT.digest,
    )
    assert list(first.times_ns.items()) == [
        (config_digest(B), 90.0),
        (config_digest(A), 80.0),
        (config_digest(C), math.inf),
    ]
    assert list(first.configs.values()) == [B, A, C]


def test_past_searches_of_other_cases_environments_and_devices_are_apart(database):
    found = database.past_searches(direction="fwd")
    assert [(p.signature, p.environment, p.device, p.times_ns[config_digest(A)]) for p in found] == [
        (SIGNATURE, ENVIRONMENT.digest, DEVICE.digest, 80.0),
        (SIGNATURE, NEWER.digest, DEVICE.digest, 70.0),
        (LONG, ENVIRONMENT.digest, DEVICE.digest, 60.0),
        (SIGNATURE, ENVIRONMENT.digest, OTHER_DEVICE.digest, 30.0),
    ]


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ({}, 5),
        ({"family": DEVICE.family}, 4),
        ({"part": "dq"}, 1),
        ({"kernel": "flash_attention/xla"}, 0),
        ({"kernel": "triton"}, 0),
    ],
)
def test_past_searches_are_narrowed(database, filters, count):
    assert len(database.past_searches(**filters)) == count
