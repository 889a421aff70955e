"""Backwards of flash attention on one GPU beside each other: device time, interleaved, cold cache, gradients compared.

    python benchmarks/flash_backward_peers.py --out backward.json --fa4

For each point the untuned backwards of ``triton`` and cuDNN, changed configs of ``triton_hopper_fused``, and with
``--fa4`` FlashAttention-4 with its own table. Every time has all launches from the cotangent of the output on: row
sums, zeros and casts too. A row says microseconds, TFLOP/s of 2.5 forwards,
the largest difference of a gradient from that of ``triton``, over the largest gradient, and whether two calls of a
deterministic kernel gave the same bits. ``--dry`` only makes problems; ``--compile`` compiles the launches of Triton
for Hopper into its cache, in parallel, without a GPU.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from untuned_peers import Changes, compiled_calls, configs_of, planned_device, problem_of, record, timed

_POINTS: Mapping[str, str] = {
    "h128 causal 4x4k 32/8": "b=4 t=4096 s=4096 n=32 k=8 h=128 v=128 dtype=bfloat16 causal=1",
    "h64 causal 4x4k 32/8": "b=4 t=4096 s=4096 n=32 k=8 h=64 v=64 dtype=bfloat16 causal=1",
    "h128 full 1x16k 16/16": "b=1 t=16384 s=16384 n=16 k=16 h=128 v=128 dtype=bfloat16",
    "h128 causal 1x32k 32/8": "b=1 t=32768 s=32768 n=32 k=8 h=128 v=128 dtype=bfloat16 causal=1",
    "h64 full 4x4k 32/32": "b=4 t=4096 s=4096 n=32 k=32 h=64 v=64 dtype=bfloat16",
    "h64 causal 4x4k 32/32": "b=4 t=4096 s=4096 n=32 k=32 h=64 v=64 dtype=bfloat16 causal=1",
    "h64 causal 2x4k 64/8": "b=2 t=4096 s=4096 n=64 k=8 h=64 v=64 dtype=bfloat16 causal=1",
    "h64 full 4x4k 32/8": "b=4 t=4096 s=4096 n=32 k=8 h=64 v=64 dtype=bfloat16",
    "h64 causal 1x32k 32/8": "b=1 t=32768 s=32768 n=32 k=8 h=64 v=64 dtype=bfloat16 causal=1",
    "h64 causal 1x4k 32/8": "b=1 t=4096 s=4096 n=32 k=8 h=64 v=64 dtype=bfloat16 causal=1",
    "h64 causal 16x1k 32/8": "b=16 t=1024 s=1024 n=32 k=8 h=64 v=64 dtype=bfloat16 causal=1",
    "h128 causal 4x4k 16/16": "b=4 t=4096 s=4096 n=16 k=16 h=128 v=128 dtype=bfloat16 causal=1",
    "h256 causal 4x4k 8/8": "b=4 t=4096 s=4096 n=8 k=8 h=256 v=256 dtype=bfloat16 causal=1",
    "h64 cap 4x4k 32/8": "b=4 t=4096 s=4096 n=32 k=8 h=64 v=64 dtype=bfloat16 causal=1 cap=1",
    "h128 cap 4x4k 16/16": "b=4 t=4096 s=4096 n=16 k=16 h=128 v=128 dtype=bfloat16 causal=1 cap=1",
    "h256 cap 4x4k 8/8": "b=4 t=4096 s=4096 n=8 k=8 h=256 v=256 dtype=bfloat16 causal=1 cap=1",
    "h64 dropout 4x4k 32/8": "b=4 t=4096 s=4096 n=32 k=8 h=64 v=64 dtype=bfloat16 causal=1 drop=1",
    "h128 dropout 4x4k 16/16": "b=4 t=4096 s=4096 n=16 k=16 h=128 v=128 dtype=bfloat16 causal=1 drop=1",
    "h128 dropout full 4x4k 16/16": "b=4 t=4096 s=4096 n=16 k=16 h=128 v=128 dtype=bfloat16 drop=1",
    "h256 dropout 4x4k 8/8": "b=4 t=4096 s=4096 n=8 k=8 h=256 v=256 dtype=bfloat16 causal=1 drop=1",
}
_OTHERS = ("triton", "cudnn")
_FA4 = ("fa4", "fa4_deterministic")
_HOPPER = "triton_hopper_fused"
_CHANGES: Sequence[dict[str, Any]] = [
    {"ahead": True, "late_dq": True, "num_stages": 2},
    {"ahead": False, "late_dq": True, "num_stages": 2},
    {"ahead": True, "late_dq": False, "num_stages": 2},
    {"ahead": False, "late_dq": False, "num_stages": 2},
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "--compile" in given:
        return _compile(given)
    points = list(_POINTS.items())
    return record(str(__doc__), points, _row, _speed, rival="fa4", rounds=8, arguments=given)


def _speed(row: dict[str, Any], peer: str) -> str:
    same = {True: " same bits", False: " OTHER BITS"}.get(row["repeated"].get(peer), "")
    return f"{row['flops'] / row['us'][peer] / 1e6:6.1f} TFLOP/s  {row['difference'].get(peer, 0):.1e}{same}"


def _row(name: str, text: str, args: Any) -> dict[str, Any]:
    import jax

    from attn_tune.ops.flash_attention.problem import flops

    problem = problem_of("flash_attention", text)
    row: dict[str, Any] = {"point": name, "signature": problem.signature.text, "flops": flops(problem, "bwd")}
    peers = _peers(problem, (*_OTHERS, *(_FA4 if args.rival else ())))
    if args.dry:
        print(f"{name}: {', '.join(peers)}", flush=True)
        return row
    given = jax.jit(functools.partial(_inputs, problem))()
    known: dict[str, Any] = {}
    row |= {"difference": {}, "repeated": {}}
    calls = {peer: (call, given) for peer, (_, call) in peers.items()}
    compiled = compiled_calls(calls, functools.partial(_compare, known, row["difference"]))
    for peer, (is_ordered, _) in peers.items():
        if is_ordered and peer in compiled.entries:
            first, second = compiled.entries[peer](), compiled.entries[peer]()
            row["repeated"][peer] = all(bool((first[x] == second[x]).all()) for x in first)
    return row | timed(name, compiled, args.rounds)


def _compare(known: dict[str, Any], found: dict[str, float], peer: str, made: Mapping[str, Any]) -> None:
    """Notes the largest difference of the gradients of a peer from those of the first one."""
    import jax.numpy as jnp

    made = {name: made[name].astype(jnp.float32) for name in ("dq", "dk", "dv")}
    known.update({} if known else made)
    found[peer] = max(float(jnp.abs(x - known[n]).max() / jnp.abs(known[n]).max()) for n, x in made.items())


def _inputs(problem: Any) -> tuple[Any, Any, Any]:
    """Operands, what the forward leaves, and a cotangent, all of random numbers."""
    import jax

    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load
    from attn_tune.ops.flash_attention.inputs import make_inputs
    from attn_tune.ops.flash_attention.operands import Residuals

    operands = make_inputs(problem, "fwd", 0)
    search = get_kernel("flash_attention/triton").searches["fwd"]
    made = load(search.call)(problem, search.heuristic(problem, planned_device()), operands)
    saved = Residuals(made["out"], made["lse"])
    return operands, saved, jax.random.normal(jax.random.key(1), saved.out.shape, saved.out.dtype)


def _peers(problem: Any, others: Sequence[str]) -> dict[str, tuple[bool, Callable[..., Any]]]:
    """For each peer whether it must give the same bits again, and its call of what ``_inputs`` makes."""
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load

    found = {}
    for kernel in (*others, _HOPPER):
        spec = get_kernel(f"flash_attention/{kernel}")
        if spec.unsupported(problem, "bwd", planned_device()) is not None:
            continue
        search = spec.searches["bwd"]
        # Head dim 256 has no dq of the step before.
        tried = [c for c in _CHANGES if problem.head_dim <= 128 or not c["late_dq"]]
        if problem.soft_cap is not None:
            tried.append({"fast_tanh": False})
        changes: Changes = {"": tried} if kernel == _HOPPER else {}
        for name, config in configs_of(spec.id, problem, "bwd", changes).items():
            call = functools.partial(_backward, load(search.call), problem, config)
            found[f"{kernel} {name}"] = (not search.nondeterministic, call)
    return found


def _backward(call: Callable[..., Any], problem: Any, config: Any, given: tuple[Any, Any, Any]) -> Any:
    from attn_tune.api.flash_attention_call import row_delta
    from attn_tune.ops.flash_attention.operands import BackwardInputs

    operands, saved, dout = given
    return call(problem, config, BackwardInputs(operands, saved, dout, row_delta(saved, dout, None)))


def _compile(arguments: Sequence[str]) -> int:
    """Compiles all launches of Triton of the points that ``--only`` names, in four processes."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    words = arguments[arguments.index("--only") + 1 :] if "--only" in arguments else [""]
    chosen = [text for name, text in _POINTS.items() if any(word in name for word in words)]
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(_lower, text, n) for text in chosen for n in range(-1, len(_CHANGES) + 2)]
        for said in (job.result() for job in jobs):
            print(said, flush=True) if said else None
    return 0


def _lower(text: str, number: int) -> str:
    """Lowers one peer of a point, or with -1 the forward; returns what failed."""
    import jax

    from attn_tune.kernels.lang.triton.target import compile_target

    problem = problem_of("flash_attention", text)
    made = functools.partial(_inputs, problem)
    peers = list(_peers(problem, ("triton",)).items())
    name, call, shapes = "forward", made, ()
    with compile_target(90):
        if number >= len(peers):
            return ""
        if number >= 0:
            name, (_, call) = peers[number]
            shapes = (jax.eval_shape(made),)
        try:
            jax.jit(call).trace(*shapes).lower(lowering_platforms=("cuda",))
        except Exception as error:  # of one peer
            return f"{text} {name}: {type(error).__name__}: {str(error)[:300]}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
