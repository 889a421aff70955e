"""The same database, exported by two processes that have nothing else in common: are the bytes the same?

They differ in locale, time zone, hash seed, umask, working directory, home, columns and the order of their
environment; each writes a folder, a file and a wheel.
"""

import argparse
import hashlib
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXPORT = """
import os, sys
os.umask(int(sys.argv[3], 8))
from attn_tune.db import Database, export_pack
from attn_tune.packs.wheel import export_wheel
from pathlib import Path
target = Path(sys.argv[2])
with Database.open(sys.argv[1], read_only=True) as database:
    for name in ("pack", "pack.atpack"):
        export_pack(database, target / name, name="same", version="1", ungated=sys.argv[4] or None)
export_wheel(target / "pack", target)
"""
WORLDS = {
    "one": ({"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "1"}, "077"),
    "other": (
        {
            "TZ": "America/Anchorage",
            "LC_ALL": "tr_TR.UTF-8",
            "PYTHONHASHSEED": "4242",
            "COLUMNS": "7",
            "PYTHONUTF8": "1",
        },
        "000",
    ),
}


def export(database: Path, target: Path, world: str, ungated: str) -> dict[str, str]:
    """Sums of what one process writes, by path."""
    variables, umask = WORLDS[world]
    home = target / "home"
    home.mkdir(parents=True)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        **variables,
    }
    # The database is read-only to both, and under another path to each.
    copy = home / f"{world}.db"
    copy.write_bytes(database.read_bytes())
    subprocess.run(
        [sys.executable, "-c", EXPORT, copy, target / "out", umask, ungated],
        env=environment,
        cwd=home,
        check=True,
    )
    found = {}
    for path in sorted((target / "out").rglob("*")):
        if path.is_file():
            assert stat.S_ISREG(path.lstat().st_mode)
            found[str(path.relative_to(target / "out"))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def compare(database: Path, folder: Path, ungated: str = "") -> dict[str, str]:
    """The sums that both agree on.

    Raises:
      AssertionError: they do not.
    """
    one, other = (export(database, folder / world, world, ungated) for world in WORLDS)
    assert one, "nothing was written"
    assert one == other, {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("database", type=Path)
    parser.add_argument("--no-gate", default="", metavar="REASON")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sums = compare(args.database, Path(folder), args.no_gate)
    lines = [f"{len(sums)} files, the same bytes from both processes:"]
    lines += [f"{name}: {variables}, umask {umask}" for name, (variables, umask) in WORLDS.items()]
    lines += [f"{digest}  {name}" for name, digest in sums.items()]
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
