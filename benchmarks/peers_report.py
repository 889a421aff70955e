"""Report of ``flash_attention_peers.py``: auto and the best other, Triton and cuDNN, the cost of features."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peers import AUTO, CUDNN, EARLIER, FA4, OURS, TRITON, WITHOUT_FA4

from attn_tune.db.decide.statistics import MIN_GAIN, compare_paired
from attn_tune.schema.decision import MIN_GAIN_NS

KIND = "flash_attention_peers"
BOTH = "fwd+bwd"

type Row = Mapping[str, Any]
# Rows of one race, by implementation.
type Race = Mapping[str, Row]

_FEATURES = ("left", "right", "mask", "cap", "sinks", "bias", "seg", "len", "pos", "drop")


@dataclass(frozen=True, kw_only=True)
class Versus:
    """Auto and the fastest right implementation of others at one point and direction.

    Attributes:
      ratio: time of auto over time of the best, from paired rounds; ``low`` and ``high`` hold 95 %.
      is_slower: by more than 1 % and 0.5 us, and the whole interval says so. Less is asked than in a sweep, where eight
        rounds at least must agree: this table is to be hard on auto.
      best: None where no other implementation is right; then the ratios are not a number.
    """

    auto: Row
    best: Row | None = None
    ratio: float = math.nan
    low: float = math.nan
    high: float = math.nan
    is_slower: bool = False


def is_right(row: Row) -> bool:
    """Whether it ran, and its results were compared and found right."""
    return "median_us" in row and row.get("error_ratio") is not None and row["error_ratio"] <= 1


def races(files: Iterable[Sequence[Row]]) -> Mapping[tuple[str, str], Race]:
    """By point and direction; of a point that several files have, the first file's."""
    found: dict[tuple[str, str], dict[str, Row]] = {}
    for rows in files:
        mine: dict[tuple[str, str], dict[str, Row]] = {}
        for row in rows:
            mine.setdefault((row["point"], row["direction"]), {})[row["implementation"]] = row
        found = mine | found
    return found


def versus(race: Race, ours: str = AUTO) -> Versus | None:
    """Auto, or what ``ours`` names instead, and the others of ``race``; None where it was not timed."""
    auto = race.get(ours)
    if auto is None or "median_us" not in auto:
        return None
    others = [r for name, r in race.items() if not name.startswith(OURS) and is_right(r)]
    if not others:
        return Versus(auto=auto)
    best = min(others, key=lambda row: row["median_us"])
    pairs = list(zip(auto["samples_ns"], best["samples_ns"], strict=True))
    seed = f"{auto['point']} {auto['direction']}"
    found = compare_paired(pairs, seed=seed)
    low = found.quantile(0.025)
    is_more = found.ratio > 1 + MIN_GAIN and found.difference_ns > MIN_GAIN_NS
    return Versus(
        auto=auto,
        best=best,
        ratio=found.ratio,
        low=low,
        high=found.quantile(0.975),
        is_slower=is_more and low > 1,
    )


def markdown(files: Iterable[Sequence[Row]]) -> str:
    """All tables and the summary."""
    by_key = races(files)
    found = {key: v for key, race in by_key.items() if (v := versus(race)) is not None}
    unmeasured = sorted({f"{point} ({d})" for point, d in by_key.keys() - found.keys()})
    parts = [
        "### auto and the fastest right implementation of others",
        _versus_table(found),
        _summary(list(found.values()), _faster_and_wrong(found, by_key), unmeasured),
        "### auto without the extra `fa4`, on rows where it takes a kernel of it otherwise",
        _versus_table({key: v for key, race in by_key.items() if (v := versus(race, WITHOUT_FA4)) is not None}),
        "### our Triton kernel and cuDNN: cuDNN's time over ours",
        _ratios(by_key, TRITON, CUDNN, plain=True),
        "### FlashAttention-4: the time of its own table over that of our configs for it",
        _ratios(by_key, FA4, f"{FA4} default"),
        "### auto of an earlier version: its time over that of auto",
        _ratios(by_key, AUTO, EARLIER),
        "### what a feature costs: auto's time a visible pair over that of the plain row",
        _feature_table(by_key),
    ]
    return "\n\n".join(part for part in parts if part)


def _versus_table(found: Mapping[tuple[str, str], Versus]) -> str:
    lines = []
    for (point, direction), v in found.items():
        mine = [point, direction, f"{v.auto['median_us']:.1f}", f"{v.auto['tflops']:.0f}"]
        mine.append(v.auto.get("kernel", ""))
        wrong = "" if is_right(v.auto) else ", auto is wrong"
        if v.best is None:
            lines.append([*mine, "none", "", "", "", f"no peer{wrong}"])
            continue
        verdict = "slower" if v.is_slower else "faster" if v.high < 1 else "tie"
        lines.append(
            [
                *mine,
                v.best["implementation"],
                f"{v.best['median_us']:.1f}",
                f"{v.ratio:.3f}",
                f"{v.low:.3f}-{v.high:.3f}",
                verdict + wrong,
            ]
        )
    head = ["point", "direction", "auto us", "TFLOP/s", "kernel", "best other", "us"]
    return _table([*head, "auto / best", "95 %", "auto is"], lines)


def _faster_and_wrong(found: Mapping[tuple[str, str], Versus], by_key: Mapping[tuple[str, str], Race]) -> list[str]:
    """Lists peers left out for wrong results though they were faster, so that the report names them."""
    return [
        f"{point} {direction}: {row['implementation']} (error {row['error_ratio']:.1f})"
        for (point, direction), v in found.items()
        for row in by_key[point, direction].values()
        if not row["implementation"].startswith(OURS) and "median_us" in row
        if row.get("error_ratio", 0) > 1 and row["median_us"] < v.auto["median_us"]
    ]


def _summary(found: Sequence[Versus], faster_and_wrong: Sequence[str], unmeasured: Sequence[str]) -> str:
    against = [v for v in found if v.best is not None]
    lines = []
    for direction in dict.fromkeys(v.auto["direction"] for v in against):
        ratios = [v.ratio for v in against if v.auto["direction"] == direction]
        lines.append(f"{direction}: geometric mean of auto / best over {len(ratios)} rows {_mean(ratios):.3f}")
    slower = [f"{_name(v)} ({v.ratio:.3f})" for v in against if v.is_slower]
    lines.append(f"auto is slower beyond noise in {len(slower)} of {len(against)}: {', '.join(slower) or 'none'}")
    hair = [f"{_name(v)} ({v.ratio:.3f})" for v in against if v.low > 1 and not v.is_slower]
    lines.append(f"slower by 1 % or less: {', '.join(hair) or 'none'}")
    alone = [_name(v) for v in found if v.best is None]
    lines.append(f"no other implementation is right: {', '.join(alone) or 'none'}")
    lines.append(f"others that are wrong and faster than auto: {', '.join(faster_and_wrong) or 'none'}")
    wrong = [_name(v) for v in found if v.auto.get("error_ratio", 0) > 1]
    lines.append(f"auto is wrong: {', '.join(wrong) or 'none'}")
    if unmeasured:
        lines.append(f"auto was not measured: {', '.join(unmeasured)}")
    return "\n".join(f"- {text}" for text in lines)


def _ratios(by_key: Mapping[tuple[str, str], Race], mine: str, other: str, *, plain: bool = False) -> str:
    """Time of ``other`` over that of ``mine``: a line a row, with ``plain`` of plain rows, and the mean a head dim."""
    lines, relative = [], {}
    for point in dict.fromkeys(point for point, _ in by_key):
        ours, theirs = (_times(by_key, point, name) for name in (mine, other))
        values = _values(by_key, point)
        if not ours or not theirs or (plain and _is_special(values)):
            continue
        cells = []
        for part in ("fwd", "bwd", BOTH):
            known = part in ours and part in theirs
            cells.append(f"{theirs[part] / ours[part]:.3f}" if known else "")
            if known:
                key = (values["h"], part)
                relative.setdefault(key, []).append(theirs[part] / ours[part])
        lines.append([point, *cells])
    for dim in dict.fromkeys(dim for dim, _ in relative):
        cells = [_mean(relative.get((dim, part), [])) for part in ("fwd", "bwd", BOTH)]
        lines.append([f"head dim {dim}, geometric mean"] + ["" if c != c else f"{c:.3f}" for c in cells])
    return _table(["point", "fwd", "bwd = fwd+bwd - fwd", BOTH], lines)


def _feature_table(by_key: Mapping[tuple[str, str], Race]) -> str:
    points = list(dict.fromkeys(point for point, _ in by_key))
    values = {point: _values(by_key, point) for point in points}
    lines = []
    for point in points:
        if not _is_special(values[point]):
            continue
        plain = _plain_row(point, values)
        if plain is None:
            continue
        mine, base = (_times(by_key, name, AUTO) for name in (point, plain))
        pairs = [_pairs(by_key, name) for name in (point, plain)]
        cells = [
            f"{mine[part] / pairs[0] / (base[part] / pairs[1]):.3f}"
            if part in mine and part in base and all(pairs)
            else ""
            for part in ("fwd", "bwd")
        ]
        if any(cells):
            lines.append([point, plain, *cells])
    return _table(["point", "plain row", "fwd", "bwd = fwd+bwd - fwd"], lines)


def _plain_row(point: str, values: Mapping[str, Mapping[str, str]]) -> str | None:
    """The row without features of the same heads, head dim and mask: as many key heads and as long, where there is."""
    mine = values[point]
    same = ("n", "h", "causal")

    def is_plain(other: Mapping[str, str]) -> bool:
        return not any(f in other for f in _FEATURES) and other["t"] == other["s"]

    def distance(name: str) -> tuple[bool, float, bool]:
        other = values[name]
        far = abs(math.log2(int(other["s"]) / int(mine["s"])))
        return other["k"] != mine["k"], far, other["dtype"] != "bfloat16"

    found = [
        name
        for name, other in values.items()
        if name != point and is_plain(other) and all(other.get(f) == mine.get(f) for f in same)
        if other["dtype"] == "bfloat16" and other["k"] in (mine["k"], mine["n"])
    ]
    return min(found, key=distance, default=None)


def _times(by_key: Mapping[tuple[str, str], Race], point: str, name: str) -> dict[str, float]:
    """Median microseconds: ``fwd``, ``fwd+bwd``, and ``bwd`` as the difference; none that is wrong or not timed."""
    found = {}
    for direction in ("fwd", BOTH):
        row = by_key.get((point, direction), {}).get(name)
        if row is not None and is_right(row):
            found[direction] = row["median_us"]
    if found.keys() == {"fwd", BOTH}:
        found["bwd"] = found[BOTH] - found["fwd"]
    return found


def _values(by_key: Mapping[tuple[str, str], Race], point: str) -> dict[str, str]:
    """The signature's fields, as text; those at their defaults are left out."""
    row = next(row for (name, _), race in by_key.items() if name == point for row in race.values())
    return dict(word.split("=", 1) for word in row["signature"].split()[1:])


def _pairs(by_key: Mapping[tuple[str, str], Race], point: str) -> int:
    rows = (row for (name, _), race in by_key.items() if name == point for row in race.values())
    return next(rows).get("pairs", 0)


def _is_special(values: Mapping[str, str]) -> bool:
    plain = values["t"] == values["s"] and values["k"] == values["n"]
    return not plain or values["dtype"] != "bfloat16" or any(f in values for f in _FEATURES)


def _name(v: Versus) -> str:
    return f"{v.auto['point']} {v.auto['direction']}"


def _mean(ratios: Sequence[float]) -> float:
    """Geometric."""
    return math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    if not lines:
        return "nothing"
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
