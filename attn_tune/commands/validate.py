"""Check outputs and every gradient against the reference.

Without --grid, each op's samples (tiny problems, each with one feature) are used; where a kernel cannot take one, the
nearest coarser one that it takes. Nothing is stored. Exit code 3 if no problem could be run. Ctrl-C shows what was
validated until then.

Example: attn-tune validate --kernel xla --feature sinks
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.cases import Cases
from attn_tune.commands.shared.counting import counting
from attn_tune.commands.shared.exit_codes import FAILED
from attn_tune.schema import NoDataError, Status, UnsupportedError, UsageError, config_to_dict
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.kernels.spec import KernelSpec, Problem
    from attn_tune.ops.contract import Op
    from attn_tune.schema import Device
    from attn_tune.tuner.protocol import ConfigRef
    from attn_tune.tuner.run.executor import Executor


@options.grouped
def command(
    cases: Cases,
    feature: list[str] | None = options.option(
        None, "--feature", "FILTER", "Only features whose name contains this.", callback=options.not_blank
    ),
    config: str | None = options.option(
        None,
        "--config",
        "JSON",
        "This config instead of the untuned one; one kernel, one direction.",
    ),
    every: options.All = False,
    json: options.Json = False,
) -> None:
    import pandas as pd

    from attn_tune.tuner.run.executor import IsolatedExecutor

    if (cases.lengths or cases.point or cases.workload) and not cases.grid:
        raise UsageError("--lengths, --point and --workload are of the points of a grid; give --grid")
    if feature and cases.grid:
        raise UsageError("--feature is for the op's own problems; leave it out, or leave --grid out")
    specs = cases.kernels()
    ops = _ops(specs)
    ways = selection.directions(cases.direction, ops)
    given = _config(config, specs, ways)
    problems = _problems(ops, feature, cases)
    rows = []
    with IsolatedExecutor() as executor:
        device = executor.identify().device
        checks = [
            _Check(spec=spec, direction=way, label=label, problem=problem, is_fixed=bool(cases.grid))
            for spec, way in _searches(specs, ways)
            for label, (problem, useful) in problems[spec.op].items()
            if way in useful
        ]
        refs = [check.ref(device, given) for check in checks]
        executor.expect([ref for ref in refs if not isinstance(ref, str)], device)
        interrupted: KeyboardInterrupt | None = None
        try:
            with counting(sum(not isinstance(ref, str) for ref in refs), "checks") as begin:
                for check, ref in zip(checks, refs, strict=True):
                    if not isinstance(ref, str):
                        begin(f"{check.spec.id} {check.direction}", check.label)
                    rows.append(check.row(ref, executor, device))
        except KeyboardInterrupt as error:
            # What was validated until then is shown first.
            if not rows:
                raise
            interrupted = error
    if not any(problems.values()):
        raise UsageError(_nothing(ops, feature))
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    away = set() if json or every else selection.absent(specs, device)
    output.emit_formatted(
        frame.loc[~frame["kernel"].isin(list(away))],
        options.table_or_json(json),
        title=f"Validation on {device}",
        key="validations",
    )
    output.say_absent(away)
    if lacking := ", ".join(_lacking((spec for spec in specs if spec.id not in away), ways)):
        output.note(f"left out, not implemented: {lacking}")
    counts = ", ".join(f"{n} {status}" for status, n in frame["status"].value_counts().items())
    output.note(f"{counted(len(frame), 'check')}: {counts or 'none'}")
    if interrupted:
        output.note(f"not validated: {counted(len(checks) - len(rows), 'check')}")
        raise interrupted
    ran = {status for row in rows if not (status := Status(row["status"])).is_refused}
    if not ran:
        raise NoDataError(f"nothing was validated on {device}: {_first_reason(rows)}")
    if ran != {Status.OK}:
        raise typer.Exit(FAILED)


def _nothing(ops: "Iterable[Op]", feature: list[str] | None) -> str:
    """The reason why there is no problem: no sample has the feature, or the ops have none."""
    names = ", ".join(op.name for op in ops)
    if feature and any(op.samples for op in ops):
        return f"no sample of {names} has {' or '.join(feature)} in its name; leave --feature out to run all of them"
    return f"{names} has no samples; choose problems with --grid"


def _searches(specs: "tuple[KernelSpec, ...]", ways: tuple[str, ...]) -> "Iterator[tuple[KernelSpec, str]]":
    """The directions that each kernel implements."""
    return ((spec, way) for spec in specs for way in ways if way in spec.searches)


def _lacking(specs: "Iterable[KernelSpec]", ways: tuple[str, ...]) -> Iterator[str]:
    """The kernels that lack a direction of their op, each with what it lacks."""
    for (op, *_), spec in ((_ops([spec]), spec) for spec in specs):
        if absent := [way for way in ways if way in op.directions and way not in spec.searches]:
            yield f"{spec.id} {' and '.join(absent)}"


def _ops(specs: "Iterable[KernelSpec]") -> "list[Op]":
    from attn_tune.ops.registry import get_op

    return [get_op(name) for name in dict.fromkeys(spec.op for spec in specs)]


def _first_reason(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return (
            "the kernels do not implement the direction, or the grid's points are for another one; choose others "
            "with --kernel, --direction or --grid"
        )
    first = rows[0]
    return (
        f"of {counted(len(rows), 'check')} the kernels take none here; "
        f"{first['kernel']} refuses {first['problem']}: {first['reason']}"
    )


def _problems(
    ops: "Iterable[Op]", feature: list[str] | None, cases: Cases
) -> "dict[str, dict[str, tuple[Problem, tuple[str, ...]]]]":
    """The problems of each op by name, and the directions that are of use: of the grid, or its samples."""
    from attn_tune.ops.contract import load

    by_name = {op.name: op for op in ops}
    found: dict[str, dict[str, tuple[Problem, tuple[str, ...]]]] = {name: {} for name in by_name}
    if cases.grid:
        for point in cases.points():
            if op := by_name.get(point.op):
                name = selection.brief(point.name)
                found[op.name][name] = (op.from_signature(point.signature), point.ways)
        return found
    wanted = selection.words(feature)
    for name, op in by_name.items():
        if not op.samples:
            output.note(f"{name} has no samples; validate it with --grid")
            continue
        for label, problem in load(op.samples)().items():
            if not wanted or any(word in label for word in wanted):
                found[name][label] = (problem, op.directions_of(problem))
    return found


def _config(text: str | None, specs: "tuple[KernelSpec, ...]", ways: tuple[str, ...]) -> Mapping[str, Any] | None:
    if text is None:
        return None
    import json

    from attn_tune.schema import config_from_dict

    if len(specs) != 1 or len(ways) != 1:
        raise UsageError("--config needs exactly one --kernel and one --direction")
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--config is not JSON: {error}") from None
    return config_to_dict(config_from_dict(specs[0].searches[ways[0]].config, data))


_COLUMNS = ("kernel", "direction", "problem", "status", "output", "worst_error", "reason")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Check:
    """One kernel and direction on one problem, which may be made coarser unless it ``is_fixed``."""

    spec: "KernelSpec"
    direction: str
    label: str
    problem: "Problem"
    is_fixed: bool = False

    def ref(self, device: "Device", given: Mapping[str, Any] | None) -> "ConfigRef | str":
        """The config to run, or the reason why none can be."""
        from attn_tune.ops.registry import get_op
        from attn_tune.tuner.plan.small_problems import refusal, takeable
        from attn_tune.tuner.protocol import ConfigRef

        op, search = get_op(self.spec.op), self.spec.searches[self.direction]
        refused = refusal(self.spec, self.direction, device, given)
        reason = refused(self.problem)
        problem = self.problem
        if reason:
            problem = None if self.is_fixed else takeable(op, self.problem, refused)
        if problem is None:
            return reason or ""
        try:
            config = given or search.heuristic(problem, device)
        except UnsupportedError as error:  # an installed kernel's own mistake
            return str(error)
        if not given:
            if reason := search.infeasible(problem, device, config):
                return f"its untuned config cannot run: {reason}"
            config = config_to_dict(config)
        return ConfigRef(
            kernel=self.spec.id,
            signature=op.to_signature(problem),
            direction=self.direction,
            config=config,
            # The problem itself: a signature knows neither its scale nor its cap.
            problem=problem,
        )

    def row(self, ref: "ConfigRef | str", executor: "Executor", device: "Device") -> dict[str, Any]:
        """The row of the table."""
        from attn_tune.tuner.protocol import FEATURE_SEEDS, SWEPT_SEEDS, Run

        who = {"kernel": self.spec.id, "direction": self.direction, "problem": self.label}
        if isinstance(ref, str):
            refused = {"status": str(Status.UNSUPPORTED), "output": None, "worst_error": None}
            return who | refused | {"reason": ref}
        who["problem"] += self._changes(ref)
        # Those of a sweep: the two must not disagree.
        seeds = (*SWEPT_SEEDS, *FEATURE_SEEDS)
        outcome = executor.run(Run(ref=ref, device=device, measure=False, seeds=seeds))
        worst = max(outcome.errors, key=lambda e: e.ratio, default=None)
        return who | {
            "status": str(outcome.status),
            "output": worst.output if worst else None,
            "worst_error": worst.ratio if worst else None,
            "reason": outcome.reason.strip().split("\n")[0],
        }

    def _changes(self, ref: "ConfigRef") -> str:
        """The fields in which the problem that runs is coarser: ``" (t=128 s=128)"``."""
        from attn_tune.ops.registry import get_op

        before = get_op(self.spec.op).to_signature(self.problem).items
        changed = [f"{name}={value}" for name, value in ref.signature.items if (name, value) not in before]
        return f" ({' '.join(changed)})" if changed else ""
