"""Devices: their identity as plain data and back."""

import pytest

from attn_tune.schema.device import Device, device_from_identity
from attn_tune.schema.errors import UsageError


def test_device_identity_is_read_back_strictly():
    device = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)
    assert device_from_identity(device.identity) == device
    for odd in (
        {**device.identity, "colour": 1},
        {k: v for k, v in device.identity.items() if k != "units"},
        {**device.identity, "units": "132"},
        {**device.identity, "units": True},
        {**device.identity, "variant": None},
    ):
        with pytest.raises(UsageError):
            device_from_identity(odd)
