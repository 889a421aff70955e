"""Facts to fill databases with: devices, environments, signatures and trials."""

import dataclasses

from attn_tune.kernels.registry import find_kernel
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema import (
    Device,
    Environment,
    Measurement,
    OutputError,
    Protocol,
    Resources,
    Stage,
    Status,
    Trial,
)

DEVICE = Device(
    platform="cuda",
    family="sm_90",
    variant="nvidia-h200",
    units=132,
    shared_bytes=232448,
    l2_bytes=62914560,
    clock_mhz=1980,
    bandwidth_gbs=4800,
    power_watts=700,
    evidence=(("uuid", "GPU-1"), ("driver", "570.1")),
)
OTHER_DEVICE = Device(platform="tpu", family="v6e", variant="tpu-v6e", units=1)
KERNEL = "flash_attention/triton"
# The source that is installed: the release gate ships no other.
SOURCE = find_kernel(KERNEL).source_hash
ENVIRONMENT = Environment(jax="0.12.0", jaxlib="0.12.0", triton="3.9.0", source_hash=SOURCE)
NEWER = Environment(jax="0.13.0", jaxlib="0.13.0", triton="3.9.0", source_hash=SOURCE)
PROTOCOL = Protocol(timer="cupti", warmup=3, flush_l2=True)


def make_signature(**changes):
    """A signature of a small causal problem."""
    values = {
        "batch": 1,
        "q_len": 128,
        "kv_len": 128,
        "num_q_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 64,
        "v_head_dim": 64,
        "causal": True,
    }
    return Problem(**{**values, **changes}).signature


SIGNATURE = make_signature()


def make_trial(config=None, samples=(1000, 1010, 990), *, status=Status.OK, **changes):
    """A right and measured forward trial by default."""
    is_right = status.is_measured
    round_id = changes.pop("round_id", "")
    values = {
        "kernel": KERNEL,
        "direction": "fwd",
        "signature": SIGNATURE,
        "device": DEVICE,
        "environment": ENVIRONMENT,
        "config": {"block_q": 128, "num_warps": 4} if config is None else config,
        "status": status,
        "stage": Stage.FINAL if round_id else Stage.SEARCH,
        "reason": "" if is_right else f"because {status}",
        "errors": (OutputError(output="out", error=0.01, allowed=0.05),) if is_right else (),
        "measurement": Measurement(samples_ns=tuple(samples), protocol=PROTOCOL, round_id=round_id)
        if is_right
        else None,
        "resources": Resources(shared_bytes=65536, registers=128, spill_bytes=0, code_digest="b2:0123456789ab"),
        # Finals are of configs that passed feature problems.
        "features": 4 if is_right and round_id else None,
        "compile_ms": 12.5,
        "started_us": 1_700_000_000_000_000,
    }
    return Trial(**of_own_source({**values, **changes}))


def of_own_source(values):
    """The fields of a trial, with the source of its kernel for that of ``KERNEL``."""
    kernel, environment = find_kernel(values["kernel"]), values["environment"]
    if kernel is None or environment.source_hash != SOURCE:
        return values
    return values | {"environment": dataclasses.replace(environment, source_hash=kernel.source_hash)}


def begin(database, device=DEVICE, environment=ENVIRONMENT):
    """A run with nothing special about it."""
    return database.begin_run(device=device, environment=environment, argv=["attn-tune", "sweep"])
