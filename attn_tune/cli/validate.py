"""``attn-tune validate``."""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attn_tune.cli import choose, options, sink
from attn_tune.cli.exit_codes import FAILED
from attn_tune.schema import Status, UsageError, config_to_dict
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.kernels.spec import KernelSpec, Op, Problem
    from attn_tune.schema import Device
    from attn_tune.tuner.executor import Executor
    from attn_tune.tuner.protocol import ConfigRef


def validate(
    op: options.Ops = None,
    kernel: options.Kernels = None,
    direction: options.Directions = None,
    feature: Annotated[
        list[str] | None,
        typer.Option("--feature", metavar="FILTER", help="Only features whose name contains this."),
    ] = None,
    grid: options.Grids = None,
    lengths: options.Lengths = None,
    point: options.Points = None,
    config: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="This config instead of the untuned one; one kernel, one direction.",
        ),
    ] = None,
    every: options.All = False,
    json: options.Json = False,
) -> None:
    """Check outputs and every gradient against the reference.

    Without --grid, each op's small feature problems are used. Nothing is stored.

    Example: attn-tune validate --kernel xla --feature sinks
    """
    import pandas as pd

    from attn_tune.tuner.executor import IsolatedExecutor

    if (lengths or point) and not grid:
        raise UsageError("--lengths and --point choose among the points of a grid; give --grid")
    if feature and grid:
        raise UsageError(
            "--feature is for the op's own problems; leave it out, or leave --grid out"
        )
    specs = choose.kernels(kernel, op)
    ways = choose.directions(direction)
    given = _config(config, specs, ways)
    problems = {
        name: _problems(name, feature, grid, lengths, point)
        for name in sorted({spec.op for spec in specs})
    }
    rows = []
    with IsolatedExecutor() as executor:
        device = executor.identify().device
        checks = [
            _Check(spec=spec, direction=way, label=label, problem=problem)
            for spec in specs
            for label, problem in problems[spec.op].items()
            for way in ways
        ]
        refs = [check.ref(device, given) for check in checks]
        executor.expect([ref for ref in refs if not isinstance(ref, str)], device)
        for check, ref in zip(checks, refs, strict=True):
            if not isinstance(ref, str):
                sink.note(f"{check.spec.id} {check.direction} {check.label}")
            rows.append(check.row(ref, executor, device))
    if not rows:
        raise UsageError("no problem to validate; loosen --feature, or choose shapes with --grid")
    frame = pd.DataFrame(rows)
    wrong = frame[~frame["status"].isin([Status.OK, Status.UNSUPPORTED])]
    away = set() if json or every else choose.absent(specs, device)
    sink.emit_formatted(
        frame.loc[~frame["kernel"].isin(list(away))],
        options.table_or_json(json),
        title=f"Validation on {device}",
        key="validations",
    )
    sink.say_absent(away)
    counts = ", ".join(f"{n} {status}" for status, n in frame["status"].value_counts().items())
    sink.note(f"{counted(len(frame), 'check')}: {counts}")
    if len(wrong):
        raise typer.Exit(FAILED)


def _problems(
    op_name: str,
    feature: list[str] | None,
    grid: list[str] | None,
    lengths: list[str] | None,
    point: list[str] | None,
) -> "dict[str, Problem]":
    from attn_tune.kernels.registry import get_op

    op = get_op(op_name)
    if grid:
        return {
            choose.brief(p.name): op.from_signature(p.signature)
            for p in choose.points(grid, lengths, point, [op_name])
        }
    return {
        name: problem
        for name, problem in _features(op).items()
        if not feature or any(word in name for word in choose.words(feature))
    }


def _features(op: "Op") -> Mapping[str, Any]:
    """The op's feature problems, which live beside its battery; none, said aloud, for an op without."""
    import importlib

    module = importlib.import_module(op.battery.partition(":")[0]) if op.battery else None
    make = getattr(module, "feature_problems", None)
    if make is None:
        sink.note(f"{op.name} has no feature problems; validate it with --grid")
        return {}
    return make()


def _config(
    text: str | None, specs: "tuple[KernelSpec, ...]", ways: tuple[str, ...]
) -> Mapping[str, Any] | None:
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Check:
    """One kernel and direction on one problem."""

    spec: "KernelSpec"
    direction: str
    label: str
    problem: "Problem"

    def ref(self, device: "Device", given: Mapping[str, Any] | None) -> "ConfigRef | str":
        """What is to be run; or the reason why it cannot be."""
        from attn_tune.kernels.registry import get_op
        from attn_tune.tuner.protocol import ConfigRef

        search = self.spec.searches.get(self.direction)
        if search is None:
            return f"does not implement {self.direction}"
        if reason := self.spec.unsupported(self.problem, self.direction, device):
            return reason
        return ConfigRef(
            kernel=self.spec.id,
            signature=get_op(self.spec.op).to_signature(self.problem),
            direction=self.direction,
            config=given or config_to_dict(search.heuristic(self.problem, device)),
            # The problem itself: a signature knows neither its scale nor its cap.
            problem=self.problem,
        )

    def row(self, ref: "ConfigRef | str", executor: "Executor", device: "Device") -> dict[str, Any]:
        """How it went, for the table."""
        from attn_tune.tuner.protocol import Run

        who = {"kernel": self.spec.id, "direction": self.direction, "problem": self.label}
        if isinstance(ref, str):
            refused = {"status": str(Status.UNSUPPORTED), "output": None, "worst_error": None}
            return who | refused | {"reason": ref}
        outcome = executor.run(Run(ref=ref, device=device, measure=False))
        worst = max(outcome.errors, key=lambda e: e.ratio, default=None)
        return who | {
            "status": str(outcome.status),
            "output": worst.output if worst else None,
            "worst_error": worst.ratio if worst else None,
            "reason": outcome.reason.strip().split("\n")[0],
        }
