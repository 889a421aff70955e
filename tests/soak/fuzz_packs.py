"""Mutated packs, in one process: never a crash, never a wrong config accepted.

    python -m tests.soak.fuzz_packs --seconds 600 --out fuzz_packs.md

Each pack is a good one after one or two accidents or attacks: flipped bits, cuts, repeats; wrong values with every sum
put right; paths that climb, links, duplicate keys, NaN, deep nesting, huge numbers. What must hold of each:

- reading it returns a pack or raises ``IntegrityError``, and nothing else;
- bytes whose sums were not put right are read only if they still hold what the good pack held;
- what is read from a pack whose sums *were* put right is what an independent reading of its JSON says, row for row,
  and its decision digest is that of these rows: a pack can lie about its evidence, never about what it holds;
- lookups, which prove only the rows they use, find in a sound pack what a search through all rows finds, and use no
  row of a broken one that is not sound by itself (``fuzz_lookups.py``).
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import logging
import math
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from attn_tune.packs.archive import MANIFEST, QUARANTINE
from attn_tune.packs.reader import Pack, open_pack, pack_from_files
from attn_tune.packs.rows import Row
from attn_tune.schema import IntegrityError
from tests.soak.fuzz_good import GOOD, Files
from tests.soak.fuzz_lookups import check_lookups, type_of
from tests.soak.fuzz_mutations import KINDS, digest_of, line_of

LIMIT_S = 2.0


def open_it(mutant: Files | bytes, scratch: Path) -> Pack | None:
    """The pack as lookups open it, or None if it is refused."""
    if isinstance(mutant, dict):
        return unless_refused(lambda: pack_from_files(mutant, proven=False))
    scratch.write_bytes(mutant)
    return unless_refused(lambda: open_pack(scratch, signed=False))


def prove(opened: Pack) -> Pack | None:
    """``opened`` once all of it is proven, as those read it who use more than a row; None if it is refused."""
    return unless_refused(lambda: opened if opened.rows is not None else None)


def unless_refused[T](read: Callable[[], T]) -> T | None:
    """Returns the result of ``read``, or None for an IntegrityError; any other exception is a failure."""
    try:
        return read()
    except IntegrityError as error:
        if "\n" in str(error) or len(str(error)) > 3000:
            raise RuntimeError(f"an error is one line of some length, not {error!s:.9000}") from error
        return None


def check(pack: Pack, mutant: Files | bytes, good: Pack, *, summed: bool) -> None:
    """Checks a pack that the reader accepted."""
    if not summed:
        # A zip has bytes that say nothing (dates, comments), and the order of sums is free: the content is what it was.
        assert list(pack.rows) == list(good.rows), "rows differ from the good pack's"
        assert pack.devices == good.devices
        assert pack.environments == good.environments
        assert pack.decision_digest == good.decision_digest
        listed = isinstance(mutant, dict) and QUARANTINE in mutant
        assert len(pack.quarantine.entries) == (2 if listed else 0)
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
    check_list(pack, mutant)
    answers = [row.key for row in pack.rows]
    assert len(set(answers)) == len(answers), "one problem answered twice"


def check_list(pack: Pack, mutant: Files) -> None:
    """The quarantine list that was read is the one that is there: nothing of it is lost, and nothing matches more."""
    items = []
    if QUARANTINE in mutant:
        items = json.loads(mutant[QUARANTINE], object_pairs_hook=no_duplicates)["never"]
    entries = pack.quarantine.entries
    assert len(entries) == len(items)
    for entry, item in zip(entries, items, strict=True):
        for name in ("op", "kernel", "direction", "device", "reason"):
            assert getattr(entry, name) == item.pop(name, "")
        assert (entry.config, entry.signature) == (
            item.pop("config", {}),
            item.pop("signature", ""),
        )
        assert entry.reason
        assert not item, "a condition was ignored"


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of the independent reading."""
    found = dict(pairs)
    assert len(found) == len(pairs), "a duplicate key was accepted"
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Errors only: each broken row would be a warning of its own."""
    logger = logging.getLogger("attn_tune")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def fuzz(
    count: int,
    seed: int,
    *,
    seconds: float = math.inf,
    say: Callable[[str], None] = lambda line: None,
) -> collections.Counter[tuple[str, str]]:
    """Reads ``count`` mutants, or as many as ``seconds`` allow; counts them by kind and fate.

    Raises at the first that breaks a promise, and says what is needed to see it again.
    """
    rng = random.Random(seed)
    good = pack_from_files(GOOD)
    kinds = [name for name, (weight, _) in KINDS.items() for _ in range(weight)]
    tally: collections.Counter[tuple[str, str]] = collections.Counter()
    slowest = 0.0
    start = time.perf_counter()
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() else None
    with quiet(), tempfile.TemporaryDirectory(dir=base) as folder:
        scratch = Path(folder) / "mutant.atpack"
        for number in range(count):
            if time.perf_counter() - start > seconds:
                break
            kind = rng.choice(kinds)
            mutant, summed = KINDS[kind][1](rng, GOOD)
            before = time.perf_counter()
            try:
                opened = open_it(mutant, scratch)
                pack = opened and prove(opened)
                if pack is not None:
                    check(pack, mutant, good, summed=summed)
                if opened is not None:
                    files = mutant if isinstance(mutant, dict) else GOOD
                    check_lookups(opened, files, is_sound=pack is not None)
                    if pack is None:
                        tally[kind, "opened"] += 1
            except BaseException:
                say(f"FAILED at {number} of seed {seed}: {kind}: {mutant!r:.2000}")
                raise
            slowest = max(slowest, time.perf_counter() - before)
            same = pack is not None and pack.decision_digest == good.decision_digest
            tally[kind, "refused" if pack is None else "accepted, same" if same else "accepted, valid"] += 1
            if number % 50_000 == 0:
                say(f"{number} after {time.perf_counter() - start:.0f} s")
    assert slowest < LIMIT_S * 10, f"one pack took {slowest:.1f} s"
    tally["slowest", "ms"] = round(1e3 * slowest)
    return tally


def table(tally: collections.Counter[tuple[str, str]], seed: int, seconds: float) -> str:
    """The counts as Markdown."""
    fates = ("refused", "accepted, same", "accepted, valid")
    packs = {kind: sum(tally[kind, fate] for fate in fates) for kind in KINDS}
    lines = [
        f"{sum(packs.values())} mutated packs, seed {seed}, one process, {seconds:.0f} s: 0 crashes, "
        "0 wrong configs accepted.",
        f"The slowest was read in {tally['slowest', 'ms']} ms.",
        "",
        "| mutation | packs | refused | of these, rows that are sound may answer | accepted: decides as the good pack "
        "| accepted: another valid pack |",
        "|---|---|---|---|---|---|",
    ]
    for kind in KINDS:
        refused, same, valid = (tally[kind, fate] for fate in fates)
        lines.append(f"| {kind} | {packs[kind]} | {refused} | {tally[kind, 'opened']} | {same} | {valid} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no mutant after so long")
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    start = time.perf_counter()
    tally = fuzz(args.count, args.seed, seconds=args.seconds, say=lambda line: print(line, flush=True))
    text = table(tally, args.seed, time.perf_counter() - start)
    print(text)
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
