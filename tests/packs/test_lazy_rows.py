"""Lookups in open packs: they read their own shards and prove the rows that they use, no more."""

import dataclasses
import hashlib
import json
import logging

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from attn_tune.packs import archive, shards
from attn_tune.packs.reader import open_pack, pack_from_files
from attn_tune.packs.rows import Row, parse_row
from attn_tune.packs.writer import files_of_rows
from attn_tune.runtime.active.row_index import RowIndex
from attn_tune.runtime.active.sources import Source
from attn_tune.runtime.lookup.answer import Rung, SourceKind
from attn_tune.runtime.lookup.ladder import RowQuestion, walk
from attn_tune.runtime.lookup.signature_distance import distance, same_bucket, shape_of
from attn_tune.runtime.lookup.text_distance import near_texts
from attn_tune.schema import Grade, IntegrityError, Signature, UsageError
from tests.runtime.packbuilder import (
    ENVIRONMENT,
    FIELDS,
    H200,
    OP,
    resummed,
    sig,
    write_folder,
    write_zip,
)

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
    takes_part = staticmethod(lambda row: True)
    refusal = staticmethod(lambda row, pack: None)
    adapt = staticmethod(lambda row: row)


def opened(files):
    """The pack as lookups open it."""
    return pack_from_files(files, proven=False)


def ask(pack, text, device=H200, direction="fwd"):
    """(rung, block) of the answer, or None."""
    match = walked(pack, text, device, direction).match
    return match and (match.rung, match.row.config["block"])


def walked(pack, text, device=H200, direction="fwd"):
    """The walk of one lookup."""
    question = RowQuestion(
        op=OP,
        direction=direction,
        signature=Signature.parse(text, FIELDS),
        fields=FIELDS,
        device=device,
    )
    index = RowIndex(pack, OP, direction, FIELDS)
    return walk(question, iter([(SourceKind.USER, index)]), Judge(), with_nearest=True)


FILES = written(row(1024, 64), row(2048, 128), row(2048, 32, kernel="beta", rank=1))


def test_lookup_proves_only_the_rows_that_it_uses(monkeypatch):
    proven = []

    def counted(data, **more):
        proven.append(data["signature"])
        return parse_row(data, **more)

    monkeypatch.setattr(shards, "parse_row", counted)
    pack = opened(FILES)
    assert ask(pack, sig(2048)) == (Rung.EXACT, 128)
    assert proven == [sig(2048)] * 2
    assert ask(pack, sig(1500)) == (Rung.BUCKET, 128)
    assert ask(pack, sig(600)) == (Rung.BUCKET, 64)
    assert ask(pack, sig(5000)) is None
    proven.clear()
    assert len(pack.rows) == len(proven) == 3


def two_directions():
    """The files of a pack with a shard of each direction."""
    return written(row(1024, 64), dataclasses.replace(row(1024, 32), direction="bwd"))


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_lookup_reads_only_the_shards_of_its_op_and_direction(tmp_path, monkeypatch, kind):
    files = two_directions()
    path = {"folder": write_folder, "zip": write_zip}[kind](tmp_path / "p.atpack", files)
    read = []
    for name in ("_read_folder", "_read_zip"):
        plain = getattr(archive, name)

        def counted(root, names, plain=plain):
            read.extend(names)
            return plain(root, names)

        monkeypatch.setattr(archive, name, counted)
    pack = open_pack(path)
    assert ask(pack, sig(1024)) == (Rung.EXACT, 64)
    assert read == ["manifest.json", "SHA256SUMS", SHARD]
    assert len(pack.rows) == 2
    assert read[3:] == [SHARD.replace("fwd", "bwd")]


def test_changed_shard_is_ignored_with_a_warning_and_the_other_direction_answers(tmp_path, caplog):
    path = write_folder(tmp_path / "p", two_directions())
    pack = open_pack(path)
    (path / SHARD).write_bytes((path / SHARD).read_bytes().replace(b"64", b"65", 1))
    with caplog.at_level(logging.WARNING, "attn_tune"):
        assert ask(pack, sig(1024)) is None
    (warning,) = caplog.messages
    assert "ignored for toy.fwd" in warning
    assert "checksum" in warning
    assert ask(pack, sig(1024), direction="bwd") == (Rung.EXACT, 32)
    assert {shard.direction: shard.is_readable for shard in pack.shards} == {
        "fwd": False,
        "bwd": True,
    }
    with pytest.raises(IntegrityError, match="checksum"):
        _ = pack.rows


def test_deleted_shard_is_ignored_and_a_step_gives_the_reason(tmp_path):
    path = write_folder(tmp_path / "p", two_directions())
    pack = open_pack(path)
    (path / SHARD).unlink()
    (step,) = walked(pack, sig(1024)).steps
    assert "ignored: pack" in step.note
    assert "cannot be read" in step.note


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
        ('{"config":{"block":32}', '{"config": {"block":32}'),
        ('"},\n{"config":{"block":32}', '"}\n{"config":{"block":32}'),
    ],
)
def test_broken_rows_never_answer_and_the_others_do(old, new, caplog):
    files = edited(FILES, old, new)
    with pytest.raises(IntegrityError):
        pack_from_files(files)
    pack = opened(files)
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
    ("old", "new"),
    [
        ('"signature":"toy/v1 b=1 t=1024', '"signature":"tay/v1 b=1 t=1024'),
        (',"signature":"toy/v1 b=1 t=1024', ',"signature": "toy/v1 b=1 t=1024'),
        ("},\n{", "},{"),
        ('"block":64', '"block":"\u00e9"'),
    ],
)
def test_shard_with_ambiguous_rows_is_ignored_whole(old, new):
    files = edited(FILES, old, new)
    assert "ignored: pack" in walked(opened(files), sig(2048)).steps[0].note
    with pytest.raises(IntegrityError, match=f"{SHARD}"):
        pack_from_files(files)


def test_row_with_unknown_fields_is_read_without_them():
    files = edited(FILES, '"state":"winner"},', '"state":"winner","tuned_by":"x"},')
    assert [r.config["block"] for r in pack_from_files(files).rows] == [64, 128, 32]
    assert ask(opened(files), sig(1024)) == (Rung.EXACT, 64)
    files = edited(FILES, ',"state":"winner"},', ',"spare":1,"state":"winner"},')
    assert ask(opened(files), sig(1024)) == (Rung.EXACT, 64)


def test_wrong_decision_digest_is_found_when_it_is_asked_for(tmp_path):
    manifest = json.loads(FILES["manifest.json"]) | {"decision_digest": "b2:00"}
    files = resummed({**FILES, "manifest.json": json.dumps(manifest).encode()})
    pack = opened(files)
    for _ in range(2):
        with pytest.raises(IntegrityError, match="decision digest"):
            _ = pack.decision_digest
    assert ask(pack, sig(1024)) == (Rung.EXACT, 64)
    # A source of lookups opens; reading proves.
    source = Source(SourceKind.USER, str(write_folder(tmp_path / "p", files)))
    assert source.pack is not None
    assert source.error is None


@pytest.mark.parametrize("part", [False, True])
def test_config_with_a_knob_called_signature_is_refused(part):
    knobs = {"block": 1, "signature": sig(4096), "state": "x"}
    files = written(row(1024, 64), dataclasses.replace(row(2048, 1), config={"dq": knobs} if part else knobs))
    with pytest.raises(IntegrityError, match=r"row 2: it must name one signature of toy, got .* and "):
        pack_from_files(files)
    assert ask(opened(files), sig(2048)) is None
    with pytest.raises(IntegrityError, match="knob 'signature'"):
        parse_row(json.loads(written(row(1, 1))[SHARD])[0] | {"config": knobs}, op=OP, direction="fwd")


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
def test_near_texts_are_as_far_as_their_signatures(asked, texts):
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


@pytest.mark.parametrize("text", ["toy/v1 b=1 t=1_024 h=64 dtype=bfloat16", "toy/v1 t=1024 b=1 h=64 dtype=bfloat16"])
def test_near_signature_that_is_not_canonical_never_answers(text):
    pack = opened(written(dataclasses.replace(row(1, 1), signature=text), row(2048, 2)))
    with pytest.raises(UsageError):
        Signature.parse(text, FIELDS)
    assert ask(pack, sig(1025)) == (Rung.BUCKET, 2)
    assert ask(pack, sig(1000)) is None


def test_device_levels_are_found_without_proving_all_rows():
    files = written(row(1024, 1, device=H100.digest), row(2048, 2))
    assert ask(opened(files), sig(1024)) == (Rung.NEIGHBOUR, 2)
    assert ask(opened(files), sig(1024), device=H100) == (Rung.EXACT, 1)
