"""List the grids, or the points of some, of a model or of misses.

Example: attn-tune grids gemma3-27b --lengths prefill

Example: attn-tune grids --grid gemma3-27b --grid llama3-8b --point "*/4x4k"
"""

from pathlib import Path

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.cases import Cases
from attn_tune.commands.shared.output_file import check_free
from attn_tune.commands.shared.sources import Sources
from attn_tune.schema import UsageError
from attn_tune.schema.words import counted


@options.grouped
def command(
    sources: Sources,
    first: str | None = options.argument("GRID", "A grid whose points are listed; as with --grid.", None),
    grid: options.Grids = None,
    lengths: options.Lengths = None,
    point: options.Points = None,
    workload: options.Workloads = None,
    out: Path | None = options.option(None, "--out -o", "FILE", "Write the points as a grid file (.toml)."),
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    import pandas as pd

    from attn_tune.tuner.plan.grid import Grid, grid_names, load_grid

    grids = [*([] if first is None else [first]), *(grid or ())]
    if not grids and not sources.is_given:
        if out is not None:
            raise UsageError("--out needs a grid, --from-fn, --from-hlo or --from-misses")
        for name, given in (("--lengths", lengths), ("--point", point), ("--workload", workload)):
            if given:
                raise UsageError(f"{name} needs a grid, --from-fn, --from-hlo or --from-misses")
        loaded = [load_grid(name, lengths=("all",)) for name in grid_names()]
        run = {name: len(load_grid(name).points) for name in grid_names()}
        rows = [
            {
                "grid": g.name,
                "points": run[g.name],
                "all lengths": len(g.points),
                "summary": g.summary,
                "source": g.source,
            }
            for g in loaded
        ]
        frame = pd.DataFrame(rows).drop(columns=[] if json else ["source"])
        output.emit_formatted(frame, options.table_or_json(json), key="grids")
        return
    points = Cases(grid=grids, lengths=lengths, point=point, workload=workload).points(sources)
    if out is not None:
        from attn_tune.tuner.plan.grid_file import write_grid

        check_free(out, overwrite=overwrite)
        text = ", ".join(dict.fromkeys(p.source for p in points if p.source))
        write_grid(
            Grid(name=out.stem, summary=counted(len(points), "problem"), source=text, points=points),
            out,
            overwrite=overwrite,
        )
        output.note(f"{counted(len(points), 'point')} in {out}")
    rows = [
        {
            "point": p.name,
            "signature": p.signature.text,
            "directions": ",".join(p.directions) or "all",
            "calls": p.calls,
            "source": p.source,
        }
        for p in points
    ]
    frame = pd.DataFrame(rows)
    if not json:
        # Presets say no calls, and few of them directions.
        unused = [name for name in ("directions", "calls") if not any(getattr(p, name) for p in points)]
        frame = frame.drop(columns=["source", *unused])
    output.emit_formatted(frame, options.table_or_json(json), key="points", whole=("signature",))
