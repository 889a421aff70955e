"""What reads can be narrowed by."""

from typing import Any

from attn_tune.schema import Device, Signature, Status


def trial_filters(
    *,
    signature: Signature | str | None = None,
    device: Device | str | None = None,
    status: Status | str | None = None,
    **plain: Any,
) -> dict[str, Any]:
    """Arguments of ``Database.trials`` as SQL parameters; None narrows nothing."""
    values = {
        "signature": signature.text if isinstance(signature, Signature) else signature,
        "device": device.digest if isinstance(device, Device) else device,
        "status": None if status is None else str(status),
        **plain,
    }
    return {name: value for name, value in values.items() if value is not None}
