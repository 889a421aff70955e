"""A decision from the shortlist is the decision from all trials, whatever they are."""

import random

import pytest

from attn_tune.db import Database, shortlist
from attn_tune.db.decisions import Finding, decide
from attn_tune.db.trials import read_trials
from attn_tune.schema import OutputError, Status
from tests.db.facts import ENVIRONMENT, KERNEL, NEWER, begin, make_trial

SEARCHED = 400
STATUSES = [Status.OK] * 12 + [Status.INCORRECT, Status.CRASHED, Status.TIMED_OUT, Status.UNPROVEN]
STATUSES += [Status.UNSUPPORTED] * 3


def random_trial(rng, clock, *, with_finals):
    """One trial of a messy problem: parts, wrong and unchecked configs, repeats, environments out of order."""
    number = rng.randrange(40)
    config = {"i": number} if rng.random() < 0.7 else {"dq": {"i": number % 5}, "i": number}
    part = rng.choice(["", "", "", "dq"])
    status = rng.choice(STATUSES) if rng.random() < 0.5 else Status.OK
    count = rng.choice([1, 3, 12])
    center = 10_000 + 50 * number
    samples = [rng.randrange(center, center + rng.choice([5, 300])) for _ in range(count)]
    wrong = rng.random() < 0.03
    errors = (OutputError(output="out", error=1.0 if wrong else rng.random() / 25, allowed=0.05),)
    final = with_finals and part == "" and rng.random() < 0.3
    return make_trial(
        config if part == "" else config.get(part, {"i": number}),
        samples,
        kernel=rng.choice([KERNEL, "flash_attention/xla"]),
        part=part,
        status=status,
        errors=() if not status.is_measured or rng.random() < 0.2 else errors,
        repeatable=rng.choice([None, True, True, False] if status.is_measured else [None, False]),
        features=rng.choice([None, 0, 3]),
        is_heuristic=number == 7,
        environment=rng.choice([ENVIRONMENT, NEWER, NEWER]),
        started_us=clock + rng.randrange(2000),
        round_id=f"r{clock % 3}" if final and status.is_measured else "",
    )


def decide_all(database):
    findings = read_trials(database._connection, database._catalog, {})
    return decide(Finding.of(run, trial) for _, run, trial in findings)


@pytest.mark.parametrize("with_finals", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_a_shortlist_decides_as_all_trials_do(tmp_path, monkeypatch, seed, with_finals):
    monkeypatch.setattr(shortlist, "FEW", 0)
    monkeypatch.setattr(shortlist, "STEP", 3)
    rng = random.Random(seed)
    with Database.open(tmp_path / "lab.db", create=True) as database:
        clock = 0
        for _ in range(3):
            run = begin(database)
            trials = []
            for _ in range(SEARCHED // 3):
                clock += 100
                trials.append(random_trial(rng, clock, with_finals=with_finals))
            database.record_many(run, trials)
            database.end_run(run, "finished")
            assert tuple(database.decide()) == decide_all(database)
        assert len(decide_all(database)) == 2


def test_most_trials_of_a_large_search_are_not_read(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(
        shortlist,
        "read_findings",
        lambda *args, original=shortlist.read_findings: [
            read.append(1) or item for item in original(*args)
        ],
    )
    with Database.open(tmp_path / "lab.db", create=True) as database:
        run = begin(database)
        trials = [make_trial({"i": i}, [1000 + 7 * (i * 31 % 997)] * 3) for i in range(1000)]
        database.record_many(run, trials)
        (decision,) = database.decide()
        assert (decision.config, decision.trials) == ({"i": 0}, 1000)
        assert len(read) < 100
        assert (decision,) == decide_all(database)
