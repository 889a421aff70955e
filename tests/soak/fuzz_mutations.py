"""Accidents and attacks on a config pack, for ``fuzz_packs.py``: each makes a mutant of a good one by chance.

``KINDS`` maps a name to its share in a hundred and its function, which returns the mutant (files by path, or the bytes
of a zip) and whether its sums were put right.
"""

import hashlib
import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from typing import Any

from attn_tune.packs.archive import MANIFEST, QUARANTINE, SIGNED, SUMS
from tests.soak.fuzz_good import INDENTS, LISTED, SHARDS, ZIP, Files


def accident(rng: random.Random, data: bytes) -> bytes:
    """Flipped bits, a cut, a repeat, a hole, noise, or bytes that matter to JSON and zip."""
    if not data:
        return b"\0"
    at = rng.randrange(len(data))
    end = min(len(data), at + rng.randrange(1, 64))
    kind = rng.randrange(7)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:end] + data[at:]
    if kind == 3:
        return data[:at] + data[end:]
    if kind == 4:
        return data[:at] + rng.randbytes(rng.randrange(1, 8)) + data[at:]
    if kind == 5:
        return data[:at] + rng.choice(TOKENS) + data[at:]
    other = rng.randrange(len(data))
    return data[:at] + data[other : other + end - at] + data[end:]


TOKENS = [
    *(
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\n",
        b",\n",
        b"\0",
        b"\x7f",
        b"\xef\xbb\xbf",
        b"-",
        b"0",
        b" ",
    ),
    *(
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"1e400",
        b"1e3",
        b"null",
        b"true",
        b"\\u0000",
        b"\\ud800",
        b"9" * 30,
    ),
    *(
        b"9" * 5000,
        b"[" * 2000,
        b'{"a":' * 500,
        b'"rank":0,',
        b'"config":{},',
        b'"block_q":64,',
        b"-0",
        b"PK\x05\x06",
    ),
]
JUNK = [
    *(
        None,
        True,
        False,
        -1,
        0,
        1,
        2**63,
        -(2**63) - 1,
        2**200,
        1.5,
        -0.0,
        1e308,
        "",
        "x",
        "a" * 2000,
        "b2:0",
        "toy/v1",
    ),
    *(
        [],
        {},
        [[]],
        {"a": {"b": {"c": {}}}},
        {"": 0},
        "\x00",
        "\ud800",
        "é",
        "..",
        "../x",
        "/etc/passwd",
        'a"b',
        "\\",
        "\x7f",
    ),
]


def scramble(rng: random.Random, value: Any) -> Any:
    """Replaces one value somewhere, or drops, renames, repeats or adds one."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(sorted(value))
        dice = rng.random()
        if dice < 0.1:
            return {k: v for k, v in value.items() if k != key}
        if dice < 0.15:
            return {("x" + k if k == key else k): v for k, v in value.items()}
        return {**value, key: scramble(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.85:
        at = rng.randrange(len(value))
        if rng.random() < 0.1:
            return [*value, value[at]]
        return [*value[:at], scramble(rng, value[at]), *value[at + 1 :]]
    return rng.choice(JUNK)


def resum(files: Files, *, digest: bool, rng: random.Random) -> Files:
    """Puts right every sum; with ``digest`` those of the rows too, as far as they can be read."""
    try:
        manifest = json.loads(files[MANIFEST])
        shards = {shard["path"]: shard for shard in manifest["shards"]}
        lines, rows = [], 0
        for path, shard in shards.items():
            data = files[path]
            shard["sha256"] = hashlib.sha256(data).hexdigest()
            if digest:
                items = json.loads(data)
                shard["rows"] = len(items)
                rows += len(items)
                lines += [line_of(item, path) for item in items]
        if QUARANTINE in files:
            manifest["quarantine"]["sha256"] = hashlib.sha256(files[QUARANTINE]).hexdigest()
        if digest:
            manifest["rows"] = rows
            manifest["decision_digest"] = digest_of(lines)
        files = {**files, MANIFEST: json.dumps(manifest, indent=rng.choice(INDENTS)).encode()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # What cannot be read cannot be put right: the sums over the files still are.
    plain = {name: data for name, data in files.items() if name not in (SUMS, SIGNED)}
    sums = "".join(f"{hashlib.sha256(d).hexdigest()}  {n}\n" for n, d in sorted(plain.items()))
    return {**files, SUMS: sums.encode("utf-8", "surrogateescape")}


def line_of(item: dict[str, Any], path: str) -> str:
    """Builds the text of one row that the decision digest covers, independently of the reader."""
    fields = (
        item["device"],
        item["signature"],
        path.split(".")[-2],
        item["kernel"],
        item["rank"],
        item["config"],
    )
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def digest_of(lines: list[str]) -> str:
    """The digest of such lines."""
    return "b2:" + hashlib.blake2b("\n".join(sorted(lines)).encode(), digest_size=16).hexdigest()


# --- Kinds of mutation: each makes (files or the bytes of a zip), and says whether the sums were put right ---


def flip_file(rng: random.Random, good: Files) -> tuple[Files, bool]:
    name = rng.choice(sorted(good))
    return {**good, name: accident(rng, good[name])}, False


def flip_zip(rng: random.Random, good: Files) -> tuple[bytes, bool]:
    return accident(rng, ZIP), False


def flip_and_sum(rng: random.Random, good: Files) -> tuple[Files, bool]:
    name = rng.choice([*SHARDS, *SHARDS, MANIFEST])
    data = accident(rng, good[name])
    if rng.random() < 0.2:
        data = accident(rng, data)
    return resum({**good, name: data}, digest=rng.random() < 0.7, rng=rng), True


def values(rng: random.Random, good: Files) -> tuple[Files, bool]:
    name = rng.choice([*SHARDS, MANIFEST])
    value = scramble(rng, json.loads(good[name]))
    if rng.random() < 0.2:
        value = scramble(rng, value)
    # Other spellings of a shard are refused, with any values.
    if rng.random() < 0.9 and isinstance(value, list):
        text = "[\n" + ",\n".join(json.dumps(v, sort_keys=True, separators=(",", ":")) for v in value) + "\n]\n"
    else:
        text = json.dumps(value, indent=rng.choice(INDENTS), ensure_ascii=rng.random() < 0.8)
    data = text.encode("utf-8", "surrogatepass")
    return resum({**good, name: data}, digest=rng.random() < 0.7, rng=rng), True


def lists(rng: random.Random, good: Files) -> tuple[Files, bool]:
    """A pack with a quarantine list, which is changed or gone, or of which the manifest says something else."""
    name = rng.choice([QUARANTINE, QUARANTINE, MANIFEST])
    kind = rng.randrange(4)
    if kind == 0:
        return {**LISTED, name: accident(rng, LISTED[name])}, False
    if kind == 1:
        data = accident(rng, LISTED[name])
    elif kind == 2 and name == QUARANTINE:
        return resum({k: v for k, v in LISTED.items() if k != name}, digest=True, rng=rng), True
    else:
        data = json.dumps(scramble(rng, json.loads(LISTED[name]))).encode("utf-8", "surrogatepass")
    return resum({**LISTED, name: data}, digest=True, rng=rng), True


def edits(rng: random.Random, good: Files) -> tuple[Files, bool]:
    """Attacks on the text of a shard, sums and digest put right where that can be."""
    name = rng.choice(SHARDS)
    text = good[name].decode()
    old, new = rng.choice(EDITS)
    places = [found.start() for found in re.finditer(re.escape(old), text)]
    if places:
        at = rng.choice(places)
        text = text[:at] + new + text[at + len(old) :]
    return resum({**good, name: text.encode()}, digest=rng.random() < 0.8, rng=rng), True


EDITS = [
    ('"rank":0', '"rank":0,"rank":1'),
    ('"rank":0', '"rank":NaN'),
    ('"rank":0', '"rank":-0'),
    ('"rank":0', '"rank":00'),
    ('"rank":0', '"rank":1'),
    ('"block_q":64', '"block_q":64,"block_q":128'),
    ('"block_q":64', '"block_q":1e400'),
    ('"block_q":64', '"block_q":' + "9" * 5000),
    ('"block_q":64', '"block_q":' + "9" * 19),
    ('"block_q":64', '"block_q":64.0'),
    ('"block_q":64', '"block_q":"}"'),
    ('"block_q":64', '"block_q":"\\"},\\"device\\":\\"x"'),
    ('"block_q":64', '"block_q":{"device":"x"}'),
    ('"config":{', '"config":{"device":"x",'),
    ('"config":{', '"config":{"a":{},"b":[' + "[" * 1200 + "]" * 1200 + "],"),
    ('"config":{', '"config":{"zz":1,'),
    ('"config":{', '"config":{},"config":{'),
    ("toy/v1", "toy/v1 "),
    ("toy/v1", "tay/v1"),
    ("t=1024", "t=2048"),
    ('"state":"winner"', '"state":"champion"'),
    ('"state":"winner"', '"state":"winner","colour":"green"'),
    ('"samples":30', '"samples":-1'),
    ('"gain_ppm":500000', '"gain_ppm":-500000'),
    ('"kernel":"alpha"', '"kernel":"../alpha"'),
    ('"kernel":"alpha"', '"kernel":"beta"'),
    (",\n", ","),
    (",\n", "\n"),
    ("\n]", "]"),
    ("{", "{ "),
    ("}", "}}"),
    ("[\n", "\ufeff[\n"),
    ("[\n", "[" * 20_000),
]


def paths(rng: random.Random, good: Files) -> tuple[bytes, bool]:
    """A zip with an entry that should not be: a path that leaves the pack, a link, a second file of one name."""
    buffer = io.BytesIO()
    evil = rng.choice(NAMES)
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in good.items():
            archive.writestr(zipfile.ZipInfo(name), data)
        info = zipfile.ZipInfo("x")
        info.filename = evil  # Past what the class puts right.
        info.external_attr = rng.choice([0o120777, 0o100644, 0o040755, 0o010644, 0o020644, 0]) << 16
        kind = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
        content = rng.choice([b"/etc/passwd", b"", bytes(20_000)])
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            archive.writestr(info, content, kind)
    data = buffer.getvalue()
    return (accident(rng, data) if rng.random() < 0.3 else data), False


NAMES = [
    *(
        "../evil",
        "/etc/passwd",
        "shards/../../evil",
        "..\\evil",
        "C:\\evil",
        "shards/./x",
        ".hidden",
        "a\0b",
        "é",
        "",
        "/",
    ),
    *(
        "shards/",
        "manifest.json",
        "SHA256SUMS",
        "SHA256SUMS.sig",
        "notes.txt",
        "x" * 300,
        "shards//x",
        "con",
        "a b",
    ),
]


def extras(rng: random.Random, good: Files) -> tuple[Files, bool]:
    """A file more, less, under another name, or signatures that are none."""
    kind = rng.randrange(5)
    name = rng.choice(sorted(good))
    if kind == 0:
        files = {**good, rng.choice(NAMES): b"x"}
    elif kind == 1:
        files = {k: v for k, v in good.items() if k != name}
    elif kind == 2:
        files = {(rng.choice(NAMES) if k == name else k): v for k, v in good.items()}
    else:
        line = f"ed25519 {'a' * 64} {'b' * 128}\n".encode()
        return {
            **good,
            SIGNED: accident(rng, line) if kind == 3 else line * rng.randrange(4),
        }, False
    return (resum(files, digest=True, rng=rng), True) if rng.random() < 0.5 else (files, False)


def sums(rng: random.Random, good: Files) -> tuple[Files, bool]:
    """Sums of other files, in other spellings."""
    lines = good[SUMS].splitlines(keepends=True)
    kind = rng.randrange(5)
    if kind == 0:
        rng.shuffle(lines)
    elif kind == 1:
        lines.append(rng.choice(lines))
    elif kind == 2:
        lines.remove(rng.choice(lines))
    elif kind == 3:
        lines = [line.upper() if rng.random() < 0.5 else line for line in lines]
    else:
        lines = [line.replace(b"  ", rng.choice([b" ", b" *", b"\t", b"  ./"])) for line in lines]
    return {**good, SUMS: b"".join(lines)}, False


KINDS: dict[str, tuple[int, Callable[..., tuple[Files | bytes, bool]]]] = {
    "flipped file": (20, flip_file),
    "flipped zip": (20, flip_zip),
    "flipped, sums put right": (18, flip_and_sum),
    "quarantine lists": (4, lists),
    "wrong values, sums put right": (20, values),
    "attacks on the text, sums put right": (10, edits),
    "paths and links in a zip": (3, paths),
    "files more or less": (3, extras),
    "sums": (2, sums),
}
