"""Effect of the knobs of the forward for Hopper: configs of ``triton_hopper`` and cuDNN in one race a shape.

    python benchmarks/hopper_knobs.py | tee benchmarks/results/h200/hopper.txt

Device time, cold L2, bf16, random inputs; the last number is cuDNN's time over the config's. The untuned config is
varied in one knob or two. Needs a GPU of sm_90 and Triton 3.9.
"""

import argparse
import dataclasses
import sys
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from attn_tune.ops.flash_attention.problem import Problem, flops

KERNEL = "flash_attention/triton_hopper"
# Name, batch, length, query heads, key/value heads, head dim, causal; heads per section to try.
SHAPES = (
    ("llama3-8b 4x4k", 4, 4096, 32, 8, 128, True, (4, 16, 32, 128)),
    ("h128 causal 4x4k", 4, 4096, 16, 16, 128, True, (4, 8, 16)),
    ("h128 full 4x4k", 4, 4096, 16, 16, 128, False, (2, 4, 8)),
    ("h128 causal 1x16k", 1, 16384, 16, 16, 128, True, (4, 8)),
    ("h128 causal 16x1k", 16, 1024, 16, 16, 128, True, (16, 256)),
    ("h64 causal 4x4k", 4, 4096, 32, 32, 64, True, (4, 8, 16)),
    ("h64 full 4x4k", 4, 4096, 32, 32, 64, False, (4, 8)),
    ("h256 causal 4x4k", 4, 4096, 8, 8, 256, True, (2, 4, 8, 32)),
    ("h256 full 4x4k", 4, 4096, 8, 8, 256, False, (2, 4, 8)),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="", help="only those whose name holds this")
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel

    for name, b, t, n, k, h, causal, sections in SHAPES:
        if args.shape not in name:
            continue
        problem = Problem(
            batch=b, q_len=t, kv_len=t, num_q_heads=n, num_kv_heads=k, head_dim=h, v_head_dim=h,
            scale=h**-0.5, causal=causal,
        )  # fmt: skip
        if reason := get_kernel(KERNEL).unsupported(problem, "fwd", current_device()):
            print(f"error: {KERNEL} cannot run here: {reason}", file=sys.stderr)
            return 2
        variants = [
            {"heads_per_section": section, "ping_pong": turns}
            for turns in (False, True)
            for section in sections
        ]
        _race(name, problem, variants, args.rounds)
    return 0


def _race(name: str, problem: Problem, variants: Iterable[Mapping[str, Any]], rounds: int) -> None:
    import jax

    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load
    from attn_tune.ops.flash_attention.inputs import make_inputs
    from attn_tune.tuner.protocol import MeasurePolicy
    from attn_tune.tuner.work.measure import make_flush, race
    from attn_tune.tuner.work.timers.choose import choose_timer

    device, search = current_device(), get_kernel(KERNEL).searches["fwd"]
    operands = jax.jit(lambda: make_inputs(problem, "fwd", 0))()

    def compiled(function):
        run = jax.jit(function).lower(operands).compile()
        jax.block_until_ready(run(operands))
        return lambda: run(operands)

    runs = {
        "cuDNN": compiled(
            lambda x: jax.nn.dot_product_attention(
                x.q, x.k, x.v, is_causal=problem.causal, implementation="cudnn"
            )
        )
    }
    untuned = search.heuristic(problem, device)
    for knobs in variants:
        config = dataclasses.replace(untuned, **knobs)
        label = " ".join(f"{knob}={value}" for knob, value in knobs.items())
        if reason := search.infeasible(problem, device, config):
            print(f"{name:18s} {label}: {reason}", flush=True)
            continue
        runs[label] = compiled(lambda x, c=config: load(search.call)(problem, c, x)["out"])
    raced = race(
        list(runs.values()),
        timer=choose_timer(),
        policy=MeasurePolicy(rounds=rounds, rounds_max_s=10.0),
        flush=make_flush(device),
        round_id=uuid.uuid4().hex,
    )
    times = dict(zip(runs, (m.median_ns for m in raced.measurements), strict=True))
    for label, ns in times.items():
        rate, ratio = flops(problem, "fwd") / ns / 1e3, times["cuDNN"] / ns
        print(
            f"{name:18s} {ns / 1e3:8.1f} us {rate:5.0f} TFLOP/s {ratio:6.3f}  {label}", flush=True
        )


if __name__ == "__main__":
    sys.exit(main())
