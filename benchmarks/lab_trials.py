"""A made-up lab in the proportions of a recorded sweep, for ``lab_scale.py``.

Calibrated on a sweep of an H200 (6,942 trials of 165 cases), whose numbers stand beside the constants. Every config has
code of its own on every problem and every compilation a time of its own, both incompressible; errors recur; resources
follow from the config, the head dimension and the software. The lab is larger than the sweep: four devices, and each
problem is swept four times, twice in each of two environments.
"""

import functools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema import (
    Device,
    Environment,
    Measurement,
    OutputError,
    Protocol,
    Resources,
    Signature,
    Stage,
    Status,
    Trial,
)

# (kernel, how many configs its space has)
KERNELS = (("flash_attention/triton", 720), ("flash_attention/xla", 48))
DIRECTIONS = ("fwd", "bwd")
SWEEPS = 4
FINALISTS = 5
# Recorded: 10.5 % unsupported, 0.7 % out of resources, 1 of 6,942 incorrect.
UNSUPPORTED, SHORT, WRONG = 0.105, 0.007, 0.00015
# Recorded: 3 samples of 88 % of the searched configs, 6 of 6 %, 12 of 6 %; finals have 24.
SAMPLES, SHARES, FINAL_SAMPLES = (3, 6, 12), (0.88, 0.06, 0.06), 24
# Recorded: standard deviation over mean, median 0.09 %, a tenth below 0.02 %, a tenth above 0.42 %.
NOISE, NOISE_SPREAD = 0.0009, 1.1
# Recorded: median 1.18 s, deciles 0.72 s and 2.4 s.
COMPILE_MS, COMPILE_SPREAD = 1180.0, 0.45
# Recorded: 12.5 different errors a problem forward, 3 backward, of some 300 configs each.
ERROR_KINDS = 12
# Recorded: 46 ms between the starts of trials, in the median.
PACE_US = 46_123
SEARCH = Protocol(timer="cupti", warmup=2, flush_l2=True)
FINAL = Protocol(timer="cupti", warmup=2, flush_l2=True, interleaved=True)
DEVICES = tuple(
    Device(
        platform="cuda",
        family=family,
        variant=variant,
        units=units,
        shared_bytes=232448,
        evidence=(("driver", "570.1"),),
    )
    for family, variant, units in (
        ("sm_90", "nvidia-h200", 132),
        ("sm_90", "nvidia-h100-pcie", 114),
        ("sm_100", "nvidia-b200", 148),
        ("sm_80", "nvidia-a100", 108),
    )
)
PER_SIGNATURE = len(DEVICES) * sum(n for _, n in KERNELS) * len(DIRECTIONS) * SWEEPS


def make_signatures(count: int) -> list[Signature]:
    """Causal problems of different lengths, heads and batches."""
    found = []
    for i in range(count):
        length = 128 * (1 + i // 8 % 64)
        problem = Problem(
            batch=1 + i // 512,
            q_len=length,
            kv_len=length,
            num_q_heads=8 << i % 4,
            num_kv_heads=8,
            head_dim=64 << i // 4 % 2,
            v_head_dim=64 << i // 4 % 2,
            causal=True,
        )
        found.append(problem.signature)
    return found


def environment(kernel: str, sweep: int) -> Environment:
    """The software of a sweep: another JAX from the third on."""
    version = f"0.1{1 + sweep // 2}.0"
    return Environment(jax=version, jaxlib=version, triton="3.9.0", driver="570.1", source_hash=f"b2:{kernel}")


@functools.cache
def make_space(kernel: str) -> tuple[dict[str, Any], ...]:
    """Configs as a kernel's space has them."""
    return tuple(
        {
            "block_q": 16 << i % 4,
            "block_k": 16 << i // 4 % 4,
            "num_warps": 1 << i // 16 % 4,
            "num_stages": 1 + i // 64 % 5,
            "variant": i // 320,
        }
        for i in range(dict(KERNELS)[kernel])
    )


@functools.cache
def make_resources(label: str, count: int) -> tuple[list[int], ...]:
    """Shared memory, registers and spilled bytes by config; 66 % spill nothing, as recorded."""
    rng = generator(f"resources {label}")
    spills = np.where(rng.random(count) < 0.66, 0, 8 * rng.geometric(0.08, count))
    shared, registers = rng.integers(1, 227, count), rng.integers(24, 256, count)
    return (1024 * shared).tolist(), registers.tolist(), spills.tolist()


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel and direction on one problem, one device and in one environment, from ``clock`` on (microseconds)."""

    kernel: str
    direction: str
    signature: Signature
    device: Device
    environment: Environment
    clock: int

    @property
    def label(self) -> str:
        return f"{self.kernel} {self.direction} {self.signature.text} {self.device.variant}"

    def trials(self, seed: int, sweep: int) -> Iterator[Trial]:
        """The search, then the finals of its fastest."""
        # The times and the code belong to the problem and the software, the noise to the sweep.
        fixed = generator(f"{self.label} {sweep // 2}")
        rng = generator(f"{seed} {sweep} {self.label}")
        space = make_space(self.kernel)
        count, middle = len(space), len(space) // 2
        checks = self._checks(fixed)
        centers = fixed.integers(20_000, 3_000_000) * (1 + np.abs(fixed.normal(size=count)))
        codes = fixed.bytes(16 * count).hex()
        fate = fixed.random(count).tolist()
        fate[middle] = 1.0
        programs = self._programs(codes, count)
        noise = np.minimum(rng.lognormal(np.log(NOISE), NOISE_SPREAD, count), 0.05)
        drawn = centers[:, None] * (1 + noise[:, None] * rng.normal(size=(count, SAMPLES[-1])))
        samples = np.maximum(1, drawn.astype(np.int64)).tolist()
        counts = rng.choice(SAMPLES, count, p=SHARES).tolist()
        compile_ms = (COMPILE_MS * rng.lognormal(0, COMPILE_SPREAD, count)).tolist()
        kinds = fixed.integers(0, ERROR_KINDS, count).tolist()
        right = []
        for number in range(count):
            if fate[number] < UNSUPPORTED + SHORT + WRONG:
                yield self._failed(number, fate[number], programs, compile_ms[number], checks)
                continue
            right.append(number)
            yield self._trial(
                number,
                number,
                Status.OK,
                is_heuristic=number == middle,
                errors=checks[kinds[number]],
                resources=programs[number],
                compile_ms=compile_ms[number],
                measurement=Measurement(samples_ns=tuple(samples[number][: counts[number]]), protocol=SEARCH),
            )
        fastest = sorted(right, key=lambda number: centers[number])[:FINALISTS]
        finalists = fastest if middle in fastest else [*fastest, middle]
        round_id = rng.bytes(16).hex()
        for place, number in enumerate(finalists):
            drawn = centers[number] * (1 + noise[number] * rng.normal(size=FINAL_SAMPLES))
            yield self._trial(
                number,
                count + place,
                Status.OK,
                stage=Stage.FINAL,
                is_heuristic=number == middle,
                resources=programs[number],
                compile_ms=compile_ms[number],
                measurement=Measurement(
                    samples_ns=tuple(np.maximum(1, drawn.astype(np.int64)).tolist()),
                    protocol=FINAL,
                    round_id=round_id,
                ),
            )

    def _checks(self, rng: np.random.Generator) -> list[tuple[OutputError, ...]]:
        outputs = ("out", "lse") if self.direction == "fwd" else ("dq", "dk", "dv")
        return [
            tuple(
                OutputError(output=output, error=error, allowed=0.0103)
                for output, error in zip(outputs, row, strict=False)
            )
            for row in (rng.random((ERROR_KINDS, 3)) * 0.004).tolist()
        ]

    def _programs(self, codes: str, count: int) -> list[Resources]:
        head_dim = self.signature.values["h"]
        label = f"{self.kernel} {self.direction} {head_dim} {self.device.family} {self.environment.jax}"
        columns = make_resources(label, count)
        return [
            Resources(
                shared_bytes=shared,
                registers=registers,
                spill_bytes=spilled,
                code_digest=f"b2:{codes[32 * i : 32 * i + 32]}",
            )
            for i, (shared, registers, spilled) in enumerate(zip(*columns, strict=True))
        ]

    def _failed(
        self,
        number: int,
        fate: float,
        programs: Sequence[Resources],
        compile_ms: float,
        checks: Sequence[tuple[OutputError, ...]],
    ) -> Trial:
        if fate < UNSUPPORTED:
            reason = f"needs {1024 * (227 + number % 64)} bytes of shared memory"
            return self._trial(number, number, Status.UNSUPPORTED, reason=reason)
        if fate < UNSUPPORTED + SHORT:
            reason = f"out of resource: shared memory, required {1024 * (227 + number % 64)}"
            return self._trial(number, number, Status.OUT_OF_RESOURCES, reason=reason)
        wrong = tuple(OutputError(output=e.output, error=1.0, allowed=e.allowed) for e in checks[0])
        return self._trial(
            number,
            number,
            Status.INCORRECT,
            reason=f"{wrong[0].output} is wrong",
            errors=wrong,
            resources=programs[number],
            compile_ms=compile_ms,
        )

    def _trial(self, number: int, place: int, status: Status, **rest: Any) -> Trial:
        return Trial(
            kernel=self.kernel,
            direction=self.direction,
            signature=self.signature,
            device=self.device,
            environment=self.environment,
            config=make_space(self.kernel)[number],
            status=status,
            started_us=self.clock + place * PACE_US,
            **rest,
        )


def generator(name: str) -> np.random.Generator:
    """Random numbers that depend on ``name`` only."""
    return np.random.default_rng([zlib.crc32(name.encode()), *name.encode()[-40:]])
