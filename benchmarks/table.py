"""Prints recorded results as a Markdown table.

    python benchmarks/table.py benchmarks/results/flash_attention_h200_*.json

Those of ``tuning_speed.py`` as it prints them itself, the files' rows one after the other. Of
``flash_attention_peers.py``: rows are points and directions, columns implementations: TFLOP/s, and time
relative to cuDNN in the same run; a result that is wrong by the project's rule says so. Files that have what the
implementation named auto did are followed by the tables that the benchmark prints itself, of all files together.
"""

import json
import sys
from pathlib import Path
from typing import Any

import peers_report
from tuning_rows import KIND, markdown

BASE = "jax.nn cuDNN"


def main(paths: list[str]) -> int:
    """Prints the table of the files at ``paths``, which must be of one kind."""
    reports = [json.loads(Path(path).read_text()) for path in paths]
    # Older files of peers do not say what they are.
    kinds = {report.get("kind", peers_report.KIND) for report in reports}
    if len(kinds) != 1:
        print("usage: table.py RESULTS.json ..., all of one benchmark", file=sys.stderr)
        return 2
    if kinds == {KIND}:
        print(markdown(row for report in reports for row in report["rows"]))
    else:
        files = [report["rows"] for report in reports]
        _peers(files)
        if any(row["implementation"] == peers_report.AUTO for rows in files for row in rows):
            print(f"\n{peers_report.markdown(files)}")
    return 0


def _peers(files: list[list[dict[str, Any]]]) -> None:
    """Merges the files' rows; the first file to have an implementation of a point wins."""
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for rows in files:
        times = {
            (row["point"], row["direction"]): row["median_us"]
            for row in rows
            if row["implementation"] == BASE and "median_us" in row
        }
        for row in rows:
            key = (row["point"], row["direction"])
            cells.setdefault(key, {}).setdefault(row["implementation"], _cell(row, times.get(key)))
    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    print("| point | direction | " + " | ".join(names) + " |")
    print("|---|---|" + "---|" * len(names))
    for (point, direction), row in cells.items():
        print(f"| {point} | {direction} | " + " | ".join(row.get(n, "") for n in names) + " |")


def _cell(row: dict[str, Any], base_us: float | None) -> str:
    if "unsupported" in row:
        return "cannot"
    if "failed" in row:
        return "failed"
    text = f"{row['tflops']:.0f}"
    if base_us:
        text += f" ({base_us / row['median_us']:.2f}x)"
    if row.get("error_ratio") is None:
        return f"{text} not compared"
    return text + (" wrong" if row["error_ratio"] > 1 else "")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
