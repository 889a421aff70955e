"""Limits of devices: known devices only, measured below published, and none for a slice."""

import dataclasses

import pytest

from attn_tune.devices import limits
from attn_tune.devices.aliases import variants
from attn_tune.devices.identity import device_from_kind


def test_limits_are_of_devices_that_have_a_name():
    assert {*limits._MATMUL_TFLOPS, *limits._MEASURED} <= set(variants())


@pytest.mark.parametrize("name", sorted(limits._MATMUL_TFLOPS))
def test_a_published_limit_says_that_it_is_published(name):
    found = limits.limits_of(device_from_kind(name))
    assert found.matmul_tflops == limits._MATMUL_TFLOPS[name]
    assert not found.is_matmul_measured
    assert found.copy_tb_s == pytest.approx(device_from_kind(name).bandwidth_gbs / 1000)


def test_a_measured_limit_is_below_the_published_bandwidth_and_goes_before_it():
    device = device_from_kind("nvidia-h200")
    found = limits.limits_of(device)
    assert (found.is_matmul_measured, found.is_copy_measured) == (True, True)
    assert found.copy_tb_s < device.bandwidth_gbs / 1000


def test_a_slice_and_an_unknown_device_have_no_limits():
    slice_ = dataclasses.replace(device_from_kind("nvidia-h200"), partition="1g.18gb")
    assert limits.limits_of(slice_) == limits.Limits()
    unknown = dataclasses.replace(slice_, variant="cpu-x86_64", partition="", bandwidth_gbs=0)
    assert limits.limits_of(unknown) == limits.Limits()
