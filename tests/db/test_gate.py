"""The release gate: rows without proof are refused with the reason, and guards cover near problems."""

import dataclasses
import json

import pytest

from attn_tune.db import Database, Selection, export_pack
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.registry import get_op
from attn_tune.packs.override_entries import Entry
from attn_tune.packs.override_files import OverridesFile
from attn_tune.packs.reader import read_pack
from attn_tune.runtime.overrides.active import Overrides
from attn_tune.schema import GateError, IntegrityError, OutputError, Status, UsageError
from tests.db.facts import DEVICE, ENVIRONMENT, begin, make_signature, make_trial

RELEASED = dataclasses.replace(ENVIRONMENT, compiler="ptxas 13")
SHORT, LONG, FAR = (make_signature(q_len=t, kv_len=t) for t in (1024, 2048, 16384))
UNTUNED = {"block_k": 64, "block_q": 64, "num_stages": 2, "num_warps": 4}
FAST = {**UNTUNED, "block_q": 128}
GOOD = tuple(OutputError(output=o, error=0.01, allowed=0.05) for o in ("out", "lse"))
GRADIENTS = tuple(OutputError(output=o, error=0.01, allowed=0.05) for o in ("dq", "dk", "dv"))


def trial(config, time, signature=SHORT, **changes):
    """A final of one round; a backward has the same tiles in each of its launches."""
    samples = () if changes.get("status") else tuple(time + 5 * i for i in range(12))
    common = {"environment": RELEASED, "errors": GOOD, "round_id": "r", "signature": signature}
    knobs = {"dkv": config, "dq": config} if changes.get("direction") == "bwd" else config
    return make_trial(knobs, samples, is_heuristic=config == UNTUNED, **{**common, **changes})


def lab(path, trials):
    with Database.open(path, create=True) as database:
        run = begin(database)
        for one in trials:
            database.record(run, one)
    return path


def export(path, target, **options):
    wanted = {f.name for f in dataclasses.fields(Selection)} & options.keys()
    selection = Selection(**{name: options.pop(name) for name in wanted})
    with Database.open(path, read_only=True) as database:
        summary = export_pack(database, target, name="p", version="1", selection=selection, **options)
    return summary, read_pack(target)


def test_a_proven_row_passes_the_gate_and_the_manifest_says_so(tmp_path):
    path = lab(tmp_path / "lab.db", [trial(FAST, 1000_000), trial(UNTUNED, 1500_000)])
    summary, pack = export(path, tmp_path / "pack")
    assert pack.gate == summary.gate
    assert pack.gate["passed"] is True
    assert (pack.gate["rows"], pack.gate["revalidated"]) == (1, 0)


BACKWARD = {"direction": "bwd", "errors": GRADIENTS}
BAD = {
    "gradients": (
        BACKWARD | {"errors": GRADIENTS[:2]},
        "dv never compared with the reference",
    ),
    "no compiler": ({"environment": ENVIRONMENT}, "does not say compiler"),
    "no source": (
        {"environment": dataclasses.replace(RELEASED, source_hash="")},
        "does not say source_hash",
    ),
    "no final": ({"round_id": "", "features": 4}, "it has no final"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_unproven_row_is_refused_with_the_reason(tmp_path, case):
    changes, fragment = BAD[case]
    trials = [trial(FAST, 1000_000, **changes), trial(UNTUNED, 1500_000, **changes)]
    path = lab(tmp_path / "lab.db", trials)
    with pytest.raises(GateError, match=fragment) as error:
        export(path, tmp_path / "pack")
    assert SHORT.text in str(error.value)
    assert "--no-gate REASON" in str(error.value)
    assert error.value.exit_code == 1
    assert not (tmp_path / "pack").exists()
    # The way out keeps its reason in the pack for good.
    _, pack = export(path, tmp_path / "pack", ungated="a laptop for the demo")
    assert pack.gate["passed"] is False
    assert pack.gate["reason"] == "a laptop for the demo"
    assert pack.gate["objections"] == 1
    with pytest.raises(UsageError, match="reason"):
        export(path, tmp_path / "other", ungated=" ")


def test_a_row_without_a_final_is_not_said_to_lack_feature_problems(tmp_path):
    """They run before a final: the same sweep, run again, does both."""
    trials = [trial(config, 10**6, round_id="", features=0) for config in (FAST, UNTUNED)]
    with pytest.raises(GateError) as error:
        export(lab(tmp_path / "lab.db", trials), tmp_path / "pack")
    assert "attn-tune sweep goes on with it" in str(error.value)
    assert "feature problem" not in str(error.value)


def test_gradients_pass_when_all_are_there(tmp_path):
    trials = [trial(FAST, 10**6, **BACKWARD), trial(UNTUNED, 2 * 10**6, **BACKWARD)]
    path = lab(tmp_path / "lab.db", trials)
    assert export(path, tmp_path / "pack")[1].gate["passed"] is True


def guarded(path, at_long):
    """A gain at SHORT; ``at_long`` are trials of its neighbour, where the untuned config takes 2 ms."""
    trials = [trial(FAST, 10**6), trial(UNTUNED, 15 * 10**5), trial(UNTUNED, 2 * 10**6, LONG)]
    return lab(path, trials + at_long)


def answers(pack):
    return {row.signature: (dict(row.config), row.state) for row in pack.rows if row.rank == 0}


def test_a_near_problem_where_the_row_loses_keeps_its_untuned_config(tmp_path):
    path = guarded(tmp_path / "lab.db", [trial(FAST, 3 * 10**6, LONG)])
    _, pack = export(path, tmp_path / "pack", signatures={SHORT.text})
    assert answers(pack) == {SHORT.text: (FAST, "winner"), LONG.text: (UNTUNED, "heuristic")}
    guards = pack.gate["guards"]
    assert (guards["replayed"], guards["lost"], guards["heuristic_rows"]) == (1, 1, 1)
    assert guards["worst_loss_ppm"] == pytest.approx(500_000, abs=2_000)


def test_a_near_problem_where_the_config_fails_is_guarded_too(tmp_path):
    failed = trial(FAST, 0, LONG, status=Status.CRASHED, errors=(), round_id="")
    path = guarded(tmp_path / "lab.db", [failed])
    _, pack = export(path, tmp_path / "pack", signatures={SHORT.text})
    assert answers(pack)[LONG.text] == (UNTUNED, "heuristic")


def test_a_near_problem_where_the_row_wins_needs_no_row(tmp_path):
    path = guarded(tmp_path / "lab.db", [trial(FAST, 15 * 10**5, LONG)])
    _, pack = export(path, tmp_path / "pack", signatures={SHORT.text})
    assert list(answers(pack)) == [SHORT.text]
    assert (pack.gate["guards"]["replayed"], pack.gate["guards"]["lost"]) == (1, 0)


def test_a_near_problem_where_the_config_was_not_tried_is_counted(tmp_path):
    path = guarded(tmp_path / "lab.db", [])
    _, pack = export(path, tmp_path / "pack", signatures={SHORT.text})
    assert list(answers(pack)) == [SHORT.text]
    assert pack.gate["guards"]["unproven"] == 1


def test_a_near_problem_is_judged_by_the_config_that_would_run_there(tmp_path, monkeypatch):
    def adapt(tuned, problem, device, config):
        assert (tuned.q_len, problem.q_len) == (1024, 2048)
        return dataclasses.replace(config, block_q=32)

    search = get_kernel("flash_attention/triton").searches["fwd"]
    monkeypatch.setitem(search.__dict__, "adapt", adapt)
    slow = trial({**UNTUNED, "block_q": 32}, 3 * 10**6, LONG)
    path = guarded(tmp_path / "lab.db", [slow, trial(FAST, 10**6, LONG)])
    _, pack = export(path, tmp_path / "pack", signatures={SHORT.text})
    assert pack.gate["guards"]["lost"] == 1
    assert answers(pack)[LONG.text] == (UNTUNED, "heuristic")


def test_a_far_problem_is_no_guard(tmp_path):
    trials = [trial(UNTUNED, 10**6, FAR), trial(FAST, 3 * 10**6, FAR)]
    path = lab(tmp_path / "lab.db", [trial(FAST, 10**6), trial(UNTUNED, 15 * 10**5), *trials])
    _, pack = export(path, tmp_path / "pack", signatures={SHORT.text})
    assert pack.gate["guards"]["replayed"] == 0
    assert list(answers(pack)) == [SHORT.text]


def test_an_untuned_config_that_stays_has_a_row(tmp_path):
    path = lab(tmp_path / "lab.db", [trial(FAST, 10**6), trial(UNTUNED, 10**6)])
    _, pack = export(path, tmp_path / "pack")
    assert answers(pack) == {SHORT.text: (UNTUNED, "heuristic")}


def test_rows_are_selected_by_what_they_say(tmp_path):
    trials = [trial(FAST, 10**6), trial(UNTUNED, 15 * 10**5)]
    trials += [trial(FAST, 10**6, FAR), trial(UNTUNED, 10**6, FAR)]
    path = lab(tmp_path / "lab.db", trials)
    assert list(answers(export(path, tmp_path / "a", rules={"winner"})[1])) == [SHORT.text]
    assert list(answers(export(path, tmp_path / "b", min_gain=1.2)[1])) == [SHORT.text]
    assert list(answers(export(path, tmp_path / "c", signatures={FAR.text})[1])) == [FAR.text]
    assert len(answers(export(path, tmp_path / "d")[1])) == 2


def test_a_row_that_fails_when_validated_again_is_refused(tmp_path):
    path = lab(tmp_path / "lab.db", [trial(FAST, 10**6), trial(UNTUNED, 15 * 10**5)])
    with pytest.raises(GateError, match="validated again, it failed: dq is wrong"):
        export(path, tmp_path / "pack", revalidate=lambda ds: ["dq is wrong" for _ in ds])
    _, pack = export(path, tmp_path / "pack", revalidate=lambda ds: ["" for _ in ds])
    assert pack.gate["revalidated"] == 1
    assert DEVICE.digest in pack.devices
    assert get_op("flash_attention").version == 1


def in_quarantine(**entry):
    """The active overrides, with one entry that forbids."""
    item = {"config": {}, "origin": "bad.json", "reason": "hangs", **entry}
    return Overrides([OverridesFile(entries=(Entry(never=True, **item),))])


@pytest.mark.parametrize(
    ("entry", "is_hit"),
    [
        ({"kernel": "triton", "config": {"block_q": 128}}, True),
        ({"device": "sm_90", "direction": "fwd"}, True),
        # A field at its default is a field too.
        ({"signature": {"t": 1024, "cap": 0}}, True),
        ({"config": {"block_q": 64}}, False),
        ({"signature": {"t": 2048}}, False),
        ({"op": "attention"}, False),
    ],
)
@pytest.mark.parametrize("ungated", [None, "a laptop for the demo"])
def test_a_config_in_quarantine_is_never_a_winner(tmp_path, entry, is_hit, ungated):
    path = lab(tmp_path / "lab.db", [trial(FAST, 1000_000), trial(UNTUNED, 1500_000)])
    if not is_hit:
        _, pack = export(path, tmp_path / "pack", in_force=in_quarantine(**entry), ungated=ungated)
        assert len(pack.rows) == 1
        return
    with pytest.raises(GateError, match=r"in quarantine: hangs \(.*; bad\.json\)") as error:
        export(path, tmp_path / "pack", in_force=in_quarantine(**entry), ungated=ungated)
    assert SHORT.text in str(error.value)
    assert "override remove" in str(error.value)
    assert not (tmp_path / "pack").exists()


def test_rows_that_are_refused_for_one_cause_stand_under_one_sentence(tmp_path):
    trials = [trial(config, 1000_000, at) for config in (FAST, UNTUNED) for at in (SHORT, LONG)]
    path = lab(tmp_path / "lab.db", trials)
    with pytest.raises(GateError) as error:
        export(path, tmp_path / "pack", in_force=in_quarantine(op="flash_attention"))
    first, *rows = str(error.value).splitlines()
    assert first.startswith("2 of 2 rows may not be shipped: its config is in quarantine: hangs (")
    assert first.endswith("take the entry out with 'attn-tune override remove'")
    assert [row.startswith("  flash_attention/") for row in rows] == [True, True]
    assert not any("hangs" in row for row in rows)


def test_rows_that_are_refused_for_several_causes_stand_under_each(tmp_path):
    trials = [trial(config, 1000_000, at) for config in (FAST, UNTUNED) for at in (SHORT, LONG)]
    path = lab(tmp_path / "lab.db", trials)
    with pytest.raises(GateError) as error:
        export(
            path,
            tmp_path / "pack",
            revalidate=lambda rows: [f"dq {d.signature.values['t']}" for d in rows],
        )
    first, *rest = str(error.value).splitlines()
    assert first.startswith("2 of 2 rows may not be shipped; nothing was written: sweep these")
    assert first.endswith("--no-gate REASON")
    causes = [line for line in rest if line.startswith("  validated again, it failed: dq ")]
    rows = [line for line in rest if line.startswith("    flash_attention/")]
    assert (len(causes), len(rows), len(rest)) == (2, 2, 4)


def test_the_list_of_the_pack_itself_counts(tmp_path):
    path = lab(tmp_path / "lab.db", [trial(FAST, 1000_000), trial(UNTUNED, 1500_000)])
    carried = in_quarantine(config={"block_q": 128}).never
    with pytest.raises(GateError, match="hangs"):
        export(path, tmp_path / "pack", quarantine=carried)
    elsewhere = in_quarantine(device="tpu-v6e").never
    _, pack = export(path, tmp_path / "pack", quarantine=elsewhere)
    assert [e.line for e in pack.quarantine.entries] == [e.line for e in elsewhere]


def test_a_row_that_the_guards_would_add_may_not_be_in_quarantine(tmp_path):
    trials = [
        trial(FAST, 1000_000),
        trial(UNTUNED, 1500_000),
        trial(FAST, 3000_000, LONG),
        trial(UNTUNED, 1500_000, LONG),
    ]
    path = lab(tmp_path / "lab.db", trials)
    chosen = {"signatures": {SHORT.text}}
    _, pack = export(path, tmp_path / "pack", **chosen)
    assert len(pack.rows) == 2
    with pytest.raises(GateError, match="hangs"):
        export(path, tmp_path / "other", in_force=in_quarantine(config={"block_q": 64}), **chosen)


def test_a_list_that_cannot_be_read_stops_every_export(tmp_path, monkeypatch):
    path = lab(tmp_path / "lab.db", [trial(FAST, 1000_000), trial(UNTUNED, 1500_000)])
    (tmp_path / "list.json").write_text("{")
    monkeypatch.setenv("ATTN_TUNE_OVERRIDES", str(tmp_path / "list.json"))
    with pytest.raises(IntegrityError, match=r"list\.json"):
        export(path, tmp_path / "pack")


def test_a_pack_without_a_list_says_nothing_of_lists(tmp_path):
    path = lab(tmp_path / "lab.db", [trial(FAST, 1000_000), trial(UNTUNED, 1500_000)])
    export(path, tmp_path / "plain")
    export(path, tmp_path / "listed", quarantine=in_quarantine(device="tpu-v6e").never)
    plain, listed = (json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("plain", "listed"))
    assert (plain["format"], plain["min_reader"], "quarantine" in plain) == (1, 1, False)
    # Older readers know no lists, and must not use the pack without its own.
    assert (listed["format"], listed["min_reader"]) == (2, 2)
    assert plain["decision_digest"] == listed["decision_digest"]
    assert not (tmp_path / "plain" / "quarantine.json").exists()
