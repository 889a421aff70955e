"""A lookup proves the rows it uses, and no more; what is broken elsewhere in the pack neither answers nor stops it."""

import dataclasses
import hashlib
import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from attn_tune.db.pack_files import files_of_rows
from attn_tune.runtime import contents
from attn_tune.runtime.answer import Rung, SourceKind
from attn_tune.runtime.ladder import Question, walk
from attn_tune.runtime.packs import open_files, pack_from_files
from attn_tune.runtime.raw_table import RawTable
from attn_tune.runtime.rows import Row
from attn_tune.runtime.ruler import near_texts
from attn_tune.runtime.shapes import distance, same_bucket, shape_of
from attn_tune.runtime.shelf import Shelf
from attn_tune.runtime.sources import Source
from attn_tune.schema import Grade, IntegrityError, Signature, UsageError
from tests.runtime.packbuilder import ENVIRONMENT, FIELDS, H200, OP, resummed, sig, write_folder

SHARD = f"shards/sm_90/{OP}.fwd.json"
H100 = dataclasses.replace(H200, variant="nvidia-h100-pcie")


def row(t, block, **more):
    texts = {"device": H200.digest, "env": ENVIRONMENT.digest, "state": "winner", "kernel": "alpha"}
    given = {"rank": 0, "samples": 3, "signature": sig(t), **texts, **more}
    return Row(op=OP, direction="fwd", config={"block": block}, **given)


def written(*rows):
    """The files of a pack in the writer's spelling."""
    return files_of_rows(
        rows,
        name="lab",
        version="1",
        devices={d.digest: d for d in (H200, H100)},
        environments={ENVIRONMENT.digest: ENVIRONMENT},
        contracts={f"{OP}/alpha": 1, f"{OP}/beta": 1},
    )


def edited(files, old, new):
    """One change in the shard, every sum put right, as only someone who means it can do."""
    data = files[SHARD].replace(old.encode(), new.encode(), 1)
    assert data != files[SHARD]
    manifest = json.loads(files["manifest.json"])
    manifest["shards"][0]["sha256"] = hashlib.sha256(data).hexdigest()
    return resummed({**files, SHARD: data, "manifest.json": json.dumps(manifest).encode()})


class Judge:
    grade = staticmethod(lambda row, pack: Grade.VERIFIED)
    refusal = staticmethod(lambda row, pack: None)
    adapt = staticmethod(lambda row: row)


def ask(pack, text, device=H200):
    """(rung, block) of the answer, or None."""
    question = Question(
        op=OP,
        direction="fwd",
        signature=Signature.parse(text, FIELDS),
        fields=FIELDS,
        device=device,
    )
    shelf = Shelf(pack, OP, "fwd", FIELDS)
    found = walk(question, iter([(SourceKind.USER, shelf)]), Judge(), tell=True)
    return found.match and (found.match.rung, found.match.row.config["block"])


FILES = written(row(1024, 64), row(2048, 128), row(2048, 32, kernel="beta", rank=1))


def test_neither_an_exact_nor_a_near_answer_proves_the_whole(monkeypatch):
    def never(*args, **more):
        raise AssertionError("all rows were proven")

    for name in ("plain_table", "parsed_table"):
        monkeypatch.setattr(contents, name, never)
    pack = open_files(FILES)
    assert isinstance(pack.contents.tables[0], RawTable)
    assert ask(pack, sig(2048)) == (Rung.EXACT, 128)
    assert ask(pack, sig(1500)) == (Rung.BUCKET, 128)
    assert ask(pack, sig(600)) == (Rung.BUCKET, 64)
    assert ask(pack, sig(5000)) is None
    with pytest.raises(AssertionError):
        list(pack.rows)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"block":128', '"block":[128]'),
        ('"block":128', '"block":128,"block":129'),
        ('"state":"winner"},\n{"config":{"block":32}', '"state":"best"},\n{"config":{"block":32}'),
        ('"kernel":"beta"', '"kernel":"alpha"'),
        ('"kernel":"beta"', '"kernel":"gamma"'),
        ('"rank":1', '"rank":0'),
        ('"rank":1', '"rank":-1'),
        ('"rank":1', '"rank":true'),
        (
            '"samples":3,"signature":"toy/v1 b=1 t=2048',
            '"samples":NaN,"signature":"toy/v1 b=1 t=2048',
        ),
        ('{"config":{"block":32}', '{"config":{"block":32}}'),
        ('"},\n{"config":{"block":32}', '"}\n{"config":{"block":32}'),
    ],
)
def test_broken_rows_never_answer_and_the_others_do(old, new, caplog):
    files = edited(FILES, old, new)
    with pytest.raises(IntegrityError):
        pack_from_files(files)
    pack = open_files(files)
    with caplog.at_level(logging.WARNING, "attn_tune"):
        # Both rows of the problem fall, for they stand together; the near one is sound.
        assert ask(pack, sig(2048)) == (Rung.NEIGHBOUR, 64)
        assert ask(pack, sig(1024)) == (Rung.EXACT, 64)
    (warning,) = caplog.messages[:1]
    assert "t=2048" in warning
    assert "attn-tune pack verify" in warning
    with pytest.raises(IntegrityError):
        _ = pack.decision_digest


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"signature":"toy/v1 b=1 t=1024', '"signature":"tay/v1 b=1 t=1024', "not of toy"),
        ('"block":64', '"block":"\\ud800\\"', ""),
        ("[\n{", "[\n[{", "JSON"),
    ],
)
def test_a_shard_of_another_spelling_is_proven_whole_at_once(old, new, words):
    with pytest.raises(IntegrityError, match=f".*{words}"):
        open_files(edited(FILES, old, new))


def test_a_row_that_says_more_is_read_as_before():
    files = edited(FILES, '"state":"winner"},', '"state":"winner","tuned_by":"x"},')
    assert [r.config["block"] for r in pack_from_files(files).rows] == [64, 128, 32]
    assert ask(open_files(files), sig(1024)) == (Rung.EXACT, 64)
    files = edited(FILES, ',"state":"winner"},', ',"spare":1,"state":"winner"},')
    assert ask(open_files(files), sig(1024)) == (Rung.EXACT, 64)


def test_a_wrong_claim_about_the_rows_is_found_by_who_asks_for_it(tmp_path):
    manifest = json.loads(FILES["manifest.json"]) | {"decision_digest": "b2:00"}
    files = resummed({**FILES, "manifest.json": json.dumps(manifest).encode()})
    pack = open_files(files)
    for _ in range(2):
        with pytest.raises(IntegrityError, match="decision digest"):
            _ = pack.decision_digest
    assert ask(pack, sig(1024)) == (Rung.EXACT, 64)
    # A source of lookups opens; reading proves.
    source = Source(SourceKind.USER, str(write_folder(tmp_path / "p", files)))
    assert source.pack is not None
    assert source.error is None


@pytest.mark.parametrize("more", [{}, {"block": 1}])
def test_a_knob_called_signature_misleads_nobody(more):
    tricky = {"signature": sig(4096), "state": "x", **more}
    files = written(row(1024, 64), dataclasses.replace(row(2048, 1), config=tricky))
    pack = open_files(files)
    assert len(pack.rows) == 2
    shelf = Shelf(pack, OP, "fwd", FIELDS)
    assert shelf.at(H200.digest, sig(4096)) == []
    assert shelf.at(H200.digest, sig(2048))[0].config == tricky


SIGNATURES = st.builds(
    lambda b, t, h, left, pages: sig(
        t,
        b=b,
        h=h,
        **({} if left is None else {"left": left}),
        **({"pages": pages} if pages else {}),
    ),
    st.integers(1, 9),
    st.integers(1, 64),
    st.sampled_from([64, 128]),
    st.none() | st.integers(0, 9),
    st.integers(0, 3),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SIGNATURES, st.lists(SIGNATURES, max_size=12, unique=True))
def test_texts_are_as_far_as_the_signatures_they_spell(asked, texts):
    question = Signature.parse(asked, FIELDS)
    mine = shape_of(question, FIELDS)
    expected = {}
    for text in texts:
        theirs = shape_of(Signature.parse(text, FIELDS), FIELDS)
        away = distance(mine, theirs)
        if away is not None:
            expected[text] = (pytest.approx(away), same_bucket(mine, theirs))
    found = near_texts(texts, question, FIELDS)
    assert {near.text: (near.distance, near.is_bucket) for near in found} == expected
    assert [near.distance for near in found] == sorted(near.distance for near in found)


@pytest.mark.parametrize(
    "text", ["toy/v1 b=1 t=1_024 h=64 dtype=bfloat16", "toy/v1 t=1024 b=1 h=64 dtype=bfloat16"]
)
def test_a_near_text_that_is_not_canonical_never_answers(text):
    pack = open_files(written(dataclasses.replace(row(1, 1), signature=text), row(2048, 2)))
    with pytest.raises(UsageError):
        Signature.parse(text, FIELDS)
    assert ask(pack, sig(1025)) == (Rung.BUCKET, 2)
    assert ask(pack, sig(1000)) is None


def test_levels_of_devices_are_told_apart_without_proving_the_whole():
    files = written(row(1024, 1, device=H100.digest), row(2048, 2))
    assert ask(open_files(files), sig(1024)) == (Rung.NEIGHBOUR, 2)
    assert ask(open_files(files), sig(1024), device=H100) == (Rung.EXACT, 1)
