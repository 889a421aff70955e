"""``attn-tune grids``."""

from typing import Annotated

import typer

from attn_tune.cli import choose, options, sink


def grids(
    grid: Annotated[
        str | None, typer.Argument(metavar="[GRID]", help="A grid whose points are listed.")
    ] = None,
    lengths: options.Lengths = None,
    json: options.Json = False,
) -> None:
    """List the grids, or the points of one.

    Example: attn-tune grids gemma3-27b --lengths prefill
    """
    import pandas as pd

    from attn_tune.tuner.grid import grid_names, load_grid

    if grid is None:
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
        sink.emit_formatted(pd.DataFrame(rows), options.table_or_json(json), key="grids")
        return
    points = choose.points([grid], lengths)
    rows = [{"point": p.name, "signature": p.signature.text, "source": p.source} for p in points]
    frame = pd.DataFrame(rows)
    if not json:
        frame = frame.drop(columns="source")
    sink.emit_formatted(frame, options.table_or_json(json), key="points")
