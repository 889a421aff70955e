"""Two packs that answer one problem otherwise: every policy, in imports and in merged packs; and what diff says."""

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.db import Database, import_pack
from attn_tune.db.described import relations
from attn_tune.db.release.merge_packs import merge_packs
from attn_tune.db.release.pack_diff import diff_packs
from attn_tune.packs.reader import read_pack
from attn_tune.schema import IntegrityError, NoDataError, UsageError
from tests.runtime.packbuilder import ENVIRONMENT, OP, pack_files, row, sig, with_list, write_folder

ALONE = {"fwd": [row(sig(4096), 64, median_ns=500)]}


def make(path, name, **changes):
    """A pack that answers one problem."""
    files = pack_files({"fwd": [row(sig(1024), **changes)]}, name=name)
    return write_folder(path / name, files)


@pytest.fixture
def target(tmp_path):
    with Database.open(tmp_path / "lab.db", create=True) as database:
        yield database


SLOW = {"block": 64, "median_ns": 1000}
FAST = {"block": 128, "median_ns": 900}
NEARLY = {"block": 128, "median_ns": 990}
UNPROVEN = {"block": 128, "median_ns": 100, "error_ppm": None}
PREDICTED = {"block": 128, "median_ns": 100, "state": "predicted"}
UNKNOWN = {
    "block": 128,
    "median_ns": 100,
    "env": type(ENVIRONMENT)(jax="1", jaxlib="1", triton="1", compiler="c 1"),
}
OTHER_SOURCE = dataclasses.replace(ENVIRONMENT, source_hash="b2:" + 32 * "7")
CASES = {
    "keep": ("keep", SLOW, FAST, "kept"),
    "replace": ("replace", FAST, SLOW, "replaced"),
    "faster": ("fastest-verified", SLOW, FAST, "replaced"),
    "slower": ("fastest-verified", FAST, SLOW, "kept"),
    "within noise": ("fastest-verified", SLOW, NEARLY, "kept"),
    "fast but unproven": ("fastest-verified", SLOW, UNPROVEN, "kept"),
    "fast but without a feature problem": (
        "fastest-verified",
        SLOW,
        {**FAST, "features": 0},
        "kept",
    ),
    "fast with feature problems": ("fastest-verified", SLOW, {**FAST, "features": 4}, "replaced"),
    "fast but predicted": ("fastest-verified", SLOW, PREDICTED, "kept"),
    "fast but of unknown source": ("fastest-verified", SLOW, UNKNOWN, "kept"),
    "slow but proven": ("fastest-verified", UNPROVEN, SLOW, "replaced"),
    "fast but its bits differ": ("fastest-verified", SLOW, {**FAST, "repeatable": False}, "kept"),
    "slow but its bits do not differ": ("fastest-verified", {**FAST, "repeatable": False}, SLOW, "replaced"),
    "both of which the bits differ": (
        "fastest-verified",
        {**SLOW, "repeatable": False},
        {**FAST, "repeatable": False},
        "replaced",
    ),
    "the preferred comes": ("prefer=new", FAST, SLOW, "replaced"),
    "the preferred is there": ("prefer=old", SLOW, FAST, "kept"),
    "the same but its bits differ": ("replace", SLOW, {**SLOW, "repeatable": False}, "replaced"),
    "the same but unproven": ("keep", SLOW, {**SLOW, "features": 0}, "kept"),
    "the same and better proven": (
        "error",
        SLOW,
        {**SLOW, "repeatable": True, "features": 4},
        "unchanged",
    ),
    "the same": ("error", SLOW, {**SLOW, "median_ns": 7}, "unchanged"),
    "the same by the same software": ("replace", SLOW, {**SLOW, "median_ns": 7}, "unchanged"),
    "the same of another source": ("replace", SLOW, {**SLOW, "env": OTHER_SOURCE}, "replaced"),
    "the preferred is the same of another source": ("prefer=new", SLOW, {**SLOW, "env": OTHER_SOURCE}, "replaced"),
    "the same of another source, kept": ("fastest-verified", SLOW, {**SLOW, "env": OTHER_SOURCE}, "unchanged"),
}


@pytest.mark.parametrize("case", CASES)
def test_each_policy_in_imports_and_in_merges(tmp_path, target, case):
    policy, stored, incoming, fate = CASES[case]
    old, new = make(tmp_path, "old", **stored), make(tmp_path, "new", **incoming)
    import_pack(target, old)
    dry = import_pack(target, new, policy=policy, dry_run=True)
    assert [one.fate for one in dry.outcomes] == [fate]
    assert target.frame("imported").pack.tolist() == ["old"], "a dry run stores nothing"
    taken = import_pack(target, new, policy=policy)
    assert [one.fate for one in taken.outcomes] == [fate]
    assert getattr(taken, fate) == 1
    expected = incoming if fate == "replaced" else stored
    assert target.frame("imported").config.tolist() == [f'{{"block":{expected["block"]}}}']

    packs = [read_pack(old), read_pack(new)]
    merged = merge_packs(packs, tmp_path / "all", name="all", version="1", policy=policy)
    assert [one.fate for one in merged.outcomes] == [fate]
    assert [dict(r.config) for r in merged.pack.rows] == [{"block": expected["block"]}]


@pytest.mark.parametrize("policy", ["error", "prefer=other"])
def test_a_conflict_that_a_policy_leaves_open_is_an_error_that_lists_both(tmp_path, target, policy):
    old, new = make(tmp_path, "old", **SLOW), make(tmp_path, "new", **FAST)
    import_pack(target, old)
    with pytest.raises(UsageError) as error:
        import_pack(target, new, policy=policy)
    assert "alpha block=64 1.00 us" in str(error.value)
    assert "alpha block=128 900 ns" in str(error.value)
    with pytest.raises(UsageError, match="otherwise"):
        merge_packs([read_pack(old), read_pack(new)], tmp_path / "x", name="x", version="1", policy=policy)
    assert not (tmp_path / "x").exists()
    with pytest.raises(UsageError, match="policy must be one of error, keep"):
        import_pack(target, new, policy="prefer=")


def test_a_problem_that_three_packs_answer_otherwise_is_listed_once_under_one_sentence(tmp_path):
    packs = [
        read_pack(make(tmp_path, name, block=block, median_ns=1000))
        for name, block in (("a", 64), ("b", 32), ("c", 16))
    ]
    with pytest.raises(UsageError) as error:
        merge_packs(packs, tmp_path / "x", name="x", version="1")
    assert str(error.value).splitlines() == [
        "the packs answer 1 problem otherwise; nothing was written: choose another policy with --on-conflict "
        "(keep, replace, fastest-verified, prefer=NAME)",
        f"  {sig(1024)} fwd on {packs[0].devices[packs[0].rows[0].device]}",
        "    stored: alpha block=64 1.00 us",
        "    pack:   alpha block=32 1.00 us",
        "    pack:   alpha block=16 1.00 us",
    ]


def test_merging_keeps_every_problem_and_says_what_it_was_made_of(tmp_path):
    old = make(tmp_path, "old", **SLOW)
    other = write_folder(tmp_path / "other", pack_files(ALONE, name="other"))
    packs = [read_pack(old), read_pack(other)]
    merged = merge_packs(packs, tmp_path / "all.atpack", name="all", version="2")
    assert {r.signature for r in merged.pack.rows} == {sig(1024), sig(4096)}
    assert [p["digest"] for p in merged.pack.gate["merged"]] == [p.digest for p in packs]
    assert merged.pack.gate["passed"] is False, "neither went through a gate"
    again = merge_packs(packs, tmp_path / "again.atpack", name="all", version="2")
    assert (tmp_path / "all.atpack").read_bytes() == (tmp_path / "again.atpack").read_bytes()
    assert again.pack.digest == merged.pack.digest


def make_ranked(path, name, **times):
    """A pack that answers one problem by two kernels, the first of which has bits that differ."""
    files = pack_files(
        [
            row(sig(1024), times["block"], kernel="atomic", median_ns=times["atomic"], repeatable=False),
            row(sig(1024), 64, rank=1, median_ns=times["alpha"]),
        ],
        name=name,
    )
    return read_pack(write_folder(path / name, files))


@pytest.mark.parametrize(("alpha", "fate"), [(990, "replaced"), (1200, "kept")])
def test_the_fastest_answer_is_slower_in_no_kind_of_job(tmp_path, alpha, fate):
    """A job that allows what is not deterministic gets the first row, any other job the second."""
    old = make_ranked(tmp_path, "old", block=64, atomic=900, alpha=1000)
    new = make_ranked(tmp_path, "new", block=32, atomic=500, alpha=alpha)
    merged = merge_packs([old, new], tmp_path / "all", name="all", version="1", policy="fastest-verified")
    assert [one.fate for one in merged.outcomes] == [fate]


JOBS_LEFT = {
    # Rows by rank. A job that gets nothing of the new answer, or something slower, keeps the old one.
    "behind an unproven row": (
        [{"features": 0, "repeatable": False}, {"repeatable": False, "median_ns": 500}, {"median_ns": 1000}],
        [{"median_ns": 900}],
    ),
    "unproven rows alone": ([{"features": 0, "median_ns": 300}, {"median_ns": 1000}], [{"median_ns": 900}]),
}


@pytest.mark.parametrize("case", JOBS_LEFT)
def test_the_fastest_answer_replaces_none_that_some_job_would_miss(tmp_path, case):
    packs = []
    for name, rows in zip(("old", "new"), JOBS_LEFT[case], strict=True):
        made = [
            row(sig(1024), 64, rank=rank, kernel=("alpha", "atomic", "beta")[rank], **one)
            for rank, one in enumerate(rows)
        ]
        packs.append(read_pack(write_folder(tmp_path / name, pack_files(made, name=name))))
    merged = merge_packs(packs, tmp_path / "all", name="all", version="1", policy="fastest-verified")
    assert [one.fate for one in merged.outcomes] == ["kept"]


NEVER = {"kernel": "alpha", "config": {"block": 32}, "signature": {"t": "1024"}, "reason": "hangs"}


@pytest.mark.parametrize("policy", ["error", "keep", "replace", "fastest-verified", "prefer=fast"])
@pytest.mark.parametrize("first", ["fast", "careful"])
def test_merging_leaves_out_what_a_list_forbids_whatever_the_policy(tmp_path, policy, first):
    careful = with_list(pack_files([row(sig(1024), 64)], name="careful"), [NEVER])
    fast = pack_files([row(sig(1024), 32, median_ns=500), row(sig(2048), 32)], name="fast")
    packs = [
        read_pack(write_folder(tmp_path / name, files)) for name, files in {"careful": careful, "fast": fast}.items()
    ]
    packs.sort(key=lambda pack: pack.name != first)
    merged = merge_packs(packs, tmp_path / "all", name="all", version="1", policy=policy)
    assert {(r.signature, r.config["block"]) for r in merged.pack.rows} == {(sig(1024), 64), (sig(2048), 32)}
    [out] = merged.left_out
    assert (out.pack, out.kernel, out.config, out.signature) == ("fast 2026.1", f"{OP}/alpha", "block=32", sig(1024))
    assert out.reason.startswith("hangs (")
    assert "pack careful 2026.1" in out.reason


def test_merging_packs_of_which_every_row_is_forbidden_is_an_error(tmp_path):
    files = with_list(pack_files([row(sig(1024), 32)]), [NEVER])
    packs = [read_pack(write_folder(tmp_path / "one", files))] * 2
    with pytest.raises(NoDataError, match="forbid every row"):
        merge_packs(packs, tmp_path / "x", name="x", version="1")
    assert not (tmp_path / "x").exists()


def test_merging_obeys_the_never_entries_of_this_users_jobs(tmp_path, monkeypatch):
    path = tmp_path / "never.json"
    path.write_text(json.dumps({"format": 1, "never": [NEVER]}))
    monkeypatch.setenv("ATTN_TUNE_OVERRIDES", str(path))
    packs = [read_pack(make(tmp_path, "old", **SLOW)), read_pack(make(tmp_path, "new", block=32, median_ns=1))]
    merged = merge_packs(packs, tmp_path / "all", name="all", version="1", policy="replace")
    assert [(out.pack, str(path) in out.reason) for out in merged.left_out] == [("new 2026.1", True)]
    assert merged.pack.quarantine.entries == (), "the user's entries do not travel"
    path.write_text("{")
    with pytest.raises(IntegrityError):
        merge_packs(packs, tmp_path / "x", name="x", version="1", policy="replace")


def test_merging_keeps_the_reasons_of_packs_that_did_not_pass_the_gate_and_all_notes(tmp_path):
    refused = {"passed": False, "reason": "demo only", "objections": 2, "reasons": ["it was noisy"], "rows": 1}
    parts = [
        pack_files([row(sig(1024))], name="passed", gate={"passed": True, "rows": 1}, note="by hand"),
        pack_files([row(sig(2048))], name="refused", gate=refused),
        pack_files([row(sig(4096))], name="last", gate={"passed": True, "merged": "not a list"}),
    ]
    packs = [read_pack(write_folder(tmp_path / str(n), files)) for n, files in enumerate(parts)]
    merged = merge_packs(packs[:2], tmp_path / "all", name="all", version="1").pack
    kept = {name: refused[name] for name in ("passed", "reason", "objections", "reasons")}
    assert [(p["name"], p["gate"], p.get("note")) for p in merged.gate["merged"]] == [
        ("passed", {"passed": True}, "by hand"),
        ("refused", kept, None),
    ]
    again = merge_packs([merged, packs[2]], tmp_path / "again", name="again", version="1").pack
    assert [p["name"] for p in again.gate["merged"]] == ["all", "last", "passed", "refused"], "for good"
    shown = CliRunner().invoke(app, ["pack", "inspect", str(tmp_path / "again")]).stdout
    assert "passed 2026.1: note by hand" in shown
    assert "refused 2026.1: gate NOT passed: demo only" in shown
    assert "2 objections: it was noisy" in shown


def test_an_unchanged_answer_is_shown_without_the_times_that_were_not_taken(tmp_path):
    packs = [read_pack(make(tmp_path, name, block=64, median_ns=ns)) for name, ns in (("old", 1000), ("new", 900))]
    merged = merge_packs(packs, tmp_path / "all", name="all", version="1", policy="replace")
    assert [(one.fate, one.change) for one in merged.outcomes] == [("unchanged", "")]
    assert merged.pack.rows[0].median_ns == 1000


def test_rows_of_two_contracts_are_not_merged(tmp_path):
    other = write_folder(tmp_path / "other", pack_files(ALONE, name="other", contract=2))
    packs = [read_pack(make(tmp_path, "old")), read_pack(other)]
    with pytest.raises(UsageError, match="contract"):
        merge_packs(packs, tmp_path / "all", name="all", version="1")


def test_diff_says_added_removed_changed_and_evidence_with_times(tmp_path):
    before = {"fwd": [row(sig(t), 64, median_ns=1000) for t in (1, 2, 3, 5)]}
    after = {
        "fwd": [
            row(sig(1), 64, median_ns=800),
            row(sig(2), 128, median_ns=500),
            row(sig(4), 64),
            row(sig(5), 64, repeatable=False, features=0),
        ]
    }
    old, new = (read_pack(write_folder(tmp_path / str(i), pack_files(rows))) for i, rows in enumerate((before, after)))
    differences = diff_packs(old, new)
    assert {(d.signature, str(d.change)): d.ratio for d in differences} == {
        (sig(1), "evidence"): 0.8,
        (sig(2), "changed"): 0.5,
        (sig(3), "removed"): None,
        (sig(4), "added"): None,
        (sig(5), "changed"): 1.0,
    }
    (doubted,) = (d for d in differences if d.signature == sig(5))
    assert doubted.after == f"{doubted.before}, bits differ from run to run, unproven"
    assert diff_packs(old, old) == []


def test_diff_and_views_call_the_untuned_config_so(tmp_path):
    old, new = (
        read_pack(write_folder(tmp_path / str(n), pack_files([row(sig(1), 64, state=state)])))
        for n, state in enumerate(("winner", "heuristic"))
    )
    (found,) = diff_packs(old, new)
    assert found.after.endswith("proven untuned config")
    assert "heuristic" not in found.after
    assert not [c for one in relations() if one.kind == "view" for c in one.columns if "heuristic" in c]


CHANGES = {
    "another config": ([row(sig(1024), **SLOW)], [row(sig(1024), **FAST)], "alpha 1.00 us -> 900 ns block=128"),
    "its bits differ": (
        [row(sig(1024), **SLOW)],
        [row(sig(1024), **SLOW, repeatable=False)],
        "alpha 1.00 us (bits differ from run to run)",
    ),
    "another kernel is faster": (
        [row(sig(1024), **SLOW)],
        [row(sig(1024), kernel="beta", **FAST), row(sig(1024), **SLOW, rank=1)],
        "+beta 900 ns block=128, alpha 1.00 us",
    ),
    "a kernel less": (
        [row(sig(1024), **SLOW)],
        [row(sig(1024), kernel="beta", **FAST)],
        "+beta 900 ns block=128, -alpha",
    ),
    "new": ([row(sig(4096), **SLOW)], [row(sig(1024), **FAST)], "alpha 900 ns block=128"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_an_outcome_says_what_changes(tmp_path, case):
    *answers, change = CHANGES[case]
    packs = [
        read_pack(write_folder(tmp_path / name, pack_files({"fwd": rows}, name=name)))
        for name, rows in zip(("old", "new"), answers, strict=True)
    ]
    merged = merge_packs(packs, tmp_path / "all", name="all", version="1", policy="replace")
    assert [one.change for one in merged.outcomes] == [change]
