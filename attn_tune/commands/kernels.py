"""List the kernels: directions, support, determinism and the number of configs of each.

With a point the answer is for that problem. Without one it is for every grid point of each op: those of the presets, of
--grid where it is given, or the op's samples. 'points' counts those that a kernel can do. The number of configs, or the
reason for none, is that of the problem 'example', the first that it can do if there is one.

Example: attn-tune kernels gpt-oss-20b.local/4x4k --device sm_90

Example: attn-tune kernels --grid llama3-8b --device sm_90
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from attn_tune.commands.shared import options, output, selection
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    import pandas as pd

    from attn_tune.kernels.spec import KernelSpec
    from attn_tune.schema import Device
    from attn_tune.tuner.plan.grid import GridPoint
    from attn_tune.tuner.plan.plan import KernelPlan

# The problem whose configs are counted without a point; a kernel that cannot do it has another, of this model if any.
EXAMPLE = "llama3-8b/4x4k"


def command(
    point: str | None = options.argument(
        "POINT",
        "The problem whose support and number of configs are shown: a grid point or a signature. "
        "Default: every grid point of each op.",
        None,
    ),
    grid: options.PointGrids = None,
    workload: options.Workload = None,
    op: options.Ops = None,
    kernel: options.Kernels = None,
    direction: options.Directions = None,
    device: options.DeviceName = None,
    every: options.All = False,
    json: options.Json = False,
) -> None:
    import pandas as pd

    from attn_tune.ops.registry import get_op

    target = selection.device(device)
    one = selection.signature(point, grid) if point else None
    # Of one point the kernels of its op, unless others are named.
    specs = selection.kernels(kernel, op or ([one.op] if one and not kernel else None))
    ops = {spec.op for spec in specs}
    asked = [one] if one else _points(ops, grid)
    if workload:
        asked = list(selection.with_workloads(asked, [workload]))
    own = [spec for spec in specs if any(one.op == spec.op for one in asked)]
    # Of all kernels those are shown that the grids ask of.
    is_narrowed = bool(grid and own) and not (point or kernel or op or json or every)
    specs, others = (own, len(specs) - len(own)) if is_narrowed else (specs, 0)
    directions = selection.directions(direction, [get_op(name) for name in dict.fromkeys(s.op for s in own)])
    rows = list(_rows(own, asked, directions, target, without=json or every))
    rows += [_other(spec, point, grid) for spec in specs if spec not in own]
    away = set() if json or every else selection.absent(specs, target)
    frame = pd.DataFrame([row for row in rows if row["kernel"] not in away], columns=_COLUMNS)
    if json:
        output.emit_json(kernels=frame)
        return
    output.emit_frame(
        _for_people(frame, is_one=bool(point)),
        title=f"{selection.brief(asked[0].name) if point else 'Kernels'} on {target}",
        cut={"example": _examples(frame)},
    )
    output.say_absent(away)
    if others:
        output.say(f"{counted(others, 'kernel')} of ops without a point in {_source(grid)} left out (--all lists them)")
    if not point:
        each = ", ".join(f"{n} of {name}" for name, n in Counter(one.op for one in asked).items())
        output.say(
            f"points: how many a kernel takes, of {each or 'no op'} in {_source(grid)}; configs: of one point, the "
            "example"
        )
        output.say("'attn-tune kernels POINT' answers for one point alone")


def _points(ops: set[str], grids: Sequence[str] | None) -> "list[GridPoint]":
    """The distinct points of ``ops``: those of ``grids``, or else of the presets, or an op's samples without any."""
    from attn_tune.ops.contract import load
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.plan.case import GridPoint, merge_points
    from attn_tune.tuner.plan.grid import ALL, load_grid, preset_points

    named = (one for name in grids or () for one in load_grid(name, lengths=(ALL,)).points)
    found = [one for one in merge_points(named if grids else preset_points()) if one.op in ops]
    for op in (get_op(name) for name in sorted(ops - {one.op for one in found} if not grids else ())):
        for label, problem in load(op.samples)().items() if op.samples else ():
            found.append(GridPoint(name=f"the sample {label}", op=op.name, signature=op.to_signature(problem)))
    return found


def _source(grids: Sequence[str] | None) -> str:
    return ", ".join(grids) if grids else "the presets, or the samples of an op without any"


_COLUMNS = [
    *("kernel", "backend", "direction", "supported", "deterministic"),
    *("points_supported", "points_asked", "example", "signature", "configs", "remark"),
]
# So many examples are listed below a table.
_MOST_EXAMPLES = 4


def _examples(frame: "pd.DataFrame") -> str:
    """A line for each example, with its signature and the kernels whose configs are its own."""
    found: dict[str, list[str]] = {}
    for row in (one for one in frame.to_dict("records") if one["example"]):
        name = f"{row['kernel'].rpartition('/')[2]} {row['direction']}"
        found.setdefault(f"{row['example']}, {row['signature']}", []).append(name)
    if len(found) > _MOST_EXAMPLES:
        return f"examples: {len(found)}; --op, --kernel or --direction leave fewer, which are then named"
    return "\n".join(f"example of {', '.join(names)}: {text}" for text, names in found.items())


def _for_people(frame: "pd.DataFrame", *, is_one: bool) -> "pd.DataFrame":
    """The columns that people read. A kernel without configs is not supported, and the remark says why."""
    places = ("supported", "points_supported", "points_asked", "signature", *(("example",) if is_one else ()))
    shown = frame.drop(columns=list(places))
    if not is_one:
        pairs = zip(frame["points_supported"], frame["points_asked"], strict=True)
        shown.insert(4, "points", [f"{some} of {asked}" if asked else "" for some, asked in pairs])
    return shown


def _rows(
    specs: "Iterable[KernelSpec]",
    asked: "Sequence[GridPoint]",
    directions: Sequence[str],
    device: "Device",
    *,
    without: bool,
) -> Iterator[dict[str, object]]:
    """A row for each kernel and direction; ``without`` also for directions that a kernel does not have."""
    from attn_tune.devices.environments import current_environment
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.plan.planner import make_plan, refusal

    environment, specs = current_environment(), list(specs)
    for op in (get_op(name) for name in dict.fromkeys(one.op for one in asked)):
        for direction in (one for one in op.directions if one in directions):
            points = [p for p in asked if p.op == op.name and direction in p.ways]
            problems = [op.from_signature(one.signature) for one in points]
            for spec in (one for one in specs if one.op == op.name):
                if not points or not (without or direction in spec.searches):
                    continue
                why = [refusal(spec, problem, direction, device) for problem in problems]
                able = [point for point, reason in zip(points, why, strict=True) if not reason]
                example = min(able or points, key=_far)
                made = make_plan(
                    [example], kernels=[spec], device=device, environment=environment, directions=[direction]
                )
                (plan,) = made.cases[0].kernels
                row = _row(plan, direction)
                counts = {"points_supported": len(able), "points_asked": len(points)}
                yield row | counts | {"example": selection.brief(example.name), "signature": example.signature.text}


def _far(point: "GridPoint") -> tuple[bool, bool]:
    """The order in which points serve as the example."""
    return EXAMPLE not in point.name.split("+"), not point.name.startswith(EXAMPLE.partition("/")[0])


def _row(plan: "KernelPlan", direction: str) -> dict[str, object]:
    row: dict[str, object] = {
        "kernel": plan.kernel.id,
        "backend": plan.kernel.backend,
        "direction": direction,
        "supported": plan.runnable,
        "deterministic": not _why_not(plan.kernel, direction),
    }
    if not plan.runnable:
        return row | {"configs": "", "remark": plan.pruned[0].reason}
    refused = Counter(trial.part for trial in plan.pruned)
    sizes = []
    for part in plan.parts:
        text = str(len(part.candidates))
        if refused[part.part]:
            text += f" of {len(part.candidates) + refused[part.part]}"
        sizes.append(f"{part.part}: {text}" if part.part else text)
    remark = plan.kernel.summary
    if why := _why_not(plan.kernel, direction):
        remark += f"; not deterministic: {why}"
    return row | {"configs": ", ".join(sizes), "remark": remark}


def _why_not(spec: "KernelSpec", direction: str) -> str:
    """The reason why two runs may differ in their last bits; empty if they never do."""
    search = spec.searches.get(direction)
    return search.nondeterministic if search else ""


def _other(spec: "KernelSpec", point: str | None, grids: Sequence[str] | None) -> dict[str, object]:
    other = f"not of the op of {point}" if point else "no preset has a point of its op, and the op has no sample"
    other = f"{', '.join(grids)} has no point of its op" if grids and not point else other
    return {
        "kernel": spec.id,
        "backend": spec.backend,
        "direction": "",
        "supported": False,
        "deterministic": not any(search.nondeterministic for search in spec.searches.values()),
        "points_supported": 0,
        "points_asked": 0,
        "example": "",
        "signature": "",
        "configs": "",
        "remark": f"{other}; give a POINT of {spec.op}",
    }
