"""The digest of the code and the compile time in one integer: what stays of them."""

import math
import sqlite3

import pytest
from hypothesis import given, strategies as st

from attn_tune.db import Database
from attn_tune.db.programs import pack_program, short_digest, unpack_program
from attn_tune.schema import Resources
from attn_tune.schema.digest import digest_text
from tests.db.facts import begin, make_trial

times = st.none() | st.floats(0, 13_000_000)
digests = st.text().map(digest_text) | st.text(max_size=40)


@given(digests, times)
def test_what_is_stored_is_read_back_as_it_is_documented(digest, compile_ms):
    packed = pack_program(digest, compile_ms)
    assert packed is None or -(2**63) <= packed < 2**63
    stored, ms = unpack_program(packed)
    assert stored == short_digest(digest)
    assert (stored == "") is (digest == "")
    if compile_ms is None:
        assert ms is None
    else:
        assert ms == pytest.approx(compile_ms, rel=2**-12, abs=0.05000001)
    # Storing what was read changes nothing more.
    assert pack_program(stored, ms) == packed


def test_different_programs_stay_different():
    ours = [digest_text(str(i)) for i in range(10_000)]
    foreign = [f"fingerprint {i}" for i in range(10_000)]
    assert len({short_digest(digest) for digest in ours + foreign}) == 20_000
    assert all(digest.startswith(short_digest(digest)) for digest in ours)


@pytest.mark.parametrize(
    ("compile_ms", "read"),
    [(0.0, 0.0), (12.5, 12.5), (0.04, 0.0), (409.5, 409.5), (4095.9, 4096.0), (1e300, 13418496.0),
     (math.inf, 13418496.0), (math.nan, None), (None, None)],
)  # fmt: skip
def test_times_at_the_edges(compile_ms, read):
    assert unpack_program(pack_program("", compile_ms))[1] == read


def test_sql_reads_what_python_reads(tmp_path):
    stored = [
        (digest, ms)
        for digest in ("", "b2:" + "f" * 32, "b2:" + "0" * 32, digest_text("x"))
        for ms in (None, 0.0, 0.1, 12.5, 409.6, 1421.3552, 987_654.3, 1e12)
    ]
    with Database.open(tmp_path / "lab.db", create=True) as database:
        run = begin(database)
        for digest, ms in stored:
            resources = Resources(code_digest=digest)
            database.record(run, make_trial(resources=resources, compile_ms=ms))
        read = [(t.resources.code_digest, t.compile_ms) for t in database.trials()]
    with sqlite3.connect(tmp_path / "lab.db") as raw:
        assert (
            raw.execute("SELECT code_digest, compile_ms FROM trial ORDER BY id").fetchall() == read
        )
    assert read == [unpack_program(pack_program(*pair)) for pair in stored]
