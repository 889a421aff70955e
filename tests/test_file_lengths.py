"""Files stay short enough to be read at once."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 400
ROOMS = ("attn_tune", "tests", "benchmarks", "docs", "examples", "tools")


def test_no_file_is_above_400_lines():
    files = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    lengths = {path.relative_to(ROOT).as_posix(): path.read_bytes().count(b"\n") for path in files}
    assert len(lengths) > 400
    assert {name: n for name, n in lengths.items() if n > MOST_LINES} == {}
