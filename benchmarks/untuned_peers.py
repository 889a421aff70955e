"""The parts that benchmarks of our untuned configs, of small changes to them and of a rival in torch share."""

import argparse
import dataclasses
import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple

from paged_decode_peers import versions

# A call and what it is given, by the name of a peer.
type Calls = dict[str, tuple[Callable[..., Any], Any]]
type Changes = Mapping[str, Sequence[Mapping[str, Any]]]


class Compiled(NamedTuple):
    """The calls of a point that compile, ready to run, and why the others cannot, by the name of a peer."""

    entries: dict[str, Callable[[], Any]]
    cannot: dict[str, str]


def record(
    about: str,
    points: Iterable[tuple[Any, ...]],
    row_of: Callable[..., dict[str, Any]],
    words: Callable[[dict[str, Any], str], str],
    *,
    rival: str,
    rounds: int,
    arguments: Sequence[str] | None,
) -> int:
    """Runs the command line of such a benchmark; returns the exit status.

    Args:
      about: its description, of which the first line is shown.
      points: each a name, and what ``row_of`` takes besides the name and before the options.
      row_of: the row of a point; with the option ``dry`` without times.
      words: what is printed of a row and a peer beside its time.
      rival: the name of the option that times a rival too.
      rounds: how many times each call is timed by default.
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=[""], help="points whose name contains one of these")
    parser.add_argument("--dry", action="store_true", help="only make problems and configs")
    parser.add_argument(f"--{rival}", dest="rival", action="store_true", help=f"time {rival} too")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=float, default=100.0, help="no point begins later than that")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    report: dict[str, Any] = {"versions": versions(), "rows": []}
    end = time.monotonic() + args.seconds
    for name, *point in points:
        if not any(word in name for word in args.only):
            continue
        if (begin := time.monotonic()) > end:
            print(f"{name}: no time left")
            continue
        row = row_of(name, *point, args)
        report["rows"].append(row)
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")
        if args.dry:
            continue
        us, cannot = row["us"], row["cannot"]
        print(f"\n{name}  ({time.monotonic() - begin:.0f} s)", flush=True)
        for peer in sorted(us, key=us.__getitem__):
            print(f"  {us[peer]:10.1f} us  {words(row, peer)}  {peer}", flush=True)
        for peer, reason in cannot.items():
            print(f"  {peer} cannot: {reason}", flush=True)
    return 0


def problem_of(op_name: str, text: str) -> Any:
    """The problem of an op with this text of a signature behind its name and version."""
    from attn_tune.ops.registry import get_op

    op = get_op(op_name)
    return op.from_signature(op.parse_signature(f"{op_name}/v1 {text}"))


def planned_device() -> Any:
    """The device of this process; without a GPU an H200, for the configs of a dry run."""
    from attn_tune.devices.identity import current_device
    from attn_tune.schema.device import Device

    device = current_device()
    if device.platform == "cuda":
        return device
    return Device(platform="cuda", family="sm_90", variant="nvidia-h200", units=132)


def configs_of(kernel: str, problem: Any, direction: str, changes: Changes) -> dict[str, Any]:
    """The untuned config and changed ones that are feasible, by what they change.

    Args:
      changes: knobs by part; a config with another part differs in this one alone. ``""`` is the whole config.
    """
    from attn_tune.kernels.registry import get_kernel

    device, search = planned_device(), get_kernel(kernel).searches[direction]
    start = search.heuristic(problem, device)
    found = {"untuned": start}
    for part, several in changes.items():
        base = getattr(start, part) if part else start
        for change in several:
            config = search.whole(start, part, dataclasses.replace(base, **change))
            if config != start and search.infeasible(problem, device, config) is None:
                found[" ".join((part, *(f"{k}={v}" for k, v in change.items()))).strip()] = config
    return found


def calls_of(kernel: str, problem: Any, direction: str, configs: Mapping[str, Any], given: Any) -> Calls:
    """A call of a kernel for each of its configs."""
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.ops.contract import load

    call = load(get_kernel(kernel).searches[direction].call)
    return {name: (functools.partial(call, problem, config), given) for name, config in configs.items()}


def compiled_calls(calls: Calls, check: Callable[[str, Any], Any] | None = None) -> Compiled:
    """The calls, compiled and run once; ``check`` is given a peer and its result, and may refuse it with an error."""
    import jax

    found = Compiled({}, {})
    for peer, (call, given) in calls.items():
        try:
            compiled = jax.jit(call).lower(given).compile()
            result = jax.block_until_ready(compiled(given))
            if check is not None:
                check(peer, result)
            found.entries[peer] = functools.partial(compiled, given)
        except Exception as error:  # any error of a peer is that peer's result
            found.cannot[peer] = short(error)
    return found


def copy_of(array: Any) -> Callable[[], Any]:
    """A call that reads an array of floats once and writes as many bytes: what the device's memory allows."""
    import jax

    return functools.partial(jax.jit(lambda x: x * 0.5).lower(array).compile(), array)


def timed(
    name: str,
    calls: Compiled,
    rounds: int,
    rivals: Mapping[str, Callable[[], float]] | None = None,
    *,
    seconds: float = 4.0,
) -> dict[str, Any]:
    """Microseconds of a call by peer, interleaved and with a cold cache, the timer, and reasons of those that cannot.

    Args:
      name: the name of the point.
      rivals: functions that time themselves, run in a process of their own: once torch's profiler has run in a
        process, XLA's finds no kernels there any more, and all later points would be timed by the host's clock.
      seconds: about how long all rounds may take.
    """
    from attn_tune.devices.identity import current_device
    from attn_tune.tuner.protocol import MeasurePolicy
    from attn_tune.tuner.work.measure import make_flush, race
    from attn_tune.tuner.work.timers.choose import choose_timer

    timer = choose_timer()
    measured = race(
        list(calls.entries.values()),
        timer=timer,
        policy=MeasurePolicy(rounds=rounds, rounds_max_s=seconds),
        flush=make_flush(current_device()),
        round_id=name,
    ).measurements
    us = {peer: round(m.median_ns / 1e3, 2) for peer, m in zip(calls.entries, measured, strict=True)}
    cannot = dict(calls.cannot)
    for rival, time_us in (rivals or {}).items():
        try:
            found = _process_of_torch().submit(_time_or_reason, time_us).result()
        except Exception as error:  # it ended, or could not be given the rival
            found = short(error)
            if isinstance(error, BrokenProcessPool):
                _process_of_torch.cache_clear()
        (cannot if isinstance(found, str) else us)[rival] = found
    return {"us": us, "timer": timer.name, "cannot": cannot}


@functools.cache
def _process_of_torch() -> Executor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """Ends this process, which has a GPU's memory, when the benchmark is killed."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _time_or_reason(time_us: Callable[[], float]) -> float | str:
    """As text an error comes back of any type: those of compilers often cannot be pickled."""
    try:
        return time_us()
    except Exception as error:  # as in ``compiled_calls``
        return short(error)


def short(error: Exception) -> str:
    """The type of an error and the start of its text, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
