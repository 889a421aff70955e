"""``pin``: one config for an op, in force for a while."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from attn_tune.kernels.ask import resolve
from attn_tune.kernels.registry import get_op
from attn_tune.runtime.overlay import in_force
from attn_tune.runtime.pins import Pin
from attn_tune.schema.config import config_from_dict, config_to_json
from attn_tune.schema.errors import UsageError, unknown_name
from attn_tune.schema.signature import Signature


def pin(
    op: str, kernel: str, config: Any, direction: str = "fwd", *, problem: Any = None
) -> AbstractContextManager[Pin]:
    """Within a ``with`` block, lookups get this kernel and config, whatever the packs say: for an A/B test, or a way
    round a bad row. Jitted functions retrace as with ``use_pack``.

    A question that the config cannot do on its device falls through to the packs, and the answer's ``rejected`` says
    why. Calls that name another kernel are not concerned.

    Args:
      kernel: ``"triton"`` or ``"flash_attention/triton"``.
      config: the kernel's config dataclass, or its plain-data form.
      problem: a problem, a signature or its text; None is every problem of the op.

    Raises:
      UsageError: unknown op, kernel, direction or knob.
    """
    return in_force(make_pin(op, kernel, config, direction, problem=problem))


def make_pin(
    op: str,
    kernel: str,
    config: Any,
    direction: str,
    *,
    problem: Any = None,
    device: str = "",
    reason: str = "",
) -> Pin:
    """A pin that holds for ``problem``, or for every one. ``device`` is a variant or a family, ``""`` any.

    Raises:
      UsageError: as ``pin``.
    """
    contract, spec = get_op(op), resolve(op, kernel)
    if direction not in contract.directions or direction not in spec.searches:
        raise unknown_name(f"direction of {spec.id}", direction, spec.searches)
    wanted = spec.searches[direction].config
    if isinstance(config, Mapping):
        config = config_from_dict(wanted, config)
    if not isinstance(config, wanted):
        raise UsageError(
            f"the {direction} config of {spec.id} is a {wanted.__name__}, got {type(config).__name__}"
        )
    signature = ""
    if isinstance(problem, str):
        signature = contract.problem_signature(problem).text
    elif problem is not None:
        if isinstance(problem, Signature):
            problem = contract.from_signature(problem)
        signature = contract.to_signature(problem).text
    return Pin(
        op=op,
        direction=direction,
        kernel=spec.name,
        config_json=config_to_json(config),
        signature=signature,
        device=device,
        reason=reason,
    )
