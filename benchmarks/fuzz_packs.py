"""Mutated packs, in one process: never a crash, never a wrong config accepted.

Each pack is a good one after one or two accidents or attacks: flipped bits, cuts, repeats; wrong values with every sum
put right; paths that climb, links, duplicate keys, NaN, deep nesting, huge numbers. What must hold of each:

- reading it returns a pack or raises ``IntegrityError``, and nothing else;
- bytes whose sums were not put right are read only if they still hold what the good pack held;
- what is read from a pack whose sums *were* put right is what an independent reading of its JSON says, row for row,
  and its decision digest is that of these rows: a pack can lie about its evidence, never about what it holds;
- the quick reading of a shard and the one that parses say the same.
"""

import argparse
import collections
import dataclasses
import hashlib
import io
import json
import random
import re
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from attn_tune.db.pack_files import files_of_rows
from attn_tune.db.pack_writer import zip_bytes
from attn_tune.runtime.archive import MANIFEST, SIGNED, SUMS
from attn_tune.runtime.packs import Pack, pack_from_files, read_pack
from attn_tune.runtime.rows import Row, row_from_json
from attn_tune.runtime.strict_json import parse_json
from attn_tune.runtime.tables import plain_table
from attn_tune.schema import Device, Environment, IntegrityError

type Files = dict[str, bytes]

DEVICE = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132, power_watts=700)
ENVIRONMENT = Environment(jax="1", jaxlib="1", triton="1", source_hash="b2:aa")
SHARDS = ("shards/sm_90/toy.fwd.json", "shards/sm_90/toy.bwd.json")
LIMIT_S = 2.0
# Mostly none: that encoder is the quick one.
INDENTS = (*(None,) * 9, 1)


def good_pack() -> Files:
    """Three forward rows by two kernels and one backward row with parts."""

    def row(direction: str, t: int, kernel: str, rank: int, config: dict[str, Any]) -> Row:
        return Row(
            op="toy",
            direction=direction,
            device=DEVICE.digest,
            signature=f"toy/v1 b=1 t={t} dtype=bfloat16",
            kernel=kernel,
            rank=rank,
            config=config,
            state="winner",
            env=ENVIRONMENT.digest,
            median_ns=1000,
            heuristic_ns=1500,
            gain_ppm=500000,
            regret_ppm=-4,
            samples=30,
        )

    rows = [
        row("fwd", 1024, "alpha", 0, {"block_q": 64, "warps": 4}),
        row("fwd", 1024, "beta", 1, {}),
        row("fwd", 2048, "alpha", 0, {"block_q": 128, "warps": 8, "mode": "a b", "split": None}),
        row("bwd", 1024, "alpha", 0, {"dkv": {"block": 64}, "dq": {"block": 32}}),
    ]
    return files_of_rows(
        rows,
        name="good",
        version="1",
        devices={DEVICE.digest: DEVICE},
        environments={ENVIRONMENT.digest: ENVIRONMENT},
        contracts={"toy/alpha": 1, "toy/beta": 1},
        gate={"passed": True},
    )


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
    """What the decision digest covers, spelled out without the reader's help."""
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
    if rng.random() < 0.5 and isinstance(value, list):
        text = (
            "[\n"
            + ",\n".join(json.dumps(v, sort_keys=True, separators=(",", ":")) for v in value)
            + "\n]\n"
        )
    else:
        text = json.dumps(value, indent=rng.choice(INDENTS), ensure_ascii=rng.random() < 0.8)
    data = text.encode("utf-8", "surrogatepass")
    return resum({**good, name: data}, digest=rng.random() < 0.7, rng=rng), True


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
    "flipped, sums put right": (22, flip_and_sum),
    "wrong values, sums put right": (20, values),
    "attacks on the text, sums put right": (10, edits),
    "paths and links in a zip": (3, paths),
    "files more or less": (3, extras),
    "sums": (2, sums),
}
GOOD = good_pack()
ZIP = zip_bytes(GOOD)


def read(mutant: Files | bytes, scratch: Path) -> Pack | None:
    """The pack, or None if it is refused. Anything but an IntegrityError is a failure."""
    try:
        if isinstance(mutant, dict):
            return pack_from_files(mutant)
        scratch.write_bytes(mutant)
        return read_pack(scratch, signed=False)
    except IntegrityError as error:
        if "\n" in str(error) or len(str(error)) > 3000:
            raise RuntimeError(
                f"an error is one line of some length, not {error!s:.9000}"
            ) from error
        return None


def check(pack: Pack, mutant: Files | bytes, good: Pack, *, summed: bool) -> None:
    """What must hold of a pack that was accepted."""
    if not summed:
        # A zip has bytes that say nothing (dates, comments), and the order of sums is free: the content is what it was.
        assert list(pack.rows) == list(good.rows), "rows differ from the good pack's"
        assert pack.devices == good.devices
        assert pack.environments == good.environments
        assert pack.decision_digest == good.decision_digest
        return
    assert isinstance(mutant, dict)
    manifest = json.loads(mutant[MANIFEST])
    expected, lines = [], []
    for shard in manifest["shards"]:
        op, direction = shard["path"].split("/")[-1].split(".")[:2]
        items = json.loads(mutant[shard["path"]], object_pairs_hook=no_duplicates)
        known = {f.name for f in dataclasses.fields(Row)} - {"op", "direction"}
        for item in items:
            assert item["device"] in manifest["devices"]
            assert item["env"] in manifest["environments"]
            given = {k: v for k, v in item.items() if k in known}
            expected.append(Row(op=op, direction=direction, **given))
            lines.append(line_of(item, shard["path"]))
    assert list(pack.rows) == expected, "rows differ from an independent reading"
    assert [type_of(r) for r in pack.rows] == [type_of(r) for r in expected]
    assert manifest["decision_digest"] == pack.decision_digest == digest_of(lines)
    answers = [row.key for row in pack.rows]
    assert len(set(answers)) == len(answers), "one problem answered twice"


def type_of(row: Row) -> str:
    """Tells 1 from True and 1.0, which are equal."""
    return repr(sorted(row.config.items(), key=str)) + repr((row.rank, row.samples, row.median_ns))


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of the independent reading."""
    found = dict(pairs)
    assert len(found) == len(pairs), "a duplicate key was accepted"
    return found


def check_readers_agree(files: Files) -> None:
    """Where the quick reader reads a shard, the one that parses reads the same."""
    for path in SHARDS:
        data = files.get(path, b"")
        if data is GOOD[path]:
            continue
        direction = path.split(".")[-2]
        table = plain_table(data, op="toy", direction=direction)
        if table is None:
            continue
        items = parse_json(data, path)
        rows = [row_from_json(item, op="toy", direction=direction) for item in items]
        assert [table.row(i) for i in range(len(table))] == rows, "the readers differ"
        assert list(table.lines) == [line_of(item, path) for item in items], "the digests differ"


def fuzz(
    count: int, seed: int, *, say: Callable[[str], None] = lambda line: None
) -> collections.Counter[tuple[str, str]]:
    """Reads ``count`` mutants; raises at the first that breaks a promise, with what is needed to see it again."""
    rng = random.Random(seed)
    good = pack_from_files(GOOD)
    kinds = [name for name, (weight, _) in KINDS.items() for _ in range(weight)]
    tally: collections.Counter[tuple[str, str]] = collections.Counter()
    slowest = 0.0
    start = time.perf_counter()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        scratch = Path(folder) / "mutant.atpack"
        for number in range(count):
            kind = rng.choice(kinds)
            mutant, summed = KINDS[kind][1](rng, GOOD)
            before = time.perf_counter()
            try:
                pack = read(mutant, scratch)
                if summed and isinstance(mutant, dict):
                    check_readers_agree(mutant)
                if pack is not None:
                    check(pack, mutant, good, summed=summed)
            except BaseException:
                say(f"FAILED at {number} of seed {seed}: {kind}: {mutant!r:.2000}")
                raise
            slowest = max(slowest, time.perf_counter() - before)
            same = pack is not None and pack.decision_digest == good.decision_digest
            tally[
                kind, "refused" if pack is None else "accepted, same" if same else "accepted, valid"
            ] += 1
            if number % 50_000 == 0:
                say(f"{number} after {time.perf_counter() - start:.0f} s")
    assert slowest < LIMIT_S * 10, f"one pack took {slowest:.1f} s"
    tally["slowest", "ms"] = round(1e3 * slowest)
    return tally


def table(
    tally: collections.Counter[tuple[str, str]], count: int, seed: int, seconds: float
) -> str:
    """The counts as Markdown."""
    lines = [
        f"{count} mutated packs, seed {seed}, one process, {seconds:.0f} s: 0 crashes, 0 wrong configs accepted.",
        f"The slowest was read in {tally['slowest', 'ms']} ms.",
        "",
        "| mutation | packs | refused | accepted: decides as the good pack | accepted: another valid pack |",
        "|---|---|---|---|---|",
    ]
    for kind in KINDS:
        refused, same, valid = (
            tally[kind, what] for what in ("refused", "accepted, same", "accepted, valid")
        )
        lines.append(f"| {kind} | {refused + same + valid} | {refused} | {same} | {valid} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    start = time.perf_counter()
    tally = fuzz(args.count, args.seed, say=lambda line: print(line, flush=True))
    text = table(tally, args.count, args.seed, time.perf_counter() - start)
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
