"""Which kernel runs a problem, with which config: the explicit one, a tuned one, or the kernel's heuristic."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attn_tune.kernels.ask import AUTO, Ask, resolve
from attn_tune.kernels.registry import get_op, kernels_of
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.runtime import misses, overlay, snapshot
from attn_tune.runtime.answer import Answer, Rejection, Rung
from attn_tune.runtime.devices import current_device
from attn_tune.runtime.explain import Explanation, nearest_text
from attn_tune.runtime.ladder import Match, Question, Walk, walk
from attn_tune.runtime.packs import Pack
from attn_tune.runtime.sources import overlay_source
from attn_tune.schema.config import config_from_dict, config_to_dict
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UnsupportedError, UsageError


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs: the kernel, its config as its own dataclass, and where that came from."""

    spec: KernelSpec
    config: Any
    answer: Answer


def choose(
    op: str,
    direction: str,
    problem: Any,
    *,
    device: Device | None = None,
    kernel: str | None = None,
    config: Any = None,
) -> Choice:
    """The kernel and config for ``problem``. Never tunes, never compiles; a repeated question costs microseconds.

    Args:
      problem: the op's problem, or its signature, or the signature's text.
      device: None is the device JAX uses by default.
      kernel: ``"triton"`` or ``"flash_attention/triton"`` restricts the choice; None or ``"auto"`` does not.
      config: a config dataclass, or its plain-data form together with ``kernel``; used as it is once it is checked.

    Raises:
      UsageError: unknown op, direction, kernel or knob.
      UnsupportedError: no kernel can do the problem on this device, or the given config cannot; with every reason.
      NoDataError: nothing tuned answers, and misses are strict.
    """
    if config is not None:
        return _explicit(op, direction, problem, device or current_device(), kernel, config)
    overlays = overlay.active_overlays()
    process = snapshot.current_snapshot()
    memo = process.memo(overlays)
    key = (op, direction, problem, kernel, device or _device_token())
    found: _Found | None = memo.entries.get(key)
    if found is None:
        found = _find(op, direction, problem, device or current_device(), kernel, process, overlays)
        memo.put(key, found)
    misses.count(found.choice.answer, found.nearest)
    return found.choice


def lookup(
    op: str,
    problem: Any,
    direction: str = "fwd",
    *,
    device: Device | None = None,
    kernel: str | None = None,
) -> Answer:
    """The answer for a problem, a signature, or a signature's text: for kernels that run themselves.

    Raises:
      As ``choose``.
    """
    return choose(op, direction, problem, device=device, kernel=kernel).answer


def explain(
    op: str,
    problem: Any,
    direction: str = "fwd",
    *,
    device: Device | None = None,
    kernel: str | None = None,
) -> Explanation:
    """Every step of the lookup that ``choose`` would make now. Counts nothing and never misses strictly.

    Raises:
      UsageError: unknown op, direction or kernel, or a malformed signature.
    """
    contract = get_op(op)
    question = Ask(contract, direction, problem, device or current_device(), kernel)
    process, overlays = snapshot.current_snapshot(), overlay.active_overlays()
    walked = _walk(question, process, overlays, tell=True)
    untuned = _heuristic(question)
    heuristic = untuned.answer if untuned else None
    answer = _from_match(question, walked).answer if walked.match else heuristic
    return Explanation(
        op=op,
        direction=direction,
        signature=question.signature.text,
        device=question.device,
        steps=walked.steps,
        ignored=tuple(
            Rejection(subject=source.path, reason=source.error)
            for source in process.sources
            if source.error is not None
        ),
        kernels=question.refusals(),
        heuristic=heuristic,
        answer=answer,
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """A memoised choice; ``nearest`` says what came nearest to an answer, for a miss."""

    choice: Choice
    nearest: Callable[[], str]


def _find(
    op: str,
    direction: str,
    problem: Any,
    device: Device,
    kernel: str | None,
    process: snapshot.Snapshot,
    overlays: tuple[Pack, ...],
) -> _Found:
    question = Ask(get_op(op), direction, problem, device, kernel)
    walked = _walk(question, process, overlays)
    choice = _from_match(question, walked) if walked.match else _heuristic(question, walked)
    if choice is None:
        raise _nothing_supports(question)
    return _Found(choice, lambda: nearest_text(_walk(question, process, overlays, tell=True).steps))


def _walk(
    question: Ask,
    process: snapshot.Snapshot,
    overlays: tuple[Pack, ...],
    *,
    tell: bool = False,
) -> Walk:
    op = question.op
    asked = Question(
        op=op.name,
        direction=question.direction,
        signature=question.signature,
        fields=op.fields,
        device=question.device,
        kernel=question.kernel,
    )
    sources = (*map(overlay_source, overlays), *process.sources)
    shelves = snapshot.shelves(sources, op.name, question.direction, op.fields)
    return walk(asked, shelves, question, tell=tell)


def _from_match(question: Ask, walked: Walk) -> Choice:
    match = walked.match
    assert match is not None
    spec = question.specs[match.row.kernel]
    config = config_from_dict(spec.searches[question.direction].config, match.row.config)
    return Choice(spec, config, _answer(question, spec, config, match, walked))


def _answer(question: Ask, spec: KernelSpec, config: Any, match: Match, walked: Walk) -> Answer:
    return Answer(
        op=question.op.name,
        direction=question.direction,
        signature=question.signature.text,
        device=str(question.device),
        kernel=spec.name,
        config=config_to_dict(config),
        rung=match.rung,
        source=str(match.pack),
        source_kind=match.kind,
        pack_digest=match.pack.digest,
        level=match.level,
        grade=match.grade,
        row_signature=match.row.signature,
        distance=match.distance,
        state=match.row.state,
        gain_ppm=match.row.gain_ppm,
        regret_ppm=match.row.regret_ppm,
        rejected=walked.rejected,
    )


def _heuristic(question: Ask, walked: Walk | None = None) -> Choice | None:
    """The untuned choice: of the kernels that can, the one its platform prefers; None if none can."""
    platform = question.device.platform
    able = [spec for spec in question.specs.values() if question.refusal_of(spec) is None]
    if not able:
        return None
    spec = min(able, key=lambda s: (-s.priority.get(platform, 0), s.name))
    search = spec.searches[question.direction]
    config = search.heuristic(question.problem, question.device)
    rejected = walked.rejected if walked else ()
    return Choice(spec, config, _plain_answer(question, spec, config, Rung.HEURISTIC, rejected))


def _plain_answer(
    question: Ask,
    spec: KernelSpec,
    config: Any,
    rung: Rung,
    rejected: tuple[Rejection, ...] = (),
) -> Answer:
    return Answer(
        op=question.op.name,
        direction=question.direction,
        signature=question.signature.text,
        device=str(question.device),
        kernel=spec.name,
        config=config_to_dict(config),
        rung=rung,
        rejected=rejected,
    )


def _explicit(
    op: str, direction: str, problem: Any, device: Device, kernel: str | None, config: Any
) -> Choice:
    """The caller's own config, checked against the kernel's limits."""
    name = None if kernel == AUTO else kernel
    spec = resolve(op, name) if name else _kernel_of_config(op, direction, config)
    question = Ask(get_op(op), direction, problem, device, spec.name)
    if reason := question.refusal_of(spec):
        raise UnsupportedError(f"{spec.id} cannot do {question.signature} on {device}: {reason}")
    search = spec.searches[direction]
    if isinstance(config, Mapping):
        config = config_from_dict(search.config, config)
    if not isinstance(config, search.config):
        raise UsageError(
            f"the {direction} config of {spec.id} is a {search.config.__name__}, got {type(config).__name__}"
        )
    if reason := search.infeasible(problem, device, config):
        raise UnsupportedError(
            f"{spec.id} cannot run {question.signature} on {device} with {config}: {reason}"
        )
    return Choice(spec, config, _plain_answer(question, spec, config, Rung.EXPLICIT))


def _kernel_of_config(op: str, direction: str, config: Any) -> KernelSpec:
    if isinstance(config, Mapping) or not dataclasses.is_dataclass(config):
        raise UsageError(
            f"a config given as {type(config).__name__} needs kernel=; name the kernel of {op}"
        )
    owners = [s for s in kernels_of(op) if _config_type(s, direction) is type(config)]
    if len(owners) != 1:
        known = ", ".join(sorted(s.name for s in owners)) or "none"
        raise UsageError(
            f"kernels of {op} with the {direction} config {type(config).__name__}: {known}; name one with kernel="
        )
    return owners[0]


def _config_type(spec: KernelSpec, direction: str) -> type | None:
    search: Search | None = spec.searches.get(direction)
    return search.config if search else None


def _nothing_supports(question: Ask) -> UnsupportedError:
    reasons = "; ".join(f"{r.subject}: {r.reason}" for r in question.refusals())
    return UnsupportedError(
        f"no kernel can do the {question.direction} of {question.signature} on {question.device}: "
        f"{reasons or 'none is registered'}"
    )


@functools.cache
def _jax_config() -> Any:
    import jax

    return jax.config


def _device_token() -> Any:
    """What decides ``current_device()`` within one snapshot, far cheaper to read than to find the device."""
    return _jax_config().jax_default_device
