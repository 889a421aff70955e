"""Readings of a GPU through NVML, with None for each that the device does not support."""

from attn_tune.schema.conditions import Conditions, Reading, conditions_of
from attn_tune.tuner.work.gpu_state import read


class Nvml:
    """NVML with answers of its own; what has none is not supported."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, **answers):
        self.answers = answers

    def __getattr__(self, name):
        def ask(handle, *args):
            assert handle == "gpu"
            key = (name.removeprefix("nvmlDeviceGet"), *args)
            if key[0] not in self.answers:
                raise Nvml.NVMLError
            answer = self.answers[key[0]]
            return answer[args[0]] if isinstance(answer, dict) else answer

        return ask


def test_reading_of_a_gpu_has_every_field():
    nvml = Nvml(
        PowerUsage=412_600,
        CurrentClocksThrottleReasons=0x4 | 0x40 | 0x1,
        ClockInfo={1: 1755, 2: 3201},
        Temperature=61,
    )
    assert read(nvml, "gpu") == Reading(
        sm_clock_mhz=1755,
        memory_clock_mhz=3201,
        temperature_c=61,
        power_w=413,
        throttle=("sw_power_cap", "hw_thermal_slowdown"),
    )


def test_readings_that_a_gpu_lacks_are_none():
    assert read(Nvml(Temperature=40), "gpu") == Reading(temperature_c=40)


def test_conditions_are_the_range_of_the_readings():
    readings = [
        Reading(sm_clock_mhz=1980, temperature_c=50, throttle=("sw_power_cap",)),
        Reading(sm_clock_mhz=1900, throttle=("hw_slowdown",)),
    ]
    conditions = conditions_of(readings, repeats=2)
    assert conditions == Conditions(
        sm_clock_mhz=(1900, 1980),
        temperature_c=(50, 50),
        throttle=("hw_slowdown", "sw_power_cap"),
        repeats=2,
    )
    assert conditions_of([]) is None
