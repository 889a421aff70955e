"""The environment variables of the package: eight, all in one table of the docs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = re.compile(r"ATTN_TUNE_[A-Z_]+")


def documented() -> set[str]:
    page = (ROOT / "docs" / "environment-variables.md").read_text()
    return set(re.findall(r"^\| `(ATTN_TUNE_[A-Z_]+)` \|", page, re.MULTILINE))


def named_in(folder: str, pattern: str) -> set[str]:
    return {name for path in (ROOT / folder).rglob(pattern) for name in NAME.findall(path.read_text())}


def test_the_table_has_eight_variables():
    assert len(documented()) == 8


def test_the_package_reads_no_other_variable():
    assert named_in("attn_tune", "*.py") <= documented()


def test_every_documented_variable_is_read():
    assert documented() <= named_in("attn_tune", "*.py")


def test_pages_name_no_other_variable():
    assert named_in("docs", "*.md") <= documented()
