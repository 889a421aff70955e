"""Ops that are no training attention go the whole way: plan, sweep, report, pack, lookup."""

import dataclasses
import json

import pytest

import attn_tune
from attn_tune.db import Database
from attn_tune.db.release.evidence import Evidence
from attn_tune.db.release.gate import check_rows
from attn_tune.ops.registry import get_op
from attn_tune.schema import Status
from attn_tune.schema.trial import Stage
from tests.chosen import exhaustive, values_asked_for
from tests.in_process import InProcess
from tests.one_feature_problem import prove_on_one

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

# State in place and an op of another shape: what is proven of them is proven of the other two.
RARE = ("probe_recurrent", "foreign")
OPS = [exhaustive(op) if op in RARE else op for op in SIGNATURES]
PLANTED = [exhaustive(*key) if key[0] in RARE else key for key in DEFECTS]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(request, tmp_path_factory, command):
    """The database of one sweep over the signatures that are asked for and all their kernels."""
    path = tmp_path_factory.mktemp("lab") / "lab.db"
    grids = [word for op in sorted(values_asked_for(request, "op")) for word in ("--grid", SIGNATURES[op])]
    # Untuned configs among the planted ones are wrong, which the exit code says.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attn_tune.tuner.run.executor.IsolatedExecutor", InProcess)
        prove_on_one(patch.setattr)
        result = command("sweep", *grids, "--db", path, "--json", fails=True)
    assert result.exit_code in (0, 1), result.output
    return path


@pytest.fixture(scope="module")
def pack(lab, command, tmp_path_factory):
    path = tmp_path_factory.mktemp("packs") / "probes.atpack"
    command("export", path, "--db", lab, "--name", "probes", "--max-regret", "1000000", "--allow-noisy")
    return path


@pytest.fixture(scope="module")
def trials(lab):
    with Database.open(lab, read_only=True) as database:
        return tuple(database.trials())


@pytest.mark.parametrize("op", OPS)
def test_a_plan_of_an_op_has_its_directions_and_its_kernels(op, command):
    planned = json.loads(command("plan", "--grid", SIGNATURES[op], "--json").stdout)
    assert planned["totals"]["cases"] == len(get_op(op).directions)
    assert {row["kernel"].partition("/")[0] for row in planned["kernels"]} == {op}


@pytest.mark.parametrize("op", OPS)
def test_every_config_of_a_right_kernel_is_proven_on_feature_problems(op, trials):
    of_op = [t for t in trials if t.signature.op == op and "broken" not in t.kernel]
    assert {t.direction for t in of_op} == set(get_op(op).directions)
    assert {t.status for t in of_op} == {Status.OK}
    finals = [t for t in of_op if t.stage is Stage.FINAL]
    assert finals
    assert all(t.features for t in finals)


@pytest.mark.parametrize(("op", "defect"), PLANTED)
def test_a_planted_defect_is_incorrect_by_the_output_that_shows_it(op, defect, trials):
    found = [t for t in trials if t.signature.op == op and t.config.get("defect") == defect]
    assert found
    assert {t.status for t in found} == {Status.INCORRECT}
    wrong = {e.output for t in found for e in t.errors if e.ratio > 1}
    assert wrong == {DEFECTS[op, defect]}


@pytest.mark.parametrize("op", OPS)
def test_a_report_shows_the_directions_of_the_op_and_no_others(op, lab, command):
    words = ("report", "--db", lab, "--grid", SIGNATURES[op], "-f", "json")
    report = json.loads(command(*words).stdout)
    assert {row["direction"] for row in report["summary"]} == set(get_op(op).directions)
    (covered,) = report["coverage"]
    assert set(covered) == {"point", "device", *get_op(op).directions}


@pytest.mark.parametrize("op", OPS)
def test_lookup_explain_and_freeze_answer_from_the_pack(op, pack, command, tmp_path, monkeypatch):
    with attn_tune.use_pack(pack):
        for direction in get_op(op).directions:
            answer = attn_tune.lookup(op, SIGNATURES[op], direction)
            assert answer.source == "probes 1"
            assert answer.kernel == RIGHT.get(op, "plain")
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(pack))
    explained = json.loads(command("explain", SIGNATURES[op], "--json").stdout)
    assert set(explained) == set(get_op(op).directions)
    lock = tmp_path / "job.lock"
    command("override", "freeze", lock, "--grid", SIGNATURES[op])
    assert SIGNATURES[op] in lock.read_text()


@pytest.mark.parametrize("op", OPS)
def test_the_gate_refuses_a_row_with_an_output_that_was_never_compared(op, lab, trials):
    with Database.open(lab, read_only=True) as database:
        decisions = database.decisions(op=op)
    assert {d.direction for d in decisions} == set(get_op(op).directions)
    for decision in decisions:
        own = [t for t in trials if t.signature == decision.signature and t.direction == decision.direction]
        declared = get_op(op).outputs(get_op(op).from_signature(decision.signature), decision.direction)
        assert not objections(decision, own, "")
        for output in declared:
            assert f"{output.name} never compared" in objections(decision, own, output.name)


def objections(decision, trials, uncompared):
    """The objections that no policy lets pass, as if the output ``uncompared`` had not been compared."""
    found = Evidence(
        dataclasses.replace(t, errors=tuple(e for e in t.errors if e.output != uncompared)) for t in trials
    )
    return "; ".join(o.reason for o in check_rows([decision], lambda d: found) if o.doubt is None)
