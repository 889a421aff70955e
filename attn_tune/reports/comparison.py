"""The comparison of two sweeps or packs as a DataFrame, as lines and as Markdown for a pull request."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from attn_tune.reports import tables
from attn_tune.schema.words import config_words, counted

COLUMNS = (
    "verdict",
    "op",
    "point",
    "direction",
    "device",
    "a_ns",
    "b_ns",
    "b_over_a",
    "low",
    "high",
    "chance",
    "basis",
    "changed",
    "reason",
    "needs",
    "bound",
    "a_kernel",
    "b_kernel",
    "a_config",
    "b_config",
    "signature",
)
DECIDED = ("worse", "better")
# Verdicts of one side alone, as people read them.
ONE_SIDE = {"only_a": "only in A", "only_b": "only in B"}


def frame(rows: Iterable[Mapping[str, Any]], names: Mapping[str, str]) -> pd.DataFrame:
    """One row a problem, in the order of ``rows``; ``names`` are grid points by signature text.

    Times are nanoseconds, ``b_over_a``, ``low`` and ``high`` are ratios, configs are JSON.
    """
    found = [{**row, "point": names.get(row["signature"], row["signature"])} for row in rows]
    made = pd.DataFrame(found, columns=list(COLUMNS))
    ratios = dict.fromkeys(("b_over_a", "low", "high", "chance", "bound"), "float64")
    return made.astype({"a_ns": "Int64", "b_ns": "Int64", **ratios})


def decided(compared: pd.DataFrame) -> pd.DataFrame:
    """The rows of ``frame`` whose verdict is better or worse."""
    return compared.loc[compared["verdict"].isin(DECIDED)]


def for_people(compared: pd.DataFrame) -> pd.DataFrame:
    """The columns of ``frame`` that people read: an interval in one, what changed in one."""
    shown = compared.loc[:, ["verdict", "point", "direction", "device", "a_ns", "b_ns", "b_over_a"]].copy()
    shown["verdict"] = [ONE_SIDE.get(verdict, verdict) for verdict in shown["verdict"]]
    shown["95 %"] = [interval(low, high) for low, high in zip(compared["low"], compared["high"], strict=True)]
    shown["change"] = [change(row) for row in compared.to_dict("records")]
    for name in ("basis", "reason", "needs"):
        shown[name] = compared[name]
    return shown


def interval(low: float, high: float) -> str:
    """Two bounds of a ratio, empty where they are unknown."""
    return "" if pd.isna(low) or pd.isna(high) else f"{low:.3f} to {high:.3f}"


def change(row: Mapping[str, Any]) -> str:
    """The other kernel or the other knobs that B chose; the choice itself where one side alone has one."""
    if row["verdict"] in ONE_SIDE:
        side = row["verdict"][-1]
        return f"{_short(row[f'{side}_kernel'])} {config_words(json.loads(row[f'{side}_config']))}"
    if row["a_kernel"] != row["b_kernel"]:
        return f"{_short(row['a_kernel'])} -> {_short(row['b_kernel'])}"
    before, after = _knobs(row["a_config"]), _knobs(row["b_config"])
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return ", ".join(f"{name} {before.get(name, '-')} -> {after.get(name, '-')}" for name in names)


def headline(summary: Mapping[str, Any]) -> str:
    """The sides, and the number of problems of each verdict that occurs."""
    found = summary["counts"].items()
    counts = ", ".join(f"{count} {ONE_SIDE.get(verdict, verdict)}" for verdict, count in found if count)
    return f"{summary['a']['name']} -> {summary['b']['name']}: {counts}"


def lines(summary: Mapping[str, Any]) -> list[str]:
    """Sentences about a comparison as a whole: counts, mean, choices, and the distance of the two sweeps."""
    found = [headline(summary)]
    if summary["mean"] is not None:
        found.append(f"B takes {summary['mean']:.3f} times A's time (geometric mean of the problems in both)")
    if changed := [f"another {what} for {counted(n, 'problem')}" for what, n in summary["changed"].items() if n]:
        found.append(f"B chose {' and '.join(changed)}")
    for shift in summary["shifts"]:
        programs = counted(shift["programs"], "program")
        noise = f"{100 * max(shift['noise'], summary['rule']['margin']):.1f} %"
        few = f"what the programs of other problems moved, at most {noise}: they are too few to know the noise"
        needed = noise if shift["is_known"] else few
        found.append(
            f"{shift['device']}: {programs} with one config, software and source in both took {shift['ratio']:.3f} "
            f"times A's time in B (median); a verdict needs more than {needed}"
        )
    if not summary["shifts"]:
        found.append("no program is the same in both, so nothing says how far the sweeps are apart: see --margin")
    return found


def markdown(compared: pd.DataFrame, summary: Mapping[str, Any]) -> str:
    """Markdown for a pull request: the verdicts, the slowest first, and everything else folded."""
    first, *rest = lines(summary)
    parts = [f"### {tables.markdown_text(first)}\n", *(f"{tables.markdown_text(line)}.\n" for line in rest)]
    shown = decided(compared)
    if not shown.empty:
        parts.append(tables.to_markdown(for_people(shown).drop(columns=["basis", "reason", "needs"])))
    undecided, alone = (
        compared.loc[compared["verdict"] == "undecided"],
        compared.loc[compared["verdict"].isin(list(ONE_SIDE))],
    )
    if not undecided.empty:
        parts.append(_folded(f"{len(undecided)} undecided", for_people(undecided).drop(columns=["verdict", "needs"])))
    if not alone.empty:
        table = for_people(alone).drop(columns=["b_over_a", "95 %", "basis", "reason", "needs"])
        parts.append(_folded(f"{len(alone)} in one alone", table.rename(columns={"change": "choice"})))
    return "\n".join(parts)


def _folded(title: str, table: pd.DataFrame) -> str:
    return f"<details><summary>{title}</summary>\n\n{tables.to_markdown(table)}\n</details>\n"


def _short(kernel: str) -> str:
    return kernel.rpartition("/")[2]


def _knobs(config: str) -> dict[str, Any]:
    """The knobs of a config in JSON, those of parts as ``part.knob``."""
    found: dict[str, Any] = {}
    for name, value in json.loads(config).items():
        found |= {f"{name}.{knob}": v for knob, v in value.items()} if isinstance(value, dict) else {name: value}
    return found
