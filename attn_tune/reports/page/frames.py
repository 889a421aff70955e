"""Frames of a page that no command prints: winners with their rates and limits, and races."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from attn_tune.devices.limits import limits_of
from attn_tune.ops import registry
from attn_tune.reports import frames
from attn_tune.schema import Decision, UsageError

# The limits of devices are those of products of such numbers.
_SIXTEEN_BITS = ("bfloat16", "float16")


def winners(decisions: Iterable[Decision], names: Mapping[str, str] = {}) -> pd.DataFrame:
    """One row a decision, as ``reports.frames.summary`` makes it, with what a roofline needs.

    ``flops`` and ``bytes`` are those of the op for the problem, None where it is not installed. ``matmul_tflops`` and
    ``copy_tb_s`` are the limits of the device, 0 where they are not known, each with whether it was measured. A problem
    that is not computed in 16 bit has no ``matmul_tflops``.
    """
    decisions = list(decisions)
    summary = frames.summary(decisions, names)
    by_key = {(d.signature.text, d.direction, str(d.device), d.kernel.rpartition("/")[2]): d for d in decisions}
    keys = zip(summary["signature"], summary["direction"], summary["device"], summary["kernel"], strict=True)
    rows = [_rates(by_key[key]) for key in keys]
    return pd.concat([summary, pd.DataFrame(rows, columns=list(_RATES), index=summary.index)], axis=1)


_RATES = (
    "op", "flops", "bytes", "matmul_tflops", "copy_tb_s", "is_matmul_measured", "is_copy_measured",
)  # fmt: skip


def _rates(decision: Decision) -> dict[str, Any]:
    # Behind a blank stands what tells devices of one name apart.
    device = dataclasses.replace(decision.device, variant=decision.device.variant.partition(" ")[0])
    limits = dataclasses.asdict(limits_of(device))
    dtype = decision.signature.values.get("dtype", _SIXTEEN_BITS[0])
    if dtype not in _SIXTEEN_BITS:
        limits["matmul_tflops"] = 0.0
    found: dict[str, Any] = {"op": decision.op, "flops": None, "bytes": None, **limits}
    if decision.op in registry.op_names():
        op = registry.get_op(decision.op)
        try:
            problem = op.from_signature(decision.signature)
        except UsageError:  # a field or a value of another version of the op
            return found
        found["flops"] = int(op.flops(problem, decision.direction))
        found["bytes"] = int(op.bytes_moved(problem, decision.direction))
    return found


def races(found: Iterable[Any]) -> pd.DataFrame:
    """One row a race (``attn_tune.db.Race``): its fields as columns."""
    columns = [
        "op", "kernel", "direction", "signature", "device", "rule", "untuned_config", "rival_config", "speedup", "low",
        "high", "is_paired", "untuned_ns", "rival_ns", "rounds",
    ]  # fmt: skip
    return pd.DataFrame([dataclasses.asdict(race) for race in found], columns=columns)
