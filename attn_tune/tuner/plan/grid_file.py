"""Write a grid as a file that ``load_grid`` reads: one layer a point, with its own lengths."""

import json
from pathlib import Path

from attn_tune.packs.plain_files import write_whole
from attn_tune.schema.errors import StorageError, UsageError
from attn_tune.tuner.plan.grid import Grid


def grid_text(grid: Grid) -> str:
    """The grid in the TOML of ``docs/grids.md``."""
    lines = [f"summary = {_quoted(grid.summary)}"]
    if grid.source:
        lines.append(f"source = {_quoted(grid.source)}")
    for number, point in enumerate(grid.points, 1):
        # The file's own name comes in front of it when it is read.
        name = f"{number}"
        lines += ["", "[[layer]]", f"name = {_quoted(name)}", f"op = {_quoted(point.op)}"]
        if point.source and point.source != grid.source:
            lines.append(f"source = {_quoted(point.source)}")
        if point.directions:
            lines.append(f"directions = [{', '.join(map(_quoted, point.directions))}]")
        if point.calls:
            lines.append(f"calls = {point.calls}")
        for field, value in point.signature.items:
            lines.append(f"{field} = {_quoted(value) if isinstance(value, str) else value}")
    return "\n".join(lines) + "\n"


def write_grid(grid: Grid, path: Path, *, overwrite: bool = False) -> None:
    """Write the whole file or nothing.

    Raises:
      UsageError: ``path`` does not end in ``.toml``, or is there and ``overwrite`` is not given.
      StorageError: it cannot be written.
    """
    if path.suffix != ".toml":
        raise UsageError(f"grid file {path} must end in .toml")
    if path.exists() and not overwrite:
        raise UsageError(f"grid file {path} exists; choose another name or give --overwrite")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, grid_text(grid).encode())
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"grid file {path}: cannot be written: {error.strerror}") from None


def _quoted(text: str) -> str:
    # JSON's escapes are TOML's too.
    return json.dumps(text)
