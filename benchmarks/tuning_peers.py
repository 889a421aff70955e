"""Other tuners of attention in JAX that ``tuning_speed.py`` compares with: tokamax and ejkernel, by their own calls.

Both are loaded and have run something on the GPU before the clock starts.
"""

import collections
import contextlib
import importlib
import importlib.util
import os
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuning_record import Record, Request, Step, Task


class CannotRun(Exception):
    """The contender is not installed, or does not run here."""


def tune_tokamax(request: Request, implementation: str) -> Record:
    """tokamax's own ``autotune`` of the two ops that a forward with gradients is made of, one after the other.

    Its packs are ignored. Counted are the entries of what it returns: configs with timings, and exceptions.
    """
    _needs("tokamax")
    _stand_in_for_xprof()
    import tokamax as library
    from tokamax import autotuning

    device = _needs_gpu()
    arrays = make_arrays(request.task)

    def attend(*qkv: Any) -> Any:
        return library.dot_product_attention(*qkv, is_causal=request.task.causal, implementation=implementation)

    record = Record(device=device)
    start = time.monotonic()
    calls = autotuning.get_bound_args(with_gradients(attend), *arrays)
    if not calls:
        raise RuntimeError(f"no op of tokamax was found in {implementation} attention")
    for call in calls:
        result = library.autotune([call], ignore_cache=True, progress_bar=False)
        end = time.monotonic()
        op = type(call.op).__name__
        if not result.data:
            raise RuntimeError(f"tokamax gave no result for {op}; its log says why")
        step = autotuned_step(op, dict(result.data[0][1]), start, end)
        record = replace(record, steps=(*record.steps, step))
        record.write(request.record)
        start = time.monotonic()
    return record


def autotuned_step(op: str, timings: Mapping[Any, Any], start_s: float, end_s: float) -> Step:
    """Builds a ``Step`` from tokamax's result for each config: timings, or the exception that it ended with."""
    right = [t for t in timings.values() if not isinstance(t, BaseException)]
    wrong = [type(t).__name__ for t in timings.values() if isinstance(t, BaseException)]
    best_ms = min((t.median_evaluation_time_ms for t in right), default=None)
    return Step(
        direction="bwd" if "Vjp" in op else "fwd",
        start_s=start_s,
        end_s=end_s,
        statuses={"ok": len(right), **collections.Counter(wrong)},
        best_us=None if best_ms is None else best_ms * 1e3,
        # Summed over threads that wait for one another: more than the wall time, and no share of it.
        detail={
            "op": op,
            "lower_thread_s": sum(t.lower_time_ms for t in right) / 1e3,
            "compile_thread_s": sum(t.compile_time_ms for t in right) / 1e3,
        },
    )


def tune_ejkernel(request: Request, platform: str = "triton") -> Record:
    """ejkernel's own tuning: one eager call, which times forward and gradients together for each candidate.

    Counted are the candidates that its selector announces; those whose timing raised are ``failed``. The call also
    runs the winner once.
    """
    _needs("ejkernel")
    os.environ["EJKERNEL_AUTOTUNE_POLICY"] = "autotune"
    os.environ["EJKERNEL_PERSISTENT_CACHE_DIR"] = str(request.record.with_name("ejkernel"))
    import jax

    # The package has a function of the same name as the module.
    module = importlib.import_module("ejkernel.modules.operations.flash_attention")
    device = _needs_gpu() if platform != "xla" else {}
    arrays = make_arrays(request.task)
    with candidates_counted(module._flash_executor.chooser) as seen:
        start = time.monotonic()
        jax.block_until_ready(module.flash_attention(*arrays, causal=request.task.causal, platform=platform))
        end = time.monotonic()
    if not seen.announced:
        raise RuntimeError("ejkernel did not tune: it chose a config without trying any")
    times = seen.times_s
    step = Step(
        direction="fwd+bwd",
        start_s=start,
        end_s=end,
        statuses=_without_zeros(ok=len(times), failed=seen.announced - len(times)),
        best_us=min(times) * 1e6 if times else None,
        detail={"timer": "host clock, forward and gradients, mean of its calls"},
    )
    return Record(steps=(step,), device=device)


@dataclass
class Candidates:
    """Number of candidates that a selector announced, and the times of those that ran."""

    announced: int
    times_s: list[float]


@contextlib.contextmanager
def candidates_counted(chooser: Any) -> Iterator[Candidates]:
    """Listens to a selector of ejkernel (its ``on_event``) and to its tuner."""
    seen = Candidates(announced=0, times_s=[])
    measure = chooser.tuner.measure

    def on_event(event: str, **data: Any) -> None:
        if event == "autotune_start":
            seen.announced += data["candidates"]

    def measured(*args: Any, **kwargs: Any) -> float:
        seconds = measure(*args, **kwargs)
        seen.times_s.append(seconds)
        return seconds

    before, chooser.on_event, chooser.tuner.measure = chooser.on_event, on_event, measured
    try:
        yield seen
    finally:
        chooser.on_event, chooser.tuner.measure = before, measure


def make_arrays(task: Task) -> tuple[Any, Any, Any]:
    """Random query, key and value on the default device, which has then run something."""
    import jax

    keys = jax.random.split(jax.random.key(0), 3)
    heads = (task.heads, task.kv_heads, task.kv_heads)
    arrays = tuple(
        jax.random.normal(key, (task.batch, task.length, n, task.head_dim), task.dtype)
        for key, n in zip(keys, heads, strict=True)
    )
    return jax.block_until_ready(arrays)


def with_gradients(attend: Callable[..., Any]) -> Callable[..., Any]:
    """The output of ``attend`` and its gradients."""
    import jax

    def both(*arrays: Any) -> Any:
        out, pull = jax.vjp(attend, *arrays)
        return out, pull(out)

    return both


def _without_zeros(**counts: int) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise CannotRun(f"{package} is not installed")


def _needs_gpu() -> dict[str, Any]:
    """The identity of the GPU that jax uses."""
    import jax

    from attn_tune.devices.identity import current_device

    if jax.default_backend() != "gpu":
        raise CannotRun(f"needs a GPU; jax found {jax.default_backend()}")
    return current_device().identity


def _stand_in_for_xprof() -> None:
    """tokamax imports xprof, which weighs 30 MB, for timers that it does not use on a GPU: an empty one will do."""
    if importlib.util.find_spec("xprof"):
        return
    parent = None
    for name in ("xprof", "xprof.cli", "xprof.cli.tools", "xprof.cli.tools.get_kernel_stats_tool"):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
        if parent is not None:
            setattr(parent, name.rpartition(".")[2], module)
        parent = module
