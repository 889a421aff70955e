"""Recording and reading: trials come back exactly, failed writes leave nothing."""

import dataclasses
import math
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st

from attn_tune.db import Database, merge_database
from attn_tune.schema import (
    Environment,
    Measurement,
    OutputError,
    Prediction,
    Protocol,
    Resources,
    Shortage,
    Stage,
    Status,
    StorageError,
    Trial,
    UsageError,
    canonical_json,
)
from attn_tune.schema.conditions import Conditions
from attn_tune.schema.trial import twin_round
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

words = st.text(st.characters(codec="utf-8"), max_size=20)
amounts = st.floats(min_value=0) | st.just(math.nan)
integers = st.integers(0, 2**62)
durations = st.none() | st.floats(0, 1e12)
moments = st.integers(0, 9_223_372_036_854_775)  # until the year 2262
configs = st.dictionaries(
    st.text("abc_xyz", min_size=1, max_size=8),
    st.one_of(
        st.integers(-(2**62), 2**62),
        st.booleans(),
        st.none(),
        words,
        st.dictionaries(st.text("ab", min_size=1, max_size=3), st.integers(0, 512), max_size=3),
    ),
    max_size=5,
)
measurements = st.builds(
    Measurement,
    samples_ns=st.lists(st.integers(1, 2**62), min_size=1, max_size=40).map(tuple),
    protocol=st.builds(
        Protocol,
        timer=st.sampled_from(["cupti", "xplane", "host"]),
        warmup=st.integers(0, 9),
        flush_l2=st.booleans(),
        calls_per_sample=st.integers(1, 99),
        interleaved=st.booleans(),
    ),
    round_id=words,
)
problems = st.builds(
    make_signature,
    q_len=st.integers(1, 2**31 - 1),
    window=st.tuples(st.none() | st.integers(0, 9), st.none() | st.integers(0, 9)),
    causal=st.booleans(),
    bias_dims=st.sampled_from([None, "b1ts", "1n1s"]),
)

spans = st.none() | st.tuples(st.integers(0, 999), st.integers(0, 999))
conditions = st.builds(
    Conditions,
    sm_clock_mhz=spans,
    temperature_c=spans,
    throttle=st.lists(words, max_size=2).map(tuple),
    repeats=st.integers(0, 3),
)
predictions = st.builds(
    lambda low, more, most: Prediction(
        ns=low + more, low_ns=low, high_ns=low + more + most, model="m 1", terms={"visits_ns": 0.5}
    ),
    *(st.integers(1, 2**40) for _ in range(3)),
)
shortages = st.builds(Shortage, resource=st.just("vmem"), needed=st.integers(0, 2**62), limit=st.integers(0, 2**62))


@st.composite
def trials(draw):
    """Any trial that the schema allows."""
    status = draw(st.sampled_from(Status))
    return Trial(
        kernel=draw(st.sampled_from([KERNEL, "flash_attention/xla", "other_op/thing"])),
        direction=draw(st.sampled_from(["fwd", "bwd"])),
        part=draw(st.sampled_from(["", "dq", "dkv"])),
        signature=draw(problems),
        device=draw(st.sampled_from([DEVICE, OTHER_DEVICE])),
        environment=draw(st.builds(Environment, jax=words, jaxlib=words, compiler=words, source_hash=words)),
        config=draw(configs),
        status=status,
        stage=draw(st.sampled_from(Stage)),
        reason=draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=50)),
        errors=tuple(
            draw(
                st.lists(
                    st.builds(OutputError, output=words, error=amounts, allowed=amounts),
                    max_size=4,
                )
            )
        ),
        measurement=draw(measurements) if status.is_measured else None,
        repeatable=draw(st.none() | st.booleans()),
        features=draw(st.none() | st.integers(0, 50)),
        resources=draw(
            st.builds(
                Resources,
                shared_bytes=st.none() | integers,
                registers=st.none() | integers,
                spill_bytes=st.none() | integers,
                code_digest=words,
            )
        ),
        prediction=draw(predictions) if status is Status.PREDICTED else None,
        shortage=draw(st.none() | shortages) if status is Status.OUT_OF_RESOURCES else None,
        compile_ms=draw(durations),
        prove_ms=draw(durations),
        run_ms=draw(durations),
        is_heuristic=draw(st.booleans()),
        started_us=draw(moments),
        ended_us=draw(st.none() | moments),
        point=draw(words),
        conditions=draw(st.none() | conditions),
    )


def plain(trial):
    """A trial as text: NaN equals itself, evidence counts, the order of knobs does not."""
    return repr(dataclasses.replace(trial, config=canonical_json(trial.config)))


@pytest.fixture
def database(tmp_path):
    with Database.open(tmp_path / "lab.db", create=True) as database:
        yield database


@settings(max_examples=20, deadline=None)
@given(st.lists(trials(), max_size=8))
def test_trials_come_back_exactly(tmp_path_factory, wanted):
    path = tmp_path_factory.mktemp("db") / "lab.db"
    with Database.open(path, create=True) as database:
        run = begin(database)
        for trial in wanted:
            database.record(run, trial)
    with Database.open(path, read_only=True) as database:
        found = list(database.trials())
    assert [plain(t) for t in found] == [plain(t) for t in wanted]


def test_nan_errors_stay_nan(database):
    wrong = OutputError(output="dq", error=math.nan, allowed=0.1)
    database.record(begin(database), make_trial(status=Status.INCORRECT, errors=(wrong,)))
    (trial,) = database.trials()
    assert math.isnan(trial.errors[0].error)
    assert trial.worst_error.ratio == math.inf


def test_trials_are_paged_and_narrowed_by_every_filter(database):
    run = begin(database)
    for i in range(600):
        database.record(run, make_trial({"block_q": i}))
    bad = make_trial({"block_q": 1}, status=Status.CRASHED, direction="bwd", device=OTHER_DEVICE)
    other = make_trial(kernel="flash_attention/xla", signature=make_signature(q_len=64))
    database.record(run, bad)
    second = begin(database, OTHER_DEVICE)
    database.record(second, other)
    assert sum(1 for _ in database.trials()) == 602
    assert [t.config["block_q"] for t in database.trials(kernel="triton", direction="fwd")] == [*range(600)]
    for narrowed, expected in [
        ({"status": Status.CRASHED}, bad),
        ({"device": OTHER_DEVICE}, bad),
        ({"device": "tpu-v6e"}, bad),
        ({"kernel": "flash_attention/xla"}, other),
        ({"signature": other.signature}, other),
        ({"signature": other.signature.text, "op": "flash_attention"}, other),
        ({"run": second}, other),
    ]:
        assert [plain(t) for t in database.trials(**narrowed)] == [plain(expected)]
    assert not list(database.trials(op="nothing"))
    assert sum(1 for _ in database.trials(op=None, kernel="triton")) == 601
    with pytest.raises(UsageError, match="unknown filter of trials: 'kernels'; did you mean 'kernel'"):
        list(database.trials(kernels="xla"))


def test_measured_needs_an_equal_environment_and_device(database):
    run = begin(database)
    trial = make_trial()
    database.record(run, make_trial(status=Status.TIMED_OUT))
    database.record(run, trial)
    database.record(run, make_trial(status=Status.CRASHED, part="dq"))

    def measured(device=DEVICE, environment=ENVIRONMENT, **changes):
        key = {"kernel_id": KERNEL, "direction": "fwd", "signature": SIGNATURE, **changes}
        return database.measured(**key, device=device, environment=environment)

    digest = trial.config_digest
    assert measured() == {("", digest): Status.OK, ("dq", digest): Status.CRASHED}
    assert measured(environment=NEWER) == {}
    assert measured(device=OTHER_DEVICE) == {}
    assert measured(direction="bwd") == {}
    assert measured(kernel_id="flash_attention/xla") == {}
    assert measured(signature=make_signature(q_len=64)) == {}


def test_unknown_source_never_counts_as_measured(database):
    unknown = Environment(jax="1", jaxlib="1")
    database.record(begin(database), make_trial(environment=unknown))
    assert database.measured(KERNEL, "fwd", SIGNATURE, DEVICE, unknown) == {}


def test_a_failed_record_leaves_nothing_behind(database):
    run = begin(database)
    new = make_trial(device=OTHER_DEVICE, signature=make_signature(q_len=7))
    with pytest.raises(UsageError, match="op/name"):
        database.record_many(run, [new, make_trial(kernel="triton")])
    assert not list(database.trials())
    # The ids that the failed transaction made must not be used again.
    database.record(run, new)
    assert [plain(t) for t in database.trials()] == [plain(new)]


def test_a_full_disk_loses_only_what_did_not_fit(database):
    run = begin(database)
    database.record(run, make_trial())
    pages = database._connection.execute("PRAGMA page_count").fetchone()[0]
    database._connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    big = make_trial(status=Status.COMPILE_ERROR, reason="x" * 100_000)
    with pytest.raises(StorageError, match="full"):
        database.record(run, big)
    assert database.integrity_check() == ()
    assert [t.status for t in database.trials()] == [Status.OK]
    database._connection.execute("PRAGMA max_page_count = 1000000")
    database.record(run, big)
    assert [t.reason[:3] for t in database.trials()] == ["", "xxx"]


def test_status_follows_a_run(database):
    assert database.status().state == "none"
    run = begin(database)
    database.record(run, make_trial())
    database.record(run, make_trial(status=Status.CRASHED))
    database.heartbeat(run)
    with Database.open(database.path, read_only=True) as reader:
        status = reader.status()
    assert (status.state, status.running, status.run_id, status.trials) == ("running", True, run, 2)
    assert status.counts == {Status.OK: 1, Status.CRASHED: 1}
    assert status.device == DEVICE
    assert status.argv == ("attn-tune", "sweep")
    database.end_run(run, "finished")
    assert database.status().state == "finished"
    with pytest.raises(StorageError, match="not open"):
        database.record(run, make_trial())


def test_closing_interrupts_an_open_run(tmp_path):
    with Database.open(tmp_path / "lab.db", create=True) as database:
        begin(database)
    with Database.open(tmp_path / "lab.db") as database:
        assert database.status().state == "interrupted"


def test_misuse_is_refused(database):
    run = begin(database)
    with pytest.raises(UsageError, match="op/name"):
        database.record(run, make_trial(kernel="triton"))
    with pytest.raises(UsageError, match="finished"):
        database.end_run(run, "done")
    with (
        Database.open(database.path, read_only=True) as reader,
        pytest.raises(StorageError, match="read-only"),
    ):
        begin(reader)


LOADED = """
import sys
from attn_tune.db import Database
with Database.open(sys.argv[1]) as database:
    assert database.status().trials == 1
    assert len(list(database.trials())) == 1
    database.decisions()
print(*sorted({"jax", "triton", "pandas", "numpy", "sqlite_utils"} & set(sys.modules)))
"""


def test_looking_into_a_database_loads_nothing_heavy(database):
    database.record(begin(database), make_trial())
    command = [sys.executable, "-c", LOADED, str(database.path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_conditions_come_back_and_are_merged(tmp_path):
    conditions = Conditions(sm_clock_mhz=(1755, 1980), temperature_c=(40, 61), throttle=("sw_power_cap",), repeats=1)
    trials = [
        make_trial({"block_q": size}, round_id=name, conditions=conditions)
        for size, name in ((64, "r1"), (128, "r1"), (128, twin_round("r1")))
    ]
    other = make_trial({"block_q": 64}, round_id="r2")
    with Database.open(tmp_path / "a.db", create=True) as database:
        run = begin(database)
        for trial in (*trials, make_trial(), other):
            database.record(run, trial)
        assert [t.conditions for t in database.trials()] == [conditions] * 3 + [None] * 2
    with Database.open(tmp_path / "b.db", create=True) as merged:
        merge_database(merged, tmp_path / "a.db")
        assert [t.conditions for t in merged.trials()] == [conditions] * 3 + [None] * 2
        assert merge_database(merged, tmp_path / "a.db").trials == 0
        assert merged.integrity_check() == ()
