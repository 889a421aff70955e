"""Recorded searches as text: what a replay needs of a lab database, small enough to be kept beside the figures.

One line a part of a case, in JSON: kernel, direction, part, signature, the knobs' names, then one row a config in the
kernel's order: the knobs' values, null for one that the config leaves out, and the median in nanoseconds, null for a
config that failed.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from attn_tune.ops.registry import get_op
from attn_tune.schema.config import config_digest
from attn_tune.tuner.plan.replay import RecordedCase

SUFFIX = ".jsonl"


def write_searches(cases: Sequence[RecordedCase], path: Path) -> None:
    """Writes ``cases``."""
    lines = []
    for case in cases:
        knobs = sorted({knob for config in case.candidates for knob in config})
        rows = [
            [*(config.get(knob) for knob in knobs), case.times.get(config_digest(config))] for config in case.candidates
        ]
        data = {
            "kernel": case.kernel,
            "direction": case.direction,
            "part": case.part,
            "signature": case.signature.text,
            "knobs": knobs,
            "rows": rows,
        }
        lines.append(json.dumps(data, separators=(",", ":")) + "\n")
    path.write_text("".join(lines))


def read_searches(path: Path) -> list[RecordedCase]:
    """Reads the cases that ``write_searches`` wrote."""
    cases = []
    for line in path.read_text().splitlines():
        data = json.loads(line)
        op = get_op(data["kernel"].partition("/")[0])
        configs = [
            {knob: value for knob, value in zip(data["knobs"], row[:-1], strict=True) if value is not None}
            for row in data["rows"]
        ]
        times = {
            config_digest(config): float(row[-1])
            for config, row in zip(configs, data["rows"], strict=True)
            if row[-1] is not None
        }
        cases.append(
            RecordedCase(
                kernel=data["kernel"],
                direction=data["direction"],
                part=data["part"],
                signature=op.parse_signature(data["signature"]),
                candidates=tuple(configs),
                times=times,
                fields=op.fields,
            )
        )
    return cases
