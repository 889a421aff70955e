"""Devices: their identity as plain data and back."""

import pytest

from attn_tune.schema import Device, UsageError, config_from_dict


def test_device_identity_is_read_back_strictly():
    device = Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)
    assert config_from_dict(Device, device.identity) == device
    for odd in (
        {**device.identity, "colour": 1},
        {**device.identity, "evidence": [["uuid", "1"]]},
        {k: v for k, v in device.identity.items() if k != "variant"},
        {**device.identity, "units": "132"},
        {**device.identity, "units": True},
        {**device.identity, "variant": None},
    ):
        with pytest.raises(UsageError):
            config_from_dict(Device, odd)
