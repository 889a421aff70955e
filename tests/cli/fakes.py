"""A device that answers at once, and a lab that was filled from it."""

import threading
from pathlib import Path

from attn_tune.commands.sweeps.database_sweep import SweepOutcome, SweepRequest, run_sweep
from attn_tune.kernels.registry import get_kernel
from attn_tune.schema import (
    Device,
    Environment,
    Measurement,
    OutputError,
    Protocol,
    Status,
    config_digest,
)
from attn_tune.tuner.plan.grid import load_grid
from attn_tune.tuner.protocol import Finals, FinalsOutcome, Identity, Outcome, Run

DEVICE = Device(platform="cpu", family="x86_64", variant="cpu-x86_64", units=2)
ENVIRONMENT = Environment(jax="0.12.0", jaxlib="0.12.0", attn_tune="0.1.0")
SIGNATURE = "flash_attention/v1 b=1 t=128 s=128 n=4 k=1 h=128 v=128 dtype=bfloat16 causal=1"
POINT = "cpu-smoke.llama3/1x128"


class FakeExecutor:
    """Answers every request without running anything: each config has a time of its own, none is wrong by itself."""

    def __init__(self, *, status: Status = Status.OK, reason: str = "dk is wrong", after=lambda count: None):
        self.interrupt = lambda: False
        self.status = status
        self.reason = reason
        self.after = after
        self.ran: list[str] = []

    def identify(self) -> Identity:
        return Identity(device=DEVICE, environment=ENVIRONMENT)

    def expect(self, refs, device) -> None:
        return None

    def run(self, request: Run) -> Outcome:
        if not request.measure and self.status is Status.OK:  # A feature problem.
            return Outcome(status=Status.OK)
        self.ran.append(config_digest(request.ref.config))
        self.after(len(self.ran))
        if self.status is not Status.OK:
            error = OutputError(output="dk", error=2.0, allowed=1.0)
            return Outcome(status=self.status, reason=self.reason, errors=(error,))
        return self._ok(request.ref, "", 5)

    def finals(self, request: Finals) -> FinalsOutcome:
        return FinalsOutcome(outcomes=tuple(self._ok(ref, request.round_id, 24) for ref in request.refs))

    def close(self) -> None:
        return None

    def _ok(self, ref, round_id: str, samples: int) -> Outcome:
        config = ref.config
        outputs = ("out", "lse") if ref.direction == "fwd" else ("dq", "dk", "dv")
        base = 100_000 + 1_000 * (int(config_digest(config)[-4:], 16) % 997)
        protocol = Protocol(timer="host", warmup=1, flush_l2=False, interleaved=bool(round_id))
        return Outcome(
            status=Status.OK,
            errors=tuple(OutputError(output=o, error=0.25, allowed=1.0) for o in outputs),
            measurement=Measurement(
                samples_ns=tuple(base + i for i in range(samples)),
                protocol=protocol,
                round_id=round_id,
            ),
        )


def request(database: Path, *, grid: str = SIGNATURE, directions=("fwd", "bwd"), **changes):
    """A request for one small point on the kernel that runs everywhere."""
    return SweepRequest(
        points=load_grid(grid).points,
        kernels=(get_kernel("flash_attention/xla"),),
        directions=directions,
        database=database,
        **changes,
    )


def fill(database: Path, executor: FakeExecutor | None = None, **changes) -> SweepOutcome:
    """Sweeps into ``database`` with a fake device."""
    return run_sweep(
        request(database, **changes),
        executor or FakeExecutor(),
        watch=lambda event: None,
        stop=threading.Event(),
    )
