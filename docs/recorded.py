"""Blocks of the pages made from recorded files: the README's results, the peers of serving, sizes of shipped packs."""

import json
import math
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "benchmarks" / "results" / "h200"
# Points of the grid ``peers`` in the README, by head dim: causal, 4 x 4096 tokens.
POINTS = {64: "h64-causal/4x4k", 128: "h128-causal/4x4k", 256: "h256-causal/4x4k"}
_BESIDE = ("cudnn_paged", "cudnn_contiguous", "read")
DIRECTIONS = {"fwd": "forward", "fwd+bwd": "forward and backward"}


def results() -> str:
    """The table of three points beside cuDNN, and means over the grid, with the extra ``fa4`` and without."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import peers_report
    from peers import AUTO, CUDNN, WITHOUT_FA4

    from attn_tune.reports.tables import markdown_table

    by_key = peers_report.races([_rows("fa4_peers")])
    table = []
    for head_dim, point in POINTS.items():
        cells = [f"{head_dim}"]
        for direction, name in (("fwd", WITHOUT_FA4), ("fwd+bwd", WITHOUT_FA4), ("fwd+bwd", AUTO)):
            race = by_key[point, direction]
            # Where the extra changes nothing, both are one.
            ours, theirs = race[name] if "median_us" in race[name] else race[AUTO], race[CUDNN]
            ratio = theirs["median_us"] / ours["median_us"]
            cells.append(f"{ours['tflops']:.0f} against {theirs['tflops']:.0f} ({ratio:.2f}x)")
        table.append(cells)
    points = len({point for point, _ in by_key})
    lines = [
        "Beside the fastest right implementation of others, cuDNN, FlashAttention-4 or FlashAttention-3, over all "
        f"{points}\nproblems:\n"
    ]
    for words, name in (("with the extra", AUTO), ("without it", WITHOUT_FA4)):
        found = [peers_report.versus(race, name) or peers_report.versus(race) for race in by_key.values()]
        beaten = [v for v in found if v is not None and v.best is not None]
        means = []
        for direction, part in DIRECTIONS.items():
            ratios = [1 / v.ratio for v in beaten if v.auto["direction"] == direction]
            means.append(f"{part} {_mean(ratios):.2f} times as fast")
        slower = sum(v.is_slower for v in beaten)
        lines.append(f"- {words}: {', '.join(means)};\n  slower beyond noise in {slower} of {len(beaten)} rows.")
    head = ["head dim", *DIRECTIONS.values(), "the same with `fa4`"]
    return markdown_table(head, table) + "\n" + "\n".join(lines) + f"\n\n{_serving()}\n"


def _serving() -> str:
    decoding = [row for row in _rows("serving") if "cudnn_paged" in row["us"]]
    ratios = [row["us"]["cudnn_paged"] / row["us"]["auto"] for row in decoding]
    fastest = max(row["tb_s"]["auto"] for row in _rows("serving"))
    writing = [row["us"]["xla"] / row["us"]["auto"] for row in _rows("append")]
    return (
        "Serving ([all rows](docs/serving.md#measured)):\n\n"
        f"- `paged_decode` reads a paged cache at up to {fastest:.1f} TB/s. It is {_mean(ratios):.2f} times as fast as "
        f"cuDNN's paged attention\n  (geometric mean of {len(ratios)} rows, {min(ratios):.2f} to {max(ratios):.2f}).\n"
        f"- `paged_append` writes new tokens {min(writing):.1f} to {max(writing):.1f} times as fast as scatters of XLA."
    )


# Kinds of cache in the record of decoding, and their words in the table.
CACHES = {
    "page64": "pages of 64",
    "page16": "pages of 16",
    "float8": "float8, pages of 64",
    "uneven": "uneven lengths (`exp`)",
    "half": "half of the heads",
    "int8": "int8, scales of tokens",
    "uni": "uneven lengths (`uni`)",
    "one": "one long sequence (`one`)",
}


def decoding() -> str:
    """The table of every recorded row of decoding; the README's mean is over those beside cuDNN's paged attention."""
    from attn_tune.reports.tables import markdown_table

    table = []
    for row in _rows("serving"):
        cache, size = re.split("[/-]", row["point"].partition(".")[2], maxsplit=1)
        times = (f"{us[name]:.1f}" if name in us else "" for us in [row["us"]] for name in _BESIDE)
        table.append([CACHES[cache], size, f"{row['us']['auto']:.1f}", f"{row['tb_s']['auto']:.2f}", *times])
    names = ["cache", "batch x new x length", "here", "TB/s", "cuDNN paged", "cuDNN, contiguous", "read"]
    return markdown_table(names, table)


def packs() -> str:
    """The packs of the wheel, with their rows and bytes."""
    from attn_tune.packs.reader import read_pack
    from attn_tune.reports.tables import markdown_table

    table = []
    for folder in sorted(path.parent for path in (ROOT / "attn_tune" / "packs" / "shipped").glob("*/manifest.json")):
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        table.append([f"`{folder.name}`", f"{len(read_pack(folder).rows)}", f"{size / 1000:.0f}"])
    return markdown_table(["pack", "rows", "kilobytes"], table)


def serving_peers() -> str:
    """Tables of serving beside FlashInfer and torch, and the geometric means."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import serving_join

    found = (RECORDS / f"{name}.json" for name in ("serving", "ragged", "append", "cascade", "serving_torch"))
    return serving_join.markdown(json.loads(path.read_text()) for path in found if path.exists()) + "\n"


def flash_attention_3() -> str:
    """The table of FlashAttention-3 over pages, by its number of splits, and the least speed of ours."""
    from attn_tune.reports.tables import markdown_table

    rows = _rows("serving_fa3")
    sides = list(dict.fromkeys(name for row in rows for name in row["us"] if name.startswith("fa3")))
    table, speeds = [], []
    for row in rows:
        us, point = row["us"], row["point"].removeprefix("llama3-8b-")
        times = (f"{us[name]:.1f}" if name in us else "" for name in sides)
        speeds.append(min(us[name] for name in sides if name in us) / us["auto"])
        table.append([point, f"{us['auto']:.1f}", *times, f"{speeds[-1]:.2f}"])
    names = ["point", "ours, us", *(side.replace("_", " ") for side in sides), "speed"]
    end = (
        f"Ours is {_mean(speeds):.2f} times as fast as the best number of splits (geometric mean; {min(speeds):.2f} to "
    )
    return f"{markdown_table(names, table)}\n{end}{max(speeds):.2f}).\n"


def screen(name: str) -> str:
    """A section of the recorded terminal as a block; that of a command begins with the command, a log is shortened."""
    from record_terminal import LOG, OUT, SHOWN, STATUS, SWEEP, WATCH, WATCHED, sections

    commands = {SHOWN: SWEEP, WATCHED: WATCH, STATUS: WATCH.replace(" --watch", "")}
    prompt = [f"$ attn-tune {commands[name]}"] if name in commands else []
    lines = sections(OUT.read_text(encoding="utf-8"))[name].splitlines()
    if name == LOG:
        lines = [*lines[:4], "...", *lines[-2:]]
    return "\n".join(["```", *prompt, *lines, "```", ""])


def _rows(name: str) -> list[dict[str, Any]]:
    return json.loads((RECORDS / f"{name}.json").read_text())["rows"]


def _mean(ratios: Iterable[float]) -> float:
    found = [math.log(ratio) for ratio in ratios]
    return math.exp(sum(found) / len(found))
