"""Cells of the coverage matrix: the state of each problem, direction and device, and the reason of it."""

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pandas as pd

from attn_tune.kernels.registry import find_kernel
from attn_tune.ops import registry
from attn_tune.reports.page.data import rows_of
from attn_tune.runtime.lookup.question import unsupported
from attn_tune.runtime.lookup.text_distance import near_texts
from attn_tune.schema import Decision, Device, Rule, Status, UnsupportedError, UsageError
from attn_tune.schema.config import config_from_dict

COLUMNS = ("op", "signature", "direction", "device", "state", "kernel", "gain", "note")


class State(enum.StrEnum):
    """The state of one problem, direction and device."""

    MEASURED = "measured"
    """A config was measured, proven and decided for."""
    IMPORTED = "imported"
    """A row of an imported pack answers; nothing was measured here."""
    PREDICTED = "predicted"
    """A config was compiled and its time predicted; nothing was run."""
    NEIGHBOUR = "neighbour"
    """Not measured; the winner of a near problem answers, with its config adapted."""
    UNDECIDED = "undecided"
    """Something was measured, and nothing is decided: it is unproven, or the sweep has not ended."""
    FAILED = "failed"
    """Everything that was tried failed."""
    REFUSED = "refused"
    """Every kernel refuses the problem on the device."""
    UNTUNED = "untuned"
    """Nothing was tried, and no near problem is stored: the untuned configs of the kernels answer."""


def cells(
    decisions: Iterable[Decision],
    trials: pd.DataFrame,
    imported: pd.DataFrame,
    wanted: Collection[str] = (),
    directions: Collection[str] | None = None,
) -> pd.DataFrame:
    """One row a (problem, direction, device): its state, and in ``note`` why.

    ``decisions`` are the winners, ``trials`` and ``imported`` the database's frames of these names, ``wanted`` the
    texts of problems that are asked for whether or not anything is stored. Devices are those of the decisions, trials
    and rows.
    """
    decisions = list(decisions)
    done = (d for d in decisions if d.rule is not Rule.SEARCH)
    won = {(d.signature.text, d.direction, str(d.device)): d for d in done}
    counts = _counts(trials)
    rows = {(r.signature, r.direction, r.device): r for r in rows_of(imported)}
    keys = [*won, *counts, *rows]
    devices = sorted({str(key[2]) for key in keys})
    texts = sorted({*(key[0] for key in keys), *wanted})
    known = {str(d.device): d.device for d in decisions}
    near = _Neighbours(decisions, known)
    found = []
    for text in texts:
        for direction in _directions(text, keys, directions):
            for device in devices:
                key = (text, direction, device)
                state = _state(key, won, counts, rows, near)
                found.append(
                    {"op": text.partition("/")[0], "signature": text, "direction": direction, "device": device, **state}
                )
    return pd.DataFrame(found, columns=list(COLUMNS))


def _directions(text: str, keys: Iterable[tuple[str, ...]], wanted: Collection[str] | None) -> list[str]:
    op = text.partition("/")[0]
    if op in registry.op_names():
        own = registry.directions_of(text)
    else:
        own = tuple(dict.fromkeys(key[1] for key in sorted(keys) if key[0].partition("/")[0] == op))
    return [name for name in own if wanted is None or name in wanted]


def _counts(trials: pd.DataFrame) -> dict[tuple[str, str, str], pd.DataFrame]:
    """The trials of each (problem, direction, device)."""
    return dict(iter(trials.groupby(["signature", "direction", "device"], sort=True)))  # type: ignore[arg-type]


def _state(key: Any, won: Mapping, counts: Mapping, rows: Mapping, near: "_Neighbours") -> dict[str, Any]:
    if (decision := won.get(key)) is not None:
        return _cell(State.MEASURED, f"{decision.rule}, {decision.trials} trials", decision.kernel, decision.gain)
    if (row := rows.get(key)) is not None:
        return _cell(State.IMPORTED, f"pack {row.pack} {row.version}, {row.state}", row.kernel)
    group = counts.get(key)
    if group is not None:
        tried = _tried(group)
        if tried["state"] in (State.PREDICTED, State.UNDECIDED):
            return tried
        return near.answer(key) or tried
    return near.answer(key) or _cell(State.UNTUNED, "nothing was tried; the untuned configs of the kernels answer")


def _cell(state: State, note: str, kernel: str = "", gain: float | None = None) -> dict[str, Any]:
    return {"state": str(state), "note": note, "kernel": kernel, "gain": gain}


def _tried(group: pd.DataFrame) -> dict[str, Any]:
    """The state of a problem with trials and no decision."""
    statuses = Counter(Status(status) for status in group["status"])
    if any(status.is_measured for status in statuses):
        return _cell(State.UNDECIDED, "measured and not decided: unproven, or the sweep has not ended")
    if any(status.is_offline for status in statuses):
        predicted = group.loc[group["status"] == Status.PREDICTED].sort_values("predicted_ns", kind="stable")
        kernel = str(predicted["kernel"].iloc[0]) if len(predicted) else ""
        return _cell(State.PREDICTED, f"{sum(statuses.values())} configs compiled, {len(predicted)} predicted", kernel)
    failed = group.loc[group["status"].isin([s for s in Status if s.is_failure])]
    if len(failed):
        return _cell(State.FAILED, _reasons(failed))
    return _cell(State.REFUSED, _reasons(group))


def _reasons(group: pd.DataFrame, most: int = 4) -> str:
    """The first lines of the reasons, each with the kernels that gave it."""
    by_reason: dict[str, set[str]] = {}
    for kernel, reason in zip(group["kernel"], group["reason"], strict=True):
        line = str(reason).strip().split("\n")[0][:160]
        by_reason.setdefault(line, set()).add(str(kernel).partition("/")[2])
    parts = [f"{', '.join(sorted(kernels))}: {line}" for line, kernels in sorted(by_reason.items())]
    more = [f"and {len(parts) - most} other reasons"] if len(parts) > most else []
    return "; ".join([*parts[:most], *more])


class _Neighbours:
    """The winners of near problems, as a lookup would adapt them."""

    def __init__(self, decisions: Iterable[Decision], devices: Mapping[str, Device]):
        self._devices = devices
        self._by_case: dict[tuple[str, str, str], dict[str, Decision]] = {}
        for d in decisions:
            self._by_case.setdefault((d.op, d.direction, str(d.device)), {})[d.signature.text] = d

    def answer(self, key: tuple[str, str, str]) -> dict[str, Any] | None:
        """The cell of a problem that a neighbour answers; None where none does."""
        text, direction, device = key
        op = text.partition("/")[0]
        stored = self._by_case.get((op, direction, device))
        if not stored or op not in registry.op_names():
            return None
        contract = registry.get_op(op)
        try:
            asked = contract.parse_signature(text)
            problem = contract.from_signature(asked)
        except UsageError:
            return None
        for near in near_texts(sorted(stored), asked, contract.fields):
            decision = stored[near.text]
            if _can_adapt(contract, decision, problem, self._devices[device]):
                return _cell(State.NEIGHBOUR, f"the winner of {near.text}, adapted", decision.kernel)
        return None


def _can_adapt(op: Any, decision: Decision, problem: Any, device: Device) -> bool:
    """Whether the kernel of ``decision`` makes a config of it for ``problem`` that can run on ``device``."""
    spec = find_kernel(decision.kernel)
    if spec is None or unsupported(spec, problem, decision.direction, device):
        return False
    search = spec.searches[decision.direction]
    try:
        stored = config_from_dict(search.config, decision.config)
        config = search.adapt(op.from_signature(decision.signature), problem, device, stored)
    except (UsageError, UnsupportedError):
        return False
    return config is not None and not search.infeasible(problem, device, config)
