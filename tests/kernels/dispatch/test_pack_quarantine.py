"""A quarantine list that a pack carries holds for every pack and every rung, as long as the pack is in force."""

import json

import pytest

from attn_tune.kernels.dispatch import choose, explain, lookup
from attn_tune.kernels.locked import freeze
from attn_tune.kernels.pinning import pin
from attn_tune.packs.reader import pack_from_files
from attn_tune.runtime.overlay import current_view, reload, use_lockfile, use_pack
from attn_tune.runtime.statement import statement_of
from attn_tune.schema import UnsupportedError
from tests.kernels.dispatch.toy_op import HERE, Config, pack, problem
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


def listed(*rows, entries, name="careful"):
    """A pack that carries a list."""
    return with_list(pack_files([{**r, "env": HERE} for r in rows], name=name), entries)


ENTRY = {"kernel": "alpha", "config": {"block": 64}, "reason": "wrong dq"}


def block(t=1024, **more):
    answer = lookup(OP, sig(t), device=H200, **more)
    return answer.kernel, answer.config["block"]


ROWS = (row(sig(1024), 64), row(sig(1024), 4, kernel="beta", rank=1))


@pytest.mark.parametrize("inner_first", [False, True])
def test_it_holds_for_rows_of_other_packs_whichever_is_asked_first(inner_first):
    careful = pack_from_files(listed(row(sig(8192), 1), entries=[ENTRY]))
    outer, inner = (careful, pack(*ROWS)) if inner_first else (pack(*ROWS), careful)
    with use_pack(outer), use_pack(inner):
        assert block() == ("beta", 4)
        assert "in quarantine: wrong dq (pack careful 2026.1)" in str(
            explain(OP, sig(1024), device=H200)
        )
        with pin(OP, "alpha", {"block": 64}):
            assert block() == ("beta", 4)
        with pytest.raises(UnsupportedError, match="wrong dq"):
            choose(
                OP, "fwd", problem(sig(1024)), device=H200, kernel="alpha", config=Config(block=64)
            )
    # And no longer than that.
    with use_pack(pack(*ROWS)):
        assert block() == ("alpha", 64)


def test_heuristics_too():
    careful = listed(row(sig(8192), 1), entries=[{"kernel": "alpha", "reason": "hangs"}])
    with use_pack(pack_from_files(careful)):
        assert block(t=7) == ("beta", 4)


def test_a_pack_that_is_installed_speaks_for_all(monkeypatch, tmp_path):
    path = write_zip(tmp_path / "careful.atpack", listed(row(sig(8192), 1), entries=[ENTRY]))
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(path))
    reload()
    with use_pack(pack(*ROWS)):
        assert block() == ("beta", 4)
    said = statement_of(current_view())
    assert any("quarantine b2:" in text for text in said.values()), said


def test_a_broken_pack_is_refused_with_its_list(monkeypatch, tmp_path):
    files = listed(row(sig(8192), 1), entries=[ENTRY])
    files["quarantine.json"] += b" "
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(write_zip(tmp_path / "careful.atpack", files)))
    reload()
    with use_pack(pack(*ROWS)):
        assert block() == ("alpha", 64)


def test_a_job_with_a_lockfile_reads_no_pack_and_so_no_list_of_one(monkeypatch, tmp_path):
    with use_pack(pack(*ROWS)):
        assert block() == ("alpha", 64)
    frozen = freeze(tmp_path / "job.lock")
    path = write_zip(tmp_path / "careful.atpack", listed(row(sig(8192), 1), entries=[ENTRY]))
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(path))
    use_lockfile(frozen.path)
    assert block() == ("alpha", 64)
    # A list in a file stops it.
    own = tmp_path / "list.json"
    own.write_text(json.dumps({"format": 1, "entries": [ENTRY]}))
    monkeypatch.setenv("ATTN_TUNE_QUARANTINE", str(own))
    reload()
    assert "quarantine" in statement_of(current_view())
    with pytest.raises(LookupError, match="wrong dq"):
        block()


def test_processes_say_of_a_broken_pack_what_its_bytes_are(monkeypatch, tmp_path):
    files = pack_files([{**r, "env": HERE} for r in ROWS], decision_digest="b2:00")
    monkeypatch.setenv("ATTN_TUNE_PACKS", str(write_zip(tmp_path / "x.atpack", resummed(files))))
    reload()
    view = current_view()
    (source,) = [s for s in view.sources if s.path.endswith("x.atpack")]
    assert source.pack.digest in statement_of(view)["pack 1"]
