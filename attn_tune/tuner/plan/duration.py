"""A guess of the time that a sweep takes, by the sizes of its problems, where nothing was recorded."""

from attn_tune.devices.limits import limits_of
from attn_tune.ops.contract import load
from attn_tune.ops.registry import get_op
from attn_tune.schema import Device
from attn_tune.tuner.plan.plan import CasePlan, Plan

# Seconds to compile and hand over one config: with many cores, as one H200 saw it (docs/costs.md); with two, a guess.
_CONFIG_S = (0.12, 2.0)
# Seconds of a case beside its configs: workers that start, inputs, the finals.
_CASE_S = (2.0, 10.0)
# Seconds of the reference, and its baseline, of one feature problem: with many cores and with two, guesses both. Small
# cases are mostly these. A kernel's program for one costs as a config does.
_REFERENCE_S = (0.3, 3.0)
# Configs of a kernel that run the feature problems: the untuned one and the fastest.
_PROVEN = (1, 2)
# A config runs about so often, to be proven and timed; a case, in its references and finals.
_CONFIG_RUNS = 15
_CASE_RUNS = 60
# Operations a second of a core of a processor, and of a device of which nothing is known; a share of a known peak.
_CORE, _UNKNOWN, _SHARE = 1e10, 3e13, 0.3
# The guess is wrong by this factor, either way.
_EITHER_WAY = 3.0


def guessed_s(plan: Plan) -> tuple[float, float]:
    """The least and the most wall time of ``plan`` in seconds; only the order is to be relied on."""
    runs = sum(_runs_s(case, plan.device) for case in plan.cases if case.todo)
    open_cases = sum(not case.finished for case in plan.cases)
    hard, programs = _feature_problems(plan)
    low, high = (
        (plan.counts.todo + proven * programs) * config + open_cases * case + hard * reference
        for config, case, reference, proven in zip(_CONFIG_S, _CASE_S, _REFERENCE_S, _PROVEN, strict=True)
    )
    return low + runs / _EITHER_WAY, high + runs * _EITHER_WAY


def _feature_problems(plan: Plan) -> tuple[int, int]:
    """The feature problems of the open cases, and the pairs of one and a kernel that has configs to try there."""
    hard = pairs = 0
    for planned in plan.cases:
        op = get_op(planned.case.signature.op)
        if planned.todo and op.features:
            count = len(load(op.features)(op.from_signature(planned.case.signature)))
            hard += count
            pairs += count * sum(kernel.todo > 0 for kernel in planned.kernels)
    return hard, pairs


def _runs_s(planned: CasePlan, device: Device) -> float:
    """Seconds in which the configs of a case, its references and its finals run."""
    op = get_op(planned.case.signature.op)
    flops = op.flops(op.from_signature(planned.case.signature), planned.case.direction)
    return (planned.todo * _CONFIG_RUNS + _CASE_RUNS) * flops / _rate(device)


def _rate(device: Device) -> float:
    """Operations a second of a plain program."""
    if device.platform == "cpu":
        return _CORE * max(1, device.units)
    return _SHARE * limits_of(device).matmul_tflops * 1e12 or _UNKNOWN
