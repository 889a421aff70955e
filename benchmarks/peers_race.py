"""One row of the comparison: every implementation compiled while nothing is timed, checked, and raced."""

import functools
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from peers import AUTO, Peer
from peers_inputs import DIFFERENTIABLE, Case, make_answers

# A backward counts as 2.5 forwards, the convention of FlashAttention-2 (arXiv 2307.08691, section 4.1).
_FORWARDS = {"fwd": 1.0, "fwd+bwd": 3.5}


class DeviceLostError(Exception):
    """The device answers nothing any more; ``implementation`` ran last."""

    def __init__(self, implementation: str, direction: str, reason: str):
        super().__init__(f"{implementation}, {direction}: {reason}")
        self.implementation, self.direction, self.reason = implementation, direction, reason


@dataclass(kw_only=True)
class Entry:
    """One implementation in one direction: the row that is recorded, and what runs it."""

    peer: Peer
    direction: str
    row: dict[str, Any]
    attend: Any = None
    compiled: Any = None
    arguments: tuple[Any, ...] = field(default=())

    @property
    def is_live(self) -> bool:
        """Whether nothing has stopped it so far."""
        return "unsupported" not in self.row and "failed" not in self.row

    def fail(self, error: BaseException) -> None:
        """Records what it raised; what it says it has not implemented is not supported."""
        kind = "unsupported" if isinstance(error, NotImplementedError) else "failed"
        self.row[kind] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one row's race.

    Attributes:
      directions: the directions to time, from ``"fwd"`` and ``"fwd+bwd"``.
      rounds: samples of each implementation and direction.
      threads: compilations at a time.
      gradients_up_to: gradients are checked up to this query length.
    """

    directions: Sequence[str] = ("fwd", "fwd+bwd")
    rounds: int = 20
    threads: int = 4
    gradients_up_to: int = 4096


def race_case(
    name: str,
    case: Case,
    peers: Sequence[Peer],
    settings: Settings,
    lost: Mapping[tuple[str, str], str],
    say: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """The rows of one point. Any error of an implementation is its own row's ``failed``.

    Args:
      lost: implementations and directions that are not run, and why.

    Raises:
      DeviceLostError: an implementation left the device unusable.
    """
    entries = [_entry(name, case, peer, d, lost) for d in settings.directions for peer in peers]
    gradients = "fwd+bwd" in settings.directions and case.problem.q_len <= settings.gradients_up_to
    _prepare(entries, case)
    answers = _compile(entries, case, gradients, settings.threads)
    exact, plain = answers
    for direction in settings.directions:
        mine = [e for e in entries if e.direction == direction]
        for entry in mine:
            if entry.is_live:
                _check(entry, case, exact, plain)
        _race([e for e in mine if e.is_live], case, settings.rounds)
        say(f"\n{name}  {direction}")
        for entry in mine:
            say(f"  {line(entry.row)}")
    return [entry.row for entry in entries]


def line(row: Mapping[str, Any]) -> str:
    """One implementation's result in words."""
    note = row.get("unsupported") or row.get("failed")
    if note:
        kind = "cannot" if "unsupported" in row else "failed"
        return f"{row['implementation']:24s} {kind}: {note[:110]}"
    error = row.get("error_ratio")
    checked = "not compared" if error is None else f"error {error:.2f}"
    wrong = " wrong" if error is not None and error > 1 else ""
    return (
        f"{row['implementation']:24s} {row['median_us']:10.1f} us {row['tflops']:7.1f} TFLOP/s"
        f"  {checked}{wrong}  {row.get('kernel', '')}"
    )


def _entry(name: str, case: Case, peer: Peer, direction: str, lost: Mapping[tuple[str, str], str]) -> Entry:
    row: dict[str, Any] = {"point": name, "signature": case.problem.signature.text}
    row |= {"direction": direction, "implementation": peer.name, "pairs": case.pairs}
    entry = Entry(peer=peer, direction=direction, row=row)
    if (peer.name, direction) in lost:
        row["failed"] = f"it lost the device: {lost[peer.name, direction]}"
        return entry
    try:
        attend = peer.build(case.problem, case.arrays)
    except Exception as error:  # any error of a peer is that peer's result
        entry.fail(error)
        return entry
    if isinstance(attend, str):
        row["unsupported"] = attend
    else:
        entry.attend = attend
    if peer.name == AUTO:
        row["kernel"] = _chosen(case, direction)
    return entry


def _chosen(case: Case, direction: str) -> str:
    """The kernels that the lookup names."""
    from attn_tune.runtime.lookup.dispatch import explain

    found = []
    for one in direction.split("+"):
        answer = explain("flash_attention", case.problem, one).answer
        found.append("none" if answer is None else str(answer.kernel).rpartition("/")[2])
    return "+".join(dict.fromkeys(found)) if len(set(found)) == 1 else "+".join(found)


def _prepare(entries: Sequence[Entry], case: Case) -> None:
    """Implementations that tune themselves do so, once for both directions."""
    done: dict[str, Exception | None] = {}
    for entry in entries:
        prepare = entry.peer.prepare
        if prepare is None or not entry.is_live:
            continue
        if entry.peer.name not in done:
            done[entry.peer.name] = None
            try:
                prepare(entry.attend, case.arrays)
            except Exception as error:
                done[entry.peer.name] = error
        if (error := done[entry.peer.name]) is not None:
            entry.fail(error)


def _compile(entries: Sequence[Entry], case: Case, gradients: bool, threads: int) -> Any:
    """Compiles all that is live, and makes the right answers meanwhile: ``(exact, plain)``."""

    def compile_entry(entry: Entry) -> None:
        try:
            function, entry.arguments = _call(entry, case)
            with entry.peer.within():
                entry.compiled = function.lower(*entry.arguments).compile()
        except Exception as error:
            entry.fail(error)

    with ThreadPoolExecutor(threads) as pool:
        answers = pool.submit(make_answers, case, gradients=gradients)
        live = [e for e in entries if e.is_live]
        for future in [pool.submit(compile_entry, e) for e in live if not e.peer.compiles_alone]:
            future.result()
        made = answers.result()
        for entry in live:
            if entry.peer.compiles_alone:
                compile_entry(entry)
        return made()


def _call(entry: Entry, case: Case) -> tuple[Any, tuple[Any, ...]]:
    import jax

    arrays = dict(case.arrays)
    if entry.direction == "fwd":
        return jax.jit(entry.attend), (arrays,)
    given = {n: arrays.pop(n) for n in DIFFERENTIABLE if n in arrays}

    def both(given: Any, rest: Any, dout: Any) -> Any:
        out, pull = jax.vjp(lambda x: entry.attend({**x, **rest}), given)
        (grads,) = pull(dout)
        return out, grads

    return jax.jit(both), (given, arrays, case.dout)


def _check(entry: Entry, case: Case, exact: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
    """Runs it once; ``errors`` and their worst, ``error_ratio``, where its answer can be known."""
    import jax

    from attn_tune.ops.registry import get_op
    from attn_tune.ops.tolerance import compare

    op = get_op("flash_attention")
    declared = [o for way in op.directions for o in op.outputs(case.problem, way)]
    try:
        found = jax.block_until_ready(entry.compiled(*entry.arguments))
        if entry.direction == "fwd":
            outputs = {"out": found}
        else:
            outputs = {"out": found[0]} | {f"d{n}": x for n, x in found[1].items()}
        if case.problem.dropout_rate > 0 and not entry.peer.is_ours:
            entry.row["not_compared"] = "it drops other weights than the op defines"
            return
        outputs = {n: x for n, x in outputs.items() if n in exact}
        if not entry.peer.is_ours:
            # JAX lets a custom gradient be wider than its operand, and a library may use that: its numbers are judged.
            wider = {n: x for n, x in outputs.items() if n != "out" and x.dtype.itemsize > plain[n].dtype.itemsize}
            if wider:
                entry.row["wider"] = {n: str(x.dtype) for n, x in wider.items()}
            outputs |= {n: x.astype(plain[n].dtype) for n, x in wider.items()}
        errors = {e.output: round(e.ratio, 3) for e in compare(outputs, exact, plain, declared)}
        entry.row |= {"errors": errors, "error_ratio": max(errors.values())}
    except Exception as error:
        entry.fail(error)
        _ask_device(entry, error)


def _race(entries: Sequence[Entry], case: Case, rounds: int) -> None:
    from attn_tune.tuner.protocol import MeasurePolicy
    from attn_tune.tuner.work.measure import race
    from attn_tune.tuner.work.timers.choose import choose_timer

    if not entries:
        return
    policy = MeasurePolicy(rounds=rounds, rounds_max_s=20.0)
    race_id = uuid.uuid4().hex
    try:
        measured = race(
            [lambda e=entry: e.compiled(*e.arguments) for entry in entries],
            timer=choose_timer(),
            policy=policy,
            flush=_flush(),
            round_id=race_id,
        ).measurements
    except Exception as error:
        for entry in entries:
            entry.fail(error)
        _ask_device(entries[-1], error)
        return
    work = case.flops * _FORWARDS[entries[0].direction]
    for entry, measurement in zip(entries, measured, strict=True):
        entry.row["median_us"] = round(measurement.median_ns / 1e3, 2)
        entry.row["tflops"] = round(work / measurement.median_ns / 1e3, 1)
        entry.row["samples_ns"] = list(measurement.samples_ns)
        entry.row["timer"] = measurement.protocol.timer
        entry.row["race"] = race_id


@functools.cache
def _flush() -> Any:
    """One for the whole run: its program is compiled when it is made."""
    from attn_tune.devices.identity import current_device
    from attn_tune.tuner.work.measure import make_flush

    return make_flush(current_device())


def _ask_device(entry: Entry, error: Exception) -> None:
    """Raises DeviceLostError unless the device still computes, and answers within a minute."""
    import jax.numpy as jnp

    answered = threading.Event()

    def ask() -> None:
        try:
            jnp.arange(8).sum().block_until_ready()
            answered.set()
        except Exception:
            return

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(60.0)
    if not answered.is_set():
        raise DeviceLostError(entry.peer.name, entry.direction, entry.row.get("failed", str(error)))
