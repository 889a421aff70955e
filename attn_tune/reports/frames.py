"""DataFrames that answer a question each. Numbers stay numbers here: nanoseconds, ratios, counts."""

import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pandas as pd

from attn_tune.kernels.registry import find_kernel
from attn_tune.kernels.staleness import is_stale
from attn_tune.ops import registry
from attn_tune.schema import Decision, Grade, Rule, Status, config_to_json
from attn_tune.schema.trial import count_words
from attn_tune.schema.words import counted

# Rows of failures in a table, characters of a reason in it, and the regret above which times were noisy.
SHOWN = 20
REASON = 160
NOISY = 0.05
# Rows that a remark on a table names.
_NAMED = 4
_TIE = "no config is faster than the untuned one beyond noise, so that one stays."
_TIE_WITHOUT_UNTUNED = "the untuned config was not right, and this one is not faster than all others beyond noise."
_RULES = {
    Rule.SEARCH: "its case is not finished, no final has decided. `attn-tune sweep` goes on with it.",
}
_STALE = Grade.STALE.value
_STALE_WORDS = (
    "the kernel's source here is not the one that was measured. "
    "Sweep again, with --no-resume where it was swept before."
)

SUMMARY = (
    "point",
    "direction",
    "device",
    "kernel",
    "deterministic",
    "config",
    "median_ns",
    "heuristic_ns",
    "speedup",
    "regret_bound",
    "worst_error",
    "features",
    "tflops",
    "tb_s",
    "bandwidth",
    "rule",
    "stale",
    "samples",
    "trials",
    "rank",
    "signature",
)
IMPORTED = (
    "point",
    "direction",
    "device",
    "kernel",
    "config",
    "median_ns",
    "state",
    "pack",
    "version",
    "rank",
    "signature",
)


def summary(decisions: Iterable[Decision], names: Mapping[str, str] = {}) -> pd.DataFrame:
    """One row a decision: what won, against what, how surely.

    ``names`` are grid points by signature text. ``tflops`` counts the plain algorithm's operations
    (``Op.flops``), so it compares kernels, not multipliers; ``tb_s`` the fewest bytes (``Op.bytes_moved``), and
    ``bandwidth`` is their share of the device's peak, above 1 for what caches hold. None where an op is not installed,
    or a peak not known. ``stale`` says that the source of the kernel here is not the one that was measured, None where
    the kernel is not installed. Directions come in the op's order.
    """
    decisions = list(decisions)
    names = {**short_signatures(d.signature.text for d in decisions), **names}
    rows = [
        {
            "point": names[decision.signature.text],
            "direction": decision.direction,
            "device": str(decision.device),
            "kernel": decision.kernel.rpartition("/")[2],
            "deterministic": _is_deterministic(decision),
            "config": config_to_json(decision.config),
            "median_ns": decision.median_ns,
            "heuristic_ns": decision.heuristic_ns,
            "speedup": decision.gain,
            "regret_bound": decision.regret_bound,
            "worst_error": decision.worst_error,
            "features": decision.features,
            **_rates(decision),
            "rule": str(decision.rule),
            "stale": is_stale(decision.kernel, decision.environment),
            "samples": decision.samples,
            "trials": decision.trials,
            "rank": decision.rank,
            "signature": decision.signature.text,
        }
        for decision in decisions
    ]
    frame = pd.DataFrame(rows, columns=list(SUMMARY))
    return (
        # A count stays one where that of another row is unknown.
        frame.assign(_order=[_order(decision) for decision in decisions], features=frame["features"].astype("Int64"))
        .sort_values(["point", "_order", "device", "rank", "kernel"], kind="stable")
        .drop(columns="_order")
        .reset_index(drop=True)
    )


def status_counts(trials: pd.DataFrame) -> pd.DataFrame:
    """The number of trials by kernel, direction and status; a column for each status that occurs.

    ``trials`` needs the columns ``kernel``, ``direction`` and ``status``.
    """
    if trials.empty:
        return pd.DataFrame(columns=["kernel", "direction", "trials"])
    counts = pd.crosstab([trials["kernel"], trials["direction"]], trials["status"])
    statuses = sorted(counts.columns, key=lambda status: (status != Status.OK, status))
    counts = counts[statuses]
    counts.insert(0, "trials", counts.sum(axis=1))
    return counts.reset_index().rename_axis(columns=None)


def occurring(counts: pd.DataFrame) -> pd.DataFrame:
    """``status_counts`` of some rows without statuses that none of them has."""
    return counts.loc[:, [name for name in counts if any(value != 0 for value in counts[name])]]


def counts_in_words(counts: pd.DataFrame) -> str:
    """The sums of ``status_counts`` as ``count_words`` says them."""
    by_status = {status: sum(map(int, counts[status])) for status in Status if status in counts}
    return f"{counted(sum(by_status.values()), 'trial')}: {count_words(by_status)}"


def left_out(counts: pd.DataFrame, kernels: Collection[str]) -> str:
    """The end of a sentence on ``status_counts`` whose table has no rows of ``kernels``."""
    trials = sum(map(int, counts.loc[counts["kernel"].isin(list(kernels)), "trials"]))
    return f"; {trials} of these, of kernels that cannot run here, are not in the table" if trials else ""


def failures(trials: pd.DataFrame) -> pd.DataFrame:
    """The reasons why configs failed, counted by kernel, direction, status and first line, the commonest first.

    ``trials`` needs the columns ``kernel``, ``direction``, ``status`` and ``reason``.
    """
    keys = ["kernel", "direction", "status", "reason"]
    failed = trials.loc[~trials["status"].isin([s for s in Status if s.is_fine]), keys]
    reasons = [str(reason).strip().split("\n")[0] for reason in failed["reason"]]
    groups = failed.assign(reason=reasons).value_counts(keys).reset_index(name="trials")
    groups = groups.sort_values(["trials", *keys], ascending=[False, *[True] * len(keys)])
    return groups.reset_index(drop=True)


def commonest_failure(failed: pd.DataFrame) -> dict[str, Any]:
    """Kernel, direction and status that most of ``failures`` have, their number, and the commonest reason of these.

    Refusals count only where nothing else went wrong.
    """
    rows: list[dict[str, Any]] = failed.to_dict("records")
    rows = [row for row in rows if not Status(row["status"]).is_refused] or rows
    # Reasons with figures in them are all different.
    kind = operator.itemgetter("kernel", "direction", "status")
    numbers: Counter[Any] = Counter()
    for row in rows:
        numbers[kind(row)] += row["trials"]
    most, number = numbers.most_common(1)[0]
    return next(row for row in rows if kind(row) == most) | {"trials": number}


def shortened(failed: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The first ``SHOWN`` rows of ``failures`` with reasons of at most ``REASON`` characters, and how many others."""
    first = failed.head(SHOWN)
    reasons = [r if len(r) <= REASON else r[: REASON - 3] + "..." for r in first["reason"]]
    return first.assign(reason=reasons), len(failed) - len(first)


def refused_kernels(trials: pd.DataFrame) -> set[str]:
    """The kernels that support nothing of what ``trials`` (columns ``kernel`` and ``status``) asked of them."""
    tried = trials.loc[~trials["status"].isin([s for s in Status if s.is_refused]), "kernel"]
    return set(trials["kernel"]) - set(tried)


def imported(rows: pd.DataFrame, names: Mapping[str, str]) -> pd.DataFrame:
    """The rows of imported packs, of the database's frame ``imported``; ``names`` as for ``summary``."""
    names = {**short_signatures(rows["signature"]), **names}
    points = [names[text] for text in rows["signature"]]
    short = [kernel.rpartition("/")[2] for kernel in rows["kernel"]]
    return rows.assign(point=points, kernel=short).loc[:, list(IMPORTED)].reset_index(drop=True)


def remarks(winners: pd.DataFrame) -> dict[str, str]:
    """Explanations of some columns of a table of ``summary``, by column, where needed."""
    lines = {}
    rules, has_untuned = list(winners["rule"]), list(winners["heuristic_ns"].notna())
    ties = {_TIE: True, _TIE_WITHOUT_UNTUNED: False}
    causes = [
        (Rule.TIE, words, [rule == Rule.TIE and has == wanted for rule, has in zip(rules, has_untuned, strict=True)])
        for words, wanted in ties.items()
    ]
    causes += [(rule, words, [one == rule for one in rules]) for rule, words in _RULES.items()]
    found = [f"{rule} ({_named(winners, rows)}): {words}" for rule, words, rows in causes if any(rows)]
    if found:
        lines["rule"] = "\n".join(found)
    old = _are_stale(winners)
    if any(old):
        lines["stale"] = f"{_STALE} ({_named(winners, old)}): {_STALE_WORDS}"
    noisy = sum(float(bound) > NOISY for bound in winners["regret_bound"].dropna())
    if noisy:
        lines["regret_bound"] = (
            "regret <=: by how much the best config seen may be faster (95 % sure). "
            f"It is above {NOISY:.0%} in {counted(noisy, 'row')}, because times were noisy: "
            "sweep again with --no-resume while nothing else runs."
        )
    return lines


def marked(winners: pd.DataFrame) -> pd.DataFrame:
    """A table of ``summary`` for people: where no row is stale, the column of that holds nothing."""
    return winners if any(_are_stale(winners)) else winners.assign(stale="")


def _are_stale(winners: pd.DataFrame) -> list[bool]:
    """Whether each row is stale; one whose kernel is not installed here is not known to be."""
    return [value is True for value in winners["stale"]]


def _named(winners: pd.DataFrame, chosen: list[bool]) -> str:
    """The ``chosen`` rows of ``winners`` by what tells them from the others: a narrow table may not show the cause."""
    keys = ["point", "direction"]
    for more in ("kernel", "device"):
        if more in winners and winners.duplicated(keys).any():
            keys.append(more)
    rows = [" ".join(map(str, row)) for row in winners.loc[chosen, keys].itertuples(index=False)]
    rest = len(rows) - _NAMED
    return ", ".join(rows[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def coverage(
    decisions: Iterable[Decision],
    wanted: Mapping[str, str],
    directions: Collection[str] | None = None,
) -> pd.DataFrame:
    """Whether each of the ``wanted`` points (names by signature text) is decided, by direction and device.

    What a search alone chose, without a final, is not. A point without any decision is a row whose device is empty. A
    direction that the point's op does not have is missing, and one that no op has is no column. ``directions`` narrows
    the columns.
    """
    decisions = list(decisions)
    own = {text: _directions(text, decisions) for text in wanted}
    columns = [
        name
        for name in dict.fromkeys(name for names in own.values() for name in names)
        if directions is None or name in directions
    ]
    found: dict[str, dict[str, set[str]]] = {}
    for decision in decisions:
        devices = found.setdefault(decision.signature.text, {})
        decided = devices.setdefault(str(decision.device), set())
        if decision.rule is not Rule.SEARCH:
            decided.add(decision.direction)
    rows = []
    for text, name in wanted.items():
        for device, have in sorted(found.get(text, {"": set()}).items()):
            cells = {d: d in have if d in own[text] else None for d in columns}
            rows.append({"point": name, "device": device} | cells)
    return pd.DataFrame(rows, columns=["point", "device", *columns])


def _order(decision: Decision) -> int:
    """The place of the direction among its op's; 0 if the op is not installed or has no such direction."""
    known = registry.get_op(decision.op).directions if decision.op in registry.op_names() else ()
    return known.index(decision.direction) if decision.direction in known else 0


def _directions(text: str, decisions: Iterable[Decision]) -> tuple[str, ...]:
    """The directions of a problem; of an op that is not installed, those that were decided."""
    name = text.partition("/")[0]
    if name in registry.op_names():
        return registry.directions_of(text)
    return tuple({d.direction: 0 for d in decisions if d.op == name})


def short_signatures(texts: Iterable[str]) -> dict[str, str]:
    """Texts of signatures for one table: without the op where all are of one op."""
    texts = tuple(texts)
    if len({text.partition(" ")[0] for text in texts}) > 1:
        return {text: text for text in texts}
    return {text: text.partition(" ")[2] for text in texts}


def _is_deterministic(decision: Decision) -> bool | None:
    """Whether equal runs give equal bits, as the kernel declares and as was seen; None for one not installed here."""
    if decision.repeatable is False:
        return False
    spec = find_kernel(decision.kernel)
    search = spec.searches.get(decision.direction) if spec else None
    return not search.nondeterministic if search else None


def _rates(decision: Decision) -> dict[str, float | None]:
    """Operations and bytes a second, in units of 1e12, and the share of the device's bandwidth."""
    if decision.op not in registry.op_names() or not decision.median_ns:
        return dict.fromkeys(("tflops", "tb_s", "bandwidth"))
    op = registry.get_op(decision.op)
    problem, peak = op.from_signature(decision.signature), decision.device.bandwidth_gbs
    flops, size = (count(problem, decision.direction) for count in (op.flops, op.bytes_moved))
    tb_s = size / (decision.median_ns * 1e3)
    return {
        "tflops": flops / (decision.median_ns * 1e3),
        "tb_s": tb_s,
        "bandwidth": tb_s * 1e3 / peak if peak else None,
    }
