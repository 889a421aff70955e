"""Ops that are no training attention go the whole way: plan, sweep in a worker, report, pack, lookup."""

import json

import pytest

import attn_tune
from attn_tune.db import Database
from attn_tune.db.gate import check_rows
from attn_tune.kernels.registry import get_op
from attn_tune.schema import Status

SIGNATURES = {
    "probe_paged": "probe_paged/v1 b=3 s=64 n=2 h=16 page=8 dtype=float32 workload=uni",
    "probe_recurrent": "probe_recurrent/v1 b=2 t=32 n=2 k=8 v=16 dtype=float32 workload=reset",
    "probe_loss": "probe_loss/v1 t=64 h=16 w=128 top=4 dtype=float32",
    "foreign": "foreign/v1 t=64",
}
RIGHT = {"probe_paged": "plain", "probe_recurrent": "scan", "probe_loss": "plain"}
# The output that shows each planted defect.
DEFECTS = {
    ("probe_paged", "stray_write"): "cache",
    ("probe_paged", "lost_write"): "cache",
    ("probe_recurrent", "stale_state"): "state",
    ("probe_recurrent", "same_state"): "state",
    ("probe_loss", "wrong_mean"): "loss",
    ("probe_loss", "next_best"): "best",
    ("probe_loss", "best_twice"): "best",
    ("probe_loss", "scaled_row"): "grad_words",
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(tmp_path_factory, command):
    """The database of one sweep over all signatures and kernels, and the sweep's result."""
    path = tmp_path_factory.mktemp("lab") / "lab.db"
    grids = [word for text in SIGNATURES.values() for word in ("--grid", text)]
    # Untuned configs among the planted ones are wrong, which the exit code says.
    result = command("sweep", *grids, "--db", path, "--json", fails=True)
    assert result.exit_code in (0, 1), result.output
    return path


@pytest.fixture(scope="module")
def pack(lab, command, tmp_path_factory):
    path = tmp_path_factory.mktemp("packs") / "probes.atpack"
    command("export", path, "--db", lab, "--max-regret", "9", "--allow-noisy")
    return path


@pytest.fixture(scope="module")
def trials(lab):
    with Database.open(lab, read_only=True) as database:
        return tuple(database.trials())


@pytest.mark.parametrize("op", SIGNATURES)
def test_every_config_of_a_right_kernel_is_planned_and_proven(op, trials, command):
    planned = json.loads(command("plan", "--grid", SIGNATURES[op], "--json", "-d", "fwd" if op != "probe_paged" else "step").stdout)
    assert planned["device"]["platform"] == "cpu"
    of_op = [t for t in trials if t.signature.op == op and "broken" not in t.kernel]
    assert {t.direction for t in of_op} == set(get_op(op).directions)
    assert {t.status for t in of_op} == {Status.OK}
    assert all(t.features for t in of_op if t.stage == "final")


@pytest.mark.parametrize(("op", "defect"), DEFECTS)
def test_a_planted_defect_is_incorrect_by_the_output_that_shows_it(op, defect, trials):
    found = [t for t in trials if t.signature.op == op and t.config.get("defect") == defect]
    assert found
    assert {t.status for t in found} == {Status.INCORRECT}
    wrong = {e.output for t in found for e in t.errors if e.ratio > 1}
    assert wrong == {DEFECTS[op, defect]}


@pytest.mark.parametrize("op", SIGNATURES)
def test_a_report_shows_the_directions_of_the_op_and_nothing_else(op, lab, command):
    report = json.loads(command("report", "--db", lab, "--grid", SIGNATURES[op], "--json").stdout)
    directions = {row["direction"] for row in report["decisions"]}
    assert directions == set(get_op(op).directions)


@pytest.mark.parametrize("op", SIGNATURES)
def test_lookup_explain_and_freeze_answer_from_the_pack(op, pack, command, tmp_path, monkeypatch):
    with attn_tune.use_pack(pack):
        for direction in get_op(op).directions:
            answer = attn_tune.lookup(op, SIGNATURES[op], direction)
            assert answer.source.kind != "heuristic"
            assert answer.kernel.endswith(RIGHT.get(op, "plain"))
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(pack))
    explained = json.loads(command("explain", SIGNATURES[op], "--json").stdout)
    assert set(explained) == set(get_op(op).directions)
    lock = tmp_path / "job.lock"
    command("freeze", lock, "--grid", SIGNATURES[op])
    assert SIGNATURES[op] in lock.read_text()


@pytest.mark.parametrize("op", SIGNATURES)
def test_the_gate_asks_for_every_output_that_the_op_declares(op, lab):
    class Nothing:
        """The evidence of a decision whose outputs were never compared."""

        def __init__(self, real):
            self._real = real

        def __getattr__(self, name):
            return getattr(self._real, name)

        def proven_outputs(self, decision):
            return set()

    from attn_tune.db.decisions import decide

    with Database.open(lab, read_only=True) as database:
        decisions = [d for d in database.decisions() if d.op == op]
    assert decisions
