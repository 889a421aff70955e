"""Validation of decisions on this device before an export."""

from collections.abc import Sequence

from attn_tune.commands.shared import output
from attn_tune.schema import Decision, Status, UsageError, unknown_name


def revalidate(decisions: Sequence[Decision]) -> list[str | None]:
    """Compare outputs and gradients of each config with the reference.

    The result of a decision is ``""`` if it is right, else the error; None for another device than this one.

    Raises:
      UsageError: no row is of this device.
    """
    from attn_tune.kernels.registry import kernels
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.protocol import ConfigRef, Run
    from attn_tune.tuner.run.executor import IsolatedExecutor

    for decision in decisions:
        if decision.kernel not in kernels():
            raise unknown_name("kernel", decision.kernel, kernels())
    with IsolatedExecutor() as executor:
        device = executor.identify().device
        here = [d.device.digest == device.digest for d in decisions]
        if not any(here):
            raise UsageError(f"nothing can be validated again: no row is of this device, {device} ({device.digest})")
        refs = [
            ConfigRef(
                kernel=d.kernel,
                signature=d.signature,
                direction=d.direction,
                config=d.config,
                problem=get_op(d.op).from_signature(d.signature),
            )
            for d in decisions
        ]
        executor.expect([ref for ref, is_here in zip(refs, here, strict=True) if is_here], device)
        found: list[str | None] = []
        for decision, ref, is_here in zip(decisions, refs, here, strict=True):
            if not is_here:
                found.append(None)
                continue
            outcome = executor.run(Run(ref=ref, device=device, measure=False))
            is_right = outcome.status is Status.OK
            text = "" if is_right else f"{outcome.status}: {outcome.reason}".splitlines()[0]
            output.note(f"{decision.kernel} {decision.direction} {decision.signature}: {text or 'right'}")
            found.append(text)
    return found
