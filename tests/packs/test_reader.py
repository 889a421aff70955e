"""Readers of packs: a pack is right as a whole, or one IntegrityError says what is wrong with it."""

import copy
import hashlib
import json
import random
import re

import pytest

from attn_tune.packs.reader import pack_from_files, read_pack
from attn_tune.schema.errors import IntegrityError
from tests.runtime.packbuilder import (
    H200,
    OP,
    pack_files,
    resummed,
    row,
    sig,
    with_list,
    write_folder,
    write_zip,
)

SHARD = "shards/sm_90/toy.fwd.json"
ROWS = {
    "fwd": [row(sig(1024), 64), row(sig(2048), 128), row(sig(2048), 32, kernel="beta", rank=1)],
    "bwd": [row(sig(1024), config={"dq": {"block": 64}, "dkv": {"block": 32}})],
}


@pytest.fixture
def files():
    return pack_files(ROWS)


def content(pack):
    return (pack.name, pack.version, pack.rows, dict(pack.devices), dict(pack.environments))


def test_folder_and_zip_of_a_pack_read_the_same(tmp_path, files):
    folder = read_pack(write_folder(tmp_path / "a", files))
    zipped = read_pack(write_zip(tmp_path / "a.atpack", files))
    assert content(folder) == content(zipped)
    assert folder.digest == zipped.digest
    assert [r.config for r in folder.rows if r.direction == "bwd"] == [{"dq": {"block": 64}, "dkv": {"block": 32}}]
    assert folder.devices[H200.digest] == H200
    assert len(folder.rows) == 4


def test_pack_digest_names_bytes_and_decision_digest_names_decisions(files):
    slower = copy.deepcopy(ROWS)
    slower["fwd"][0]["median_ns"] = 999
    other = pack_from_files(pack_files(slower))
    pack = pack_from_files(files)
    assert other.digest != pack.digest
    assert other.decision_digest == pack.decision_digest
    changed = copy.deepcopy(ROWS)
    changed["fwd"][0]["config"]["block"] = 65
    assert pack_from_files(pack_files(changed)).decision_digest != pack.decision_digest


def edit_manifest(files, **changes):
    manifest = json.loads(files["manifest.json"]) | changes
    return resummed({**files, "manifest.json": json.dumps(manifest).encode()})


def edit_shard(files, edit):
    """Rewrites the forward shard with every checksum put right."""
    text = files[SHARD].decode()
    data = edit(text).encode()
    manifest = json.loads(files["manifest.json"])
    for shard in manifest["shards"]:
        if shard["path"] == SHARD:
            shard["sha256"] = hashlib.sha256(data).hexdigest()
    return resummed({**files, SHARD: data, "manifest.json": json.dumps(manifest).encode()})


def edit_list(files, data):
    """Another list, with every checksum put right."""
    text = json.dumps(data).encode()
    manifest = json.loads(files["manifest.json"])
    manifest["quarantine"]["sha256"] = hashlib.sha256(text).hexdigest()
    return resummed({**files, LIST: text, "manifest.json": json.dumps(manifest).encode()})


def without(files, name):
    return {k: v for k, v in files.items() if k != name}


def other_family(files):
    """The forward shard under the name of another family of devices."""
    path = SHARD.replace("sm_90", "sm_80")
    manifest = json.loads(files["manifest.json"].replace(SHARD.encode(), path.encode()))
    moved = {**without(files, SHARD), path: files[SHARD]}
    return resummed({**moved, "manifest.json": json.dumps(manifest).encode()})


LIST = "quarantine.json"
ENTRY = {"kernel": "alpha", "config": {"block": 64}, "reason": "wrong"}

BROKEN = {
    "a list that the manifest does not name": (
        lambda f: resummed({**f, LIST: b'{"format": 1, "never": []}'}),
        "names a quarantine list",
    ),
    "a list that is not there": (
        lambda f: edit_manifest(f, quarantine={"entries": 1, "sha256": "0"}),
        "names a quarantine list",
    ),
    "an empty list": (lambda f: with_list(f, []), "entries"),
    "another number of entries": (lambda f: with_list(f, [ENTRY], entries=2), "entries"),
    "a list of another sum": (lambda f: with_list(f, [ENTRY], sha256="00"), "checksum"),
    "a list with an unknown condition": (
        lambda f: with_list(f, [{**ENTRY, "weather": "hot"}]),
        "'weather'",
    ),
    "a reason that is no line": (
        lambda f: with_list(f, [{**ENTRY, "reason": "x\x1b[2J\n"}]),
        "wrong 'reason'",
    ),
    "a list that answers": (
        lambda f: edit_list(
            with_list(f, [ENTRY]),
            {"format": 1, "use": [{"op": OP, "direction": "fwd", "kernel": "alpha", "config": {}}]},
        ),
        "'never' entries alone",
    ),
    "a list whose entry has no reason": (lambda f: with_list(f, [{"kernel": "alpha"}]), "reason"),
    "a list of a newer format": (
        lambda f: edit_list(with_list(f, [ENTRY]), {"format": 2, "never": [ENTRY]}),
        "format 1",
    ),
    "no sums": (lambda f: without(f, "SHA256SUMS"), "SHA256SUMS"),
    "no manifest": (lambda f: resummed(without(f, "manifest.json")), "manifest.json"),
    "a missing file": (lambda f: without(f, SHARD), "lacks"),
    "an extra file": (lambda f: {**f, "notes.txt": b"hi"}, "does not list"),
    "an extra summed file": (lambda f: resummed({**f, "notes.txt": b"hi"}), "does not name"),
    "a changed byte": (lambda f: {**f, SHARD: f[SHARD].replace(b"64", b"65", 1)}, "checksum"),
    "sums cut short": (lambda f: {**f, "SHA256SUMS": f["SHA256SUMS"][:-1]}, "cut short"),
    "a sum twice": (
        lambda f: {**f, "SHA256SUMS": f["SHA256SUMS"] + f["SHA256SUMS"]},
        "bad line",
    ),
    "a newer pack": (lambda f: edit_manifest(f, format=4, min_reader=3), "upgrade attn-tune"),
    "format zero": (
        lambda f: edit_manifest(f, format=0, min_reader=0),
        "'min_reader' of the manifest must be from 1 to its 'format', 0",
    ),
    "format is true": (lambda f: edit_manifest(f, format=True), "'format'"),
    "a wrong decision digest": (lambda f: edit_manifest(f, decision_digest="b2:00"), "decision"),
    "a wrong row count": (lambda f: edit_manifest(f, rows=5), "rows"),
    "an unknown kernel": (lambda f: edit_manifest(f, kernels=[]), "does not list"),
    "an unknown device": (lambda f: edit_manifest(f, devices={}), "does not describe"),
    "an unknown environment": (lambda f: edit_manifest(f, environments={}), "does not describe"),
    "a device under another digest": (
        lambda f: edit_manifest(f, devices={"b2:00": H200.identity}),
        "digest",
    ),
    "a device with an odd field": (
        lambda f: edit_manifest(f, devices={H200.digest: {**H200.identity, "x": 1}}),
        "'x'",
    ),
    "shards are a table": (lambda f: edit_manifest(f, shards={}), "'shards'"),
    "another config, sums put right": (
        lambda f: edit_shard(f, lambda t: t.replace('"block":64', '"block":96')),
        "decision digest",
    ),
    "a duplicate key": (
        lambda f: edit_shard(f, lambda t: t.replace('{"block":64}', '{"block":64,"block":64}')),
        "twice",
    ),
    "NaN": (lambda f: edit_shard(f, lambda t: t.replace('"rank":0', '"rank":NaN', 1)), "NaN"),
    "Infinity": (
        lambda f: edit_shard(f, lambda t: t.replace('"rank":0', '"rank":-Infinity', 1)),
        "Infinity",
    ),
    "1e400": (lambda f: edit_shard(f, lambda t: t.replace("1000", "1e400", 1)), "out of range"),
    "a float time": (lambda f: edit_shard(f, lambda t: t.replace("1000", "1e3", 1)), "integer"),
    "a huge integer": (
        lambda f: edit_shard(f, lambda t: t.replace("1000", "9" * 5000, 1)),
        "digits",
    ),
    "a large integer": (
        lambda f: edit_shard(f, lambda t: t.replace("1000", "9" * 30, 1)),
        f"median_ns must be an integer from 0 to 2**63 - 1, got {'9' * 30}",
    ),
    "a large knob": (
        lambda f: edit_shard(f, lambda t: t.replace('"block":64', f'"block":{2**63}')),
        f"config knob 'block' must be an integer from -2**63 to 2**63 - 1, got {2**63}",
    ),
    "a config of another type": (
        lambda f: edit_shard(f, lambda t: t.replace('{"block":64}', '"x"')),
        "config must be an object, got 'x'",
    ),
    "a signature of another type": (
        lambda f: edit_shard(f, lambda t: t.replace(json.dumps(sig(1024)), "5")),
        "row 1: it must name one signature of toy, got '5'",
    ),
    "a device of another type": (
        lambda f: edit_shard(f, lambda t: t.replace(f'"{H200.digest}"', "5")),
        "device must be a text of 1 to 1000 characters, got 5",
    ),
    "a name of another type": (
        lambda f: edit_manifest(f, name=5),
        "'name' of the manifest must be a text of 1 to 1000 printable characters, got 5",
    ),
    "a large count": (
        lambda f: edit_manifest(f, rows=2**63),
        f"'rows' of the manifest must be an integer from 0 to 2**63 - 1, got {2**63}",
    ),
    "deep nesting": (
        lambda f: edit_shard(f, lambda t: t.replace("64", "[" * 200_000 + "]" * 200_000, 1)),
        "nested too deeply",
    ),
    "a nested knob": (
        lambda f: edit_shard(f, lambda t: t.replace('{"block":64}', '{"block":[64]}')),
        "plain value",
    ),
    "not an array": (lambda f: edit_shard(f, lambda t: "{}"), "not an array"),
    "a truncated array": (lambda f: edit_shard(f, lambda t: t[:-40]), "not an array"),
    "a truncated row": (lambda f: edit_shard(f, lambda t: t[:-40] + "\n]\n"), "not JSON"),
    "a byte order mark": (lambda f: edit_shard(f, lambda t: "\ufeff" + t), "not an array"),
    "an array on one line": (
        lambda f: edit_shard(f, lambda t: t.replace("\n", "") + "\n"),
        "not an array",
    ),
    "a space that says nothing": (
        lambda f: edit_shard(f, lambda t: t.replace('"rank":0', '"rank": 0', 1)),
        "row 1: it is not in canonical JSON",
    ),
    "fields in another order": (
        lambda f: edit_shard(f, lambda t: t.replace('"rank":0,', "", 1).replace("{", '{"rank":0,', 1)),
        "row 1: it is not in canonical JSON",
    ),
    "a family of other devices": (other_family, "of a device of the family 'sm_90'"),
    "a duplicate row": (
        lambda f: edit_shard(f, lambda t: t.replace("t=2048", "t=1024")),
        "twice",
    ),
    "a row of another op": (
        lambda f: edit_shard(f, lambda t: t.replace("toy/v1 b=1 t=1024", "tay/v1 b=1 t=1024")),
        "row 1: it must name one signature of toy, got '\"tay/v1 b=1 t=1024",
    ),
    "an unknown state": (
        lambda f: edit_shard(f, lambda t: t.replace('"winner"', '"champion"', 1)),
        "champion",
    ),
    "a negative rank": (
        lambda f: edit_shard(f, lambda t: t.replace('"rank":0', '"rank":-1', 1)),
        "rank must be an integer from 0 to 2**63 - 1, got -1",
    ),
    "an absolute path": (lambda f: {**f, "/etc/passwd": b""}, "unsafe path"),
    "a climbing path": (lambda f: {**f, "shards/../../x": b""}, "unsafe path"),
    "a backslash": (lambda f: {**f, "shards\\x": b""}, "unsafe path"),
    "a hidden file": (lambda f: {**f, ".DS_Store": b""}, "unsafe path"),
    "a drive": (lambda f: {**f, "C:x": b""}, "unsafe path"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_packs_are_refused_with_the_reason(files, case):
    edit, fragment = BROKEN[case]
    with pytest.raises(IntegrityError, match=re.escape(fragment)) as caught:
        pack_from_files(edit(files))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2000


def test_quarantine_list_of_a_pack_is_part_of_its_digest_alone(files):
    plain, listed = pack_from_files(files), pack_from_files(with_list(files, [ENTRY]))
    (entry,) = listed.quarantine.entries
    assert (entry.kernel, entry.config, entry.reason) == ("alpha", {"block": 64}, "wrong")
    assert plain.quarantine.entries == ()
    assert plain.digest != listed.digest
    assert plain.decision_digest == listed.decision_digest


def test_pack_of_a_newer_format_that_older_readers_may_read_is_read(files):
    newer = edit_manifest(files, format=3, min_reader=1, colour="green")
    assert len(pack_from_files(newer).rows) == 4


def test_unknown_fields_of_a_row_are_ignored():
    newer = pack_files([row(sig(1024), colour="green")])
    assert pack_from_files(newer).rows[0].config == {"block": 64}


def mutate(rng: random.Random, data: bytes) -> bytes:
    """One random accident: flipped bits, a cut, a repeat, a swap, inserted noise."""
    kind = rng.randrange(5)
    at = rng.randrange(len(data))
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + data[at : at + rng.randrange(1, 64)] + data[at:]
    if kind == 3:
        end = min(len(data), at + rng.randrange(1, 64))
        return data[:at] + data[end:]
    return data[:at] + rng.randbytes(rng.randrange(1, 8)) + data[at:]


def test_accidents_to_a_zip_never_pass_and_never_raise_anything_else(tmp_path, files):
    path = tmp_path / "x.atpack"
    whole = write_zip(path, files).read_bytes()
    expected = content(read_pack(path))
    rng = random.Random(20260101)
    accepted = 0
    for _ in range(2000):
        data = mutate(rng, whole)
        path.write_bytes(data)
        try:
            pack = read_pack(path)
        except IntegrityError:
            continue
        # A zip has bytes that say nothing (dates, comments): then the content is what it was.
        assert content(pack) == expected
        accepted += 1
    assert accepted < 1000


def test_accidents_to_a_file_of_a_pack_never_pass(files):
    rng = random.Random(7)
    for _ in range(2000):
        name = rng.choice(sorted(files))
        data = mutate(rng, files[name])
        if data == files[name]:
            continue
        with pytest.raises(IntegrityError):
            pack_from_files({**files, name: data})


JUNK = [
    None,
    True,
    -1,
    0,
    2**70,
    1.5,
    "",
    "x",
    "b2:0",
    [],
    {},
    [[]],
    {"a": {"b": {"c": {}}}},
    "\x00",
]


def scramble(rng: random.Random, value):
    """Replaces one value somewhere in a JSON tree, or drops or adds a key."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        if rng.random() < 0.15:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: scramble(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        return [*value[:at], scramble(rng, value[at]), *value[at + 1 :]]
    return rng.choice(JUNK)


def spelled(rows):
    """The rows of a shard as the format wants them, so that their values alone can be wrong."""
    lines = [json.dumps(row, sort_keys=True, separators=(",", ":")) for row in rows]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def test_wrong_values_with_right_sums_are_integrity_errors_or_harmless(files):
    rng = random.Random(11)
    refused = 0
    for _ in range(2000):
        name = rng.choice(["manifest.json", SHARD])
        value = scramble(rng, json.loads(files[name]))
        text = spelled(value) if name == SHARD and isinstance(value, list) else json.dumps(value)
        edited = (
            resummed({**files, name: text.encode()})
            if name == "manifest.json"
            else edit_shard(files, lambda _, text=text: text)
        )
        try:
            pack = pack_from_files(edited)
        except IntegrityError:
            refused += 1
            continue
        # What passes are the fields outside the decisions: times, names, states.
        assert pack.decision_digest == pack_from_files(files).decision_digest
    assert refused > 500
