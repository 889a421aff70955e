"""From records of the tuners to rows of a report, and from rows to a Markdown table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gpu_usage import Sample, idle_share
from tuning_record import Record, Step

KIND = "tuning_speed"
BOTH = "fwd+bwd"
# Wall time of a sweep's worker by phase.
PHASES = ("prepare", "compile", "validate", "measure")
NOTHING = "-"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One tuner in one direction, or the sum of both.

    ``wall_s`` is the clock of the tuner's process; ``wall_with_start_s`` that of the process that started it, from the
    start to the exit, None where one process tuned more than this row. ``gpu_idle`` is a share of ``wall_s``.
    """

    tuner: str
    direction: str = ""
    configs: int = 0
    wall_s: float | None = None
    wall_with_start_s: float | None = None
    statuses: Mapping[str, int] = field(default_factory=dict)
    phases_s: Mapping[str, float] = field(default_factory=dict)
    gpu_idle: float | None = None
    best_us: float | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    failed: str = ""

    @property
    def rate(self) -> float | None:
        """Configs a second, from the call to the end."""
        return _per(self.configs, self.wall_s)

    @property
    def rate_with_start(self) -> float | None:
        """Configs a second, the start of the process counted."""
        return _per(self.configs, self.wall_with_start_s)

    def to_json(self) -> dict[str, Any]:
        """All fields, and the rates."""
        rates = {"configs_per_s": self.rate, "configs_per_s_with_start": self.rate_with_start}
        return {**asdict(self), **rates}


def make_rows(tuner: str, record: Record, samples: Sequence[Sample], process_s: float) -> list[Row]:
    """The rows of one process: one a step, and one more that says why there are no more."""
    alone = len(record.steps) == 1
    rows = [_row(tuner, step, samples, process_s if alone else None) for step in record.steps]
    if len(rows) > 1 and not record.failed:
        rows.append(add_up(rows, process_s))
    if record.failed:
        rows.append(Row(tuner=tuner, failed=record.failed))
    return rows


def _row(tuner: str, step: Step, samples: Sequence[Sample], process_s: float | None) -> Row:
    return Row(
        tuner=tuner,
        direction=step.direction,
        configs=step.configs,
        wall_s=step.wall_s,
        wall_with_start_s=process_s,
        statuses=step.statuses,
        phases_s=step.phases_s,
        gpu_idle=idle_share(samples, step.start_s, step.end_s),
        best_us=step.best_us,
        detail=step.detail,
    )


def add_up(rows: Sequence[Row], process_s: float | None = None) -> Row:
    """Both directions of one tuner. ``process_s``: of the one process, if there was only one."""
    if process_s is None:
        process_s = _sum(row.wall_with_start_s for row in rows)
    idle_s = _sum(_times(row.gpu_idle, row.wall_s) for row in rows)
    wall_s = _sum(row.wall_s for row in rows)
    names = dict.fromkeys(name for row in rows for name in row.statuses)
    phases = dict.fromkeys(name for row in rows for name in row.phases_s)
    return Row(
        tuner=rows[0].tuner,
        direction=BOTH,
        configs=sum(row.configs for row in rows),
        wall_s=wall_s,
        wall_with_start_s=process_s,
        statuses={name: sum(row.statuses.get(name, 0) for row in rows) for name in names},
        phases_s={name: sum(row.phases_s.get(name, 0.0) for row in rows) for name in phases},
        gpu_idle=_per(idle_s, wall_s),
    )


def markdown(rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows of a report (``Row.to_json``) as a Markdown table. What a tuner does not tell is ``-``."""
    rows = list(rows)
    phases = dict.fromkeys([*PHASES, *(name for row in rows for name in row["phases_s"])])
    head = ["tuner", "direction", "configs", "wall s", "configs/s"]
    head += ["with start s", "with start configs/s", "ok", "not ok", "best us"]
    head += [*(f"{name} s" for name in phases), "GPU idle", "remark"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    lines += [f"| {' | '.join(_cells(row, list(phases)))} |" for row in rows]
    return "\n".join(lines)


def _cells(row: Mapping[str, Any], phases: Sequence[str]) -> list[str]:
    if row["failed"]:
        return [row["tuner"], *[""] * (10 + len(phases)), row["failed"].replace("|", "/")]
    statuses = dict(row["statuses"])
    right = statuses.pop("ok", 0)
    wrong = ", ".join(f"{count} {name}" for name, count in statuses.items())
    idle = row["gpu_idle"]
    return [
        row["tuner"],
        row["direction"],
        str(row["configs"]),
        _number(row["wall_s"], 1),
        _number(row["configs_per_s"], 2),
        _number(row["wall_with_start_s"], 1),
        _number(row["configs_per_s_with_start"], 2),
        str(right),
        wrong,
        _number(row["best_us"], 1),
        *(_number(row["phases_s"].get(name), 1) for name in phases),
        NOTHING if idle is None else f"{idle:.0%}",
        "",
    ]


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _per(count: float | None, seconds: float | None) -> float | None:
    return count / seconds if seconds and count is not None else None


def _times(share: float | None, seconds: float | None) -> float | None:
    return None if share is None or seconds is None else share * seconds


def _sum(values: Iterable[float | None]) -> float | None:
    known = list(values)
    return None if any(value is None for value in known) else sum(v for v in known if v is not None)
