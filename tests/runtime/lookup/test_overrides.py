"""Overrides in lookups: the entries that match, their order, and the steps that an explanation shows."""

import json

import pytest

from attn_tune.packs.reader import pack_from_files
from attn_tune.runtime.active.layers import current_view, reload, use_overrides, use_pack
from attn_tune.runtime.lookup.answer import Rung, SourceKind
from attn_tune.runtime.lookup.dispatch import choose, explain, lookup
from attn_tune.runtime.overrides.entries import use_config
from attn_tune.runtime.rank_statement import statement_of
from attn_tune.schema import UnsupportedError, UsageError
from tests.runtime.lookup.test_tracing import traced_block
from tests.runtime.lookup.toy_op import HERE, Config, OtherConfig, pack, problem
from tests.runtime.packbuilder import (
    H200,
    OP,
    pack_files,
    resummed,
    row,
    sig,
    with_list,
    write_zip,
)

USE = {"op": OP, "direction": "fwd", "kernel": "alpha", "config": {"block": 5}}
BAD = {"kernel": "alpha", "config": {"block": 64}, "reason": "wrong dq"}
ROWS = (row(sig(1024), 64), row(sig(1024), 4, kernel="beta", rank=1))


@pytest.fixture
def overrides(monkeypatch, tmp_path):
    """Activates a file of these entries; returns its path."""

    def put(**parts):
        path = tmp_path / "my overrides.json"
        path.write_text(json.dumps({"format": 1, **parts}))
        monkeypatch.setenv("ATTN_TUNE_OVERRIDES", str(path))
        reload()
        return str(path)

    return put


def block(t=1024, **more):
    answer = lookup(OP, sig(t), device=H200, **more)
    return answer.kernel, answer.config["block"]


def careful(*entries):
    """A pack that carries never entries."""
    return with_list(pack_files([{**row(sig(8192), 1), "env": HERE}], name="careful"), [*entries])


@pytest.mark.parametrize(
    ("more", "is_hit"),
    [
        ({"device": "nvidia-h200"}, True),
        ({"device": "cuda/sm_90/nvidia-h200", "signature": sig(1024)}, True),
        ({"signature": {"t": 1024, "pages": 0, "left": None}}, True),
        ({"device": "sm_100"}, False),
        ({"signature": sig(2048)}, False),
        ({"signature": {"t": 1025}}, False),
        ({"direction": "bwd"}, False),
        # A config that cannot run falls through to the packs.
        ({"config": {"block": 5000}}, False),
        ({"config": {"blocks": 5}}, False),
        ({"kernel": "gone"}, False),
    ],
)
def test_a_use_entry_answers_before_packs_what_it_matches(overrides, more, is_hit):
    overrides(use=[{**USE, **more}])
    with use_pack(pack(*ROWS)):
        assert block() == ("alpha", 5 if is_hit else 64)


@pytest.mark.parametrize(
    ("entry", "is_hit"),
    [
        ({"config": {"block": 64}}, True),
        ({"kernel": "alpha"}, True),
        ({"op": OP, "direction": "fwd", "device": "sm_90", "config": {"block": 64}}, True),
        ({"config": {"block": 64}, "signature": {"t": 1024, "pages": 0}}, True),
        ({"config": {"block": 64}, "signature": sig(1024)}, True),
        ({"config": {"block": "64"}, "signature": {"t": "1024"}}, True),
        ({"config": {"block": "640"}}, False),
        ({"config": {"block": 64}, "signature": {"t": 1025}}, False),
        ({"config": {"block": 64}, "direction": "bwd"}, False),
        ({"config": {"block": 64}, "device": "sm_100"}, False),
        ({"config": {"block": 64, "warps": 4}}, False),
        ({"op": "other"}, False),
    ],
)
def test_a_never_entry_turns_down_the_rows_it_matches(overrides, entry, is_hit):
    overrides(never=[{**entry, "reason": "wrong dq"}])
    with use_pack(pack(*ROWS)):
        assert block() == (("beta", 4) if is_hit else ("alpha", 64))


def test_never_goes_before_use_heuristics_and_explicit_configs(overrides):
    path = overrides(
        use=[USE],
        never=[
            {"config": {"block": 5}, "reason": "hangs"},
            {"kernel": "alpha", "config": {"block": 8}, "reason": "wrong"},
        ],
    )
    answer = lookup(OP, sig(7), device=H200)
    # The heuristic config of alpha is forbidden as well: the next kernel answers.
    assert (answer.kernel, answer.is_miss) == ("beta", True)
    assert [r.reason for r in answer.rejected] == [
        f"an override forbids it: {reason} ({path})" for reason in ("hangs", "wrong")
    ]
    with pytest.raises(UnsupportedError, match="hangs"):
        choose(OP, "fwd", problem(sig(7)), device=H200, kernel="alpha", config=Config(block=5))
    with pytest.raises(UnsupportedError, match="override"):
        lookup(OP, sig(7), "bwd", device=H200)


def test_blocks_go_before_files_and_narrow_entries_before_wide_ones(overrides):
    wide = {**USE, "config": {"block": 1}}
    overrides(
        use=[
            wide,
            {**wide, "config": {"block": 2}, "device": "sm_90"},
            {**wide, "config": {"block": 3}, "device": "nvidia-h200"},
            {**wide, "config": {"block": 4}, "signature": {"t": 7}},
            {**wide, "config": {"block": 5}, "signature": sig(8)},
        ]
    )
    assert [block(t)[1] for t in (6, 7, 8)] == [3, 4, 5]
    with use_config(OP, "alpha", {"block": 20}), use_pack(pack(*ROWS)):
        with use_config(OP, "toy/alpha", Config(block=30), problem=problem(sig(1024))):
            assert [block(t)[1] for t in (1024, 8)] == [30, 20]
        # Calls of another kernel or direction are not concerned.
        assert block(kernel="beta") == ("beta", 4)
        assert lookup(OP, sig(1024), "bwd", device=H200).is_miss


def test_an_explanation_names_the_entry_its_file_and_what_ends_it(overrides):
    path = overrides(use=[USE])
    found = explain(OP, sig(1024), device=H200)
    answer = found.answer
    assert (answer.rung, answer.source_kind) == (Rung.OVERRIDE, SourceKind.OVERRIDE)
    assert answer.source.endswith(f"in {path}")
    end = f"attn-tune override remove {answer.source.split()[1]} --file '{path}'"
    assert found.override_ended_by == end
    assert f"CHOSEN (an override, asked before all packs; to end it: {end})" in str(found)
    with use_config(OP, "alpha", {"block": 2000}):
        first, second = explain(OP, sig(1024), device=H200).steps
    assert "block 2000 does not fit" in first.rejected
    assert (second.row.config, first.note) == (
        {"block": 5},
        "leave its 'with attn_tune.use_config(...)' block",
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((OP, "alhpa", {"block": 1}), "did you mean 'alpha'"),
        ((OP, "alpha", {"blok": 1}), "no knob 'blok'"),
        ((OP, "alpha", OtherConfig()), "is a Config, got OtherConfig"),
        ((OP, "beta", {"block": 1}, "bwd"), "unknown direction of toy/beta 'bwd'"),
    ],
)
def test_a_wrong_config_in_the_code_is_an_error_at_once(arguments, words):
    with pytest.raises(UsageError, match=words):
        use_config(*arguments)


def test_jit_retraces_for_overrides_once(overrides, tmp_path):
    f, seen = traced_block()
    f(0)
    for _ in range(2):
        with use_config(OP, "alpha", {"block": 5}):
            assert int(f(0)) == 5
        assert int(f(0)) == 8
    assert seen == [8, 5]
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"format": 1, "use": [{**USE, "config": {"block": 6}}]}))
    for _ in range(2):
        with use_overrides(path):
            assert int(f(0)) == 6
    overrides(use=[{**USE, "config": {"block": 7}}])
    assert (int(f(0)), seen) == (7, [8, 5, 6, 7])
    assert reload() is False


@pytest.mark.parametrize("inner_first", [False, True])
def test_never_entries_of_a_pack_hold_for_all_while_it_is_active(inner_first):
    carrying = pack_from_files(careful(BAD))
    outer, inner = (carrying, pack(*ROWS)) if inner_first else (pack(*ROWS), carrying)
    with use_pack(outer), use_pack(inner):
        assert block() == ("beta", 4)
        told = str(explain(OP, sig(1024), device=H200))
        assert "an override forbids it: wrong dq (pack careful 2026.1)" in told
        with use_config(OP, "alpha", {"block": 64}):
            assert block() == ("beta", 4)
        explicit = {"kernel": "alpha", "config": Config(block=64)}
        with pytest.raises(UnsupportedError, match="wrong dq"):
            choose(OP, "fwd", problem(sig(1024)), device=H200, **explicit)
    with use_pack(pack(*ROWS)):
        assert block() == ("alpha", 64)


def test_never_entries_of_an_installed_pack_hold_and_those_of_a_broken_one_do_not(monkeypatch, tmp_path):
    files = careful(BAD)
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(write_zip(tmp_path / "careful.atpack", files)))
    reload()
    with use_pack(pack(*ROWS)):
        assert block() == ("beta", 4)
    assert any("quarantine b2:" in text for text in statement_of(current_view()).values())
    files["quarantine.json"] += b" "
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(write_zip(tmp_path / "cut.atpack", files)))
    reload()
    with use_pack(pack(*ROWS)):
        assert block() == ("alpha", 64)


def test_the_statement_of_a_process_has_each_entry_and_no_path(overrides):
    overrides(use=[USE], never=[BAD])
    said = statement_of(current_view())
    by_kind = {name.split()[0]: text for name, text in said.items()}
    assert by_kind["use"] == f'op {OP}, kernel alpha, direction fwd, config {{"block":5}}'
    assert by_kind["never"] == 'kernel alpha, config {"block":64}: wrong dq'
    assert "my overrides" not in str(said)
    overrides(use=[USE], never=[{**BAD, "reason": "hangs"}])
    assert statement_of(current_view())["overrides"] != said["overrides"]


def test_the_statement_of_a_broken_pack_has_the_digest_of_its_bytes(monkeypatch, tmp_path):
    files = pack_files([{**r, "env": HERE} for r in ROWS], decision_digest="b2:00")
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(write_zip(tmp_path / "x.atpack", resummed(files))))
    reload()
    view = current_view()
    (source,) = [s for s in view.sources if s.path.endswith("x.atpack")]
    assert source.pack.digest in statement_of(view)["pack 1"]


def test_an_entry_that_acts_on_nothing_is_logged_once_and_explained(overrides, caplog):
    path = overrides(
        never=[{"op": OP, "kernel": "alphaa", "reason": "a slip"}, {"op": OP, **BAD}],
        use=[USE | {"config": {"blok": 5}}],
    )
    with use_pack(pack(*ROWS)), caplog.at_level("WARNING", "attn_tune"):
        lookup(OP, sig(1024))
        lookup(OP, sig(2048))
        explained = explain(OP, sig(1024))
    said = [record.getMessage() for record in caplog.records if "acts on nothing here" in record.getMessage()]
    assert len(said) == 2
    assert all(str(path) in text for text in said)
    assert any(f"unknown kernel '{OP}/alphaa'; did you mean '{OP}/alpha'" in text for text in said)
    ignored = [one.reason for one in explained.ignored]
    assert sum("acts on nothing here" in reason for reason in ignored) == 2
