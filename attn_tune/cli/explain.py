"""``attn-tune explain``."""

import dataclasses
from typing import Annotated

import typer

from attn_tune.cli import choose, options, sink


def explain(
    point: Annotated[
        str, typer.Argument(help="A grid point such as llama3-8b/4x4k, or a signature.")
    ],
    grid: options.PointGrids = None,
    direction: options.Directions = None,
    device: options.DeviceName = None,
    json: options.Json = False,
) -> None:
    """Say which kernel and config a call would get here, and why.

    Example: attn-tune explain llama3-8b/4x4k --direction bwd --device nvidia-h200
    """
    from attn_tune.kernels import dispatch

    asked = choose.signature(point, grid)
    target = choose.device(device)
    found = {
        way: dispatch.explain(asked.op, asked.signature.text, way, device=target)
        for way in choose.directions(direction)
    }
    if json:
        sink.emit_json({way: dataclasses.asdict(one) for way, one in found.items()})
        return
    print("\n".join(str(one).rstrip() + "\n" for one in found.values()).rstrip())
