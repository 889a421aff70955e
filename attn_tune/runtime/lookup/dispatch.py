"""The way into the lookup: ``choose``, ``lookup`` and ``explain`` find the kernel and the config of a problem.

A question that was asked before is one dictionary look-up. The active view holds the dictionary, because it is all
that decides an answer besides the question.
"""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attn_tune.devices.identity import current_device
from attn_tune.kernels.registry import kernels_of
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.ops.installed import one_line
from attn_tune.ops.registry import get_op
from attn_tune.packs.override_entries import Entry
from attn_tune.runtime import answer_listeners, lookup_counters, misses, rank_agreement
from attn_tune.runtime.active.layers import current_view
from attn_tune.runtime.active.view import View
from attn_tune.runtime.lookup.answer import Answer, Rejection, Rung
from attn_tune.runtime.lookup.explain import Explanation, nearest_text
from attn_tune.runtime.lookup.ladder import Step
from attn_tune.runtime.lookup.question import AUTO, Question, TriedConfig, failed_configs, left_out, resolve, runs_on
from attn_tune.runtime.lookup.resolution import (
    Choice,
    heuristic,
    nothing_supports,
    plain_answer,
    resolve_question,
    untuned_order,
)
from attn_tune.runtime.overrides.active import way_out
from attn_tune.schema.config import config_from_dict, config_to_json, is_mapping
from attn_tune.schema.device import Device
from attn_tune.schema.errors import LockfileError, UnsupportedError, UsageError
from attn_tune.schema.logs import log


class _JaxConfig:
    """A stand-in for ``jax.config`` that imports jax when it is first read."""

    @property
    def jax_default_device(self) -> Any:
        global _jax_config
        import jax

        _jax_config = jax.config
        return jax.config.jax_default_device


# Its default device decides ``current_device()`` within one snapshot, and is far cheaper to read than to describe.
_jax_config: Any = _JaxConfig()


# Ids of the entries of overrides that were logged because they act on nothing.
_idle: set[str] = set()


@dataclass(frozen=True, slots=True)
class _Found:
    """A remembered choice.

    Attributes:
      tally: counts the lookups of its rung.
      nearest: for a miss, says what came nearest to an answer; None for any other answer.
      device: keeps the object alive whose ``id`` is in the key.
    """

    choice: Choice
    answer: Answer
    tally: list[int]
    nearest: Callable[[], str] | None
    device: Device | None


def choose(
    op: str,
    direction: str,
    problem: Any,
    *,
    device: Device | None = None,
    kernel: str | None = None,
    config: Any = None,
) -> Choice:
    """The kernel and config for ``problem``. Never tunes, never compiles; a repeated question costs a microsecond.

    Args:
      problem: the op's problem, or its signature, or the signature's text.
      device: None is the device JAX uses by default.
      kernel: ``"triton"`` or ``"OP/triton"`` restricts the choice; None or ``"auto"`` does not.
      config: a config dataclass, or its plain-data form together with ``kernel``; used as it is once it is checked.

    Raises:
      UsageError: unknown op, direction, kernel or knob; an environment variable has a value that it cannot have.
      UnsupportedError: no kernel can do the problem on this device, or the given config cannot; with every reason.
      NoDataError: nothing tuned answers, and misses are strict.
      LockfileError: only a file of overrides may answer, and it does not.
      DisagreementError: the processes of this job would choose differently.
    """
    if config is not None:
        return _explicit(op, direction, problem, device or current_device(), kernel, config)
    return _found(op, direction, problem, device, kernel).choice


def agreed_view() -> View:
    """The view that answers here and now, once it is known that the other processes of the job answer alike.

    Raises:
      UsageError: an environment variable has a value that it cannot have.
      StorageError, IntegrityError: a file of overrides that the environment names cannot be read.
      DisagreementError: the processes of this job would choose differently.
    """
    view = current_view()
    try:
        misses.miss_mode()  # A misspelled one is an error now, not at the first miss.
    except UsageError as error:
        rank_agreement.report_unusable(error)
        raise
    rank_agreement.check(view)
    return view


def leave_out(kernel: str, error: Exception) -> None:
    """Let others answer for ``kernel``, ``"op/name"``, here: it cannot be loaded, or returns what it must not."""
    if kernel not in left_out:
        left_out[kernel] = one_line(error)
        log.warning("%s is left out of this process: %s", kernel, left_out[kernel])
    current_view().settings.log.forget(kernel)


def tried_config(answer: Answer) -> TriedConfig:
    """The config of an answer, as ``leave_out_config`` takes it."""
    kernel, config = f"{answer.op}/{answer.kernel}", config_to_json(answer.config or {})
    return TriedConfig(kernel, answer.direction, answer.signature, answer.device, config)


def leave_out_config(config: TriedConfig, error: Exception) -> None:
    """Let another config or kernel answer a question here, unless one is asked for: this one failed."""
    said = one_line(error)
    if failed_configs.setdefault(config, said) is said:
        log.warning("%s is left out of %s of %s: %s", config.kernel, config.direction, config.signature, said)
    current_view().settings.log.forget(config.kernel, config.direction, config.signature)


def take_in_config(config: TriedConfig) -> None:
    """Let a config answer again that ``leave_out_config`` left out: no other can."""
    failed_configs.pop(config, None)


def lookup(
    op: str,
    problem: Any,
    direction: str | None = None,
    *,
    device: Device | None = None,
    kernel: str | None = None,
) -> Answer:
    """The answer for a problem, a signature, or a signature's text: for kernels that run themselves.

    Without a direction, it is the first of the op.

    Raises:
      UsageError: unknown op, direction or kernel; an environment variable has a value that it cannot have.
      UnsupportedError: no kernel can do the problem on this device; with every reason.
      NoDataError: nothing tuned answers, and misses are strict.
      LockfileError: only a file of overrides may answer, and it does not.
      DisagreementError: the processes of this job would choose differently.
    """
    return _found(op, direction, problem, device, kernel).answer


def _found(op: str, direction: str | None, problem: Any, device: Device | None, kernel: str | None) -> _Found:
    """The answer to a question, counted and sent to listeners.

    Every warm lookup takes this way; its shape was measured (``benchmarks/lookup_latency.py``).
    """
    found: _Found | None = current_view().entries.get(
        (
            op,
            direction,
            problem,
            kernel,
            _jax_config.jax_default_device if device is None else id(device),
        )
    )
    if found is None or ((left_out or failed_configs) and _is_left_out(found.answer, kernel)):
        found = _find(op, direction, problem, device, kernel)
    found.tally[0] += 1
    if found.nearest is not None:
        misses.count(found.answer, found.nearest)
    if answer_listeners.active:
        answer_listeners.notify(found.answer)
    return found


def explain(
    op: str,
    problem: Any,
    direction: str | None = None,
    *,
    device: Device | None = None,
    kernel: str | None = None,
) -> Explanation:
    """Every step of the lookup that ``choose`` would make now. Counts nothing; a refused miss is a step, not raised.

    Without a direction, it is the first of the op.

    Raises:
      UsageError: unknown op, direction or kernel, a malformed signature, or an environment variable as in ``choose``.
      StorageError, IntegrityError: a file of overrides that the environment names cannot be read.
    """
    view = current_view()
    strict_by = misses.strict_by()
    question = _ask(op, direction, problem, device or current_device(), kernel, view)
    ignored = [
        Rejection(subject=f"pack {source.path}", reason=source.error)
        for source in view.settings.sources
        if source.error is not None
    ]
    ignored += [
        Rejection(subject="override", reason=reason) for file in view.overrides.files for reason in file.ignored
    ]
    ignored += [
        Rejection(subject=str(entry), reason=f"acts on nothing here: {reason}")
        for entry, reason in _idle_entries(view, question.op.name)
    ]
    if question.overrides.broken:
        ignored.append(Rejection(subject="all packs", reason=question.overrides.broken))
    try:
        resolved = resolve_question(question, view, with_nearest=True)
        steps, choice = resolved.steps, resolved.choice
    except LockfileError as error:
        ignored, steps, choice = [Rejection(subject="everything", reason=str(error))], (), None
    answer = choice.answer if choice else None
    # After the walk, which may have turned its config down.
    untuned, turned_down = heuristic(question)
    only = view.overrides.only
    refused_by = strict_by if answer and answer.is_miss else ""
    return Explanation(
        op=op,
        direction=question.direction,
        signature=question.signature.text,
        device=question.device,
        steps=steps,
        ignored=tuple(ignored),
        kernels=question.refusals(),
        able=tuple(s.id for s in untuned_order(question)),
        absent=tuple(s.id for s in question.specs if not runs_on(s, question.device)),
        turned_down=turned_down,
        heuristic=untuned.answer if untuned else None,
        answer=None if refused_by else answer,
        refused_by=refused_by,
        only_by=only[0].path if only else "",
        only_ended_by=way_out(only[0].path, os.environ) if only else "",
        unmet=_unmet(question, steps),
    )


def _unmet(question: Question, steps: tuple[Step, ...]) -> Step | None:
    """The first exact row that the job allows of a kernel that cannot run here, where the device is another one.

    On such a device the kernel did this very problem, so what refuses it is the software of this machine.
    """
    for step in steps:
        if step.rung is not Rung.EXACT or step.rejected is None or step.row is None:
            continue
        spec, row = question.spec(step.row.kernel), step.row
        if spec is None or question.overrides.broken or question.barred(spec, row):
            continue
        if question.overrides.forbidding(question.asked, spec.name, row.config):
            continue
        if question.refusal_of(spec) is not None:
            # Last: it imports jax.
            return None if question.device.variant == current_device().variant else step
    return None


def _idle_entries(view: View, op: str) -> tuple[tuple[Entry, str], ...]:
    overrides = view.overrides
    if not overrides.files:
        return ()
    if op not in overrides.idle:
        # It asks questions itself, and so imports this room.
        from attn_tune.runtime.overrides.check import idle_entries

        overrides.idle[op] = tuple(idle_entries(overrides, op))
    return overrides.idle[op]


def _is_left_out(answer: Answer, kernel: str | None) -> bool:
    has_failed = kernel in (None, AUTO) and tried_config(answer).failure is not None
    return has_failed or f"{answer.op}/{answer.kernel}" in left_out


def _find(op: str, direction: str | None, problem: Any, device: Device | None, kernel: str | None) -> _Found:
    """Find the first answer to a question, and remember it. The key is made again: asking may have imported jax."""
    view = agreed_view()
    here = device or current_device()
    if device is None:
        rank_agreement.check_device(view, here)
    question = _ask(op, direction, problem, here, kernel, view)
    for entry, reason in _idle_entries(view, question.op.name):
        if entry.id not in _idle:
            _idle.add(entry.id)
            log.warning("%s acts on nothing here: %s", entry, reason)
    resolved = resolve_question(question, view)
    choice = resolved.choice
    if choice is None:
        raise nothing_supports(question, resolved.steps)
    view.settings.log.note(question.kernel or "", here, choice.answer)
    rung = choice.answer.rung
    found = _Found(
        choice,
        choice.answer,
        lookup_counters.tally(rung),
        _nearest_of(question, view) if rung is Rung.UNTUNED else None,
        device,
    )
    key = (
        op,
        direction,
        problem,
        kernel,
        _jax_config.jax_default_device if device is None else id(device),
    )
    if left_out or failed_configs:
        # What is remembered may be a kernel or config that was left out since.
        view.entries.pop(key, None)
    return view.put(key, found)


def _ask(op: str, direction: str | None, problem: Any, device: object, kernel: str | None, view: View) -> Question:
    if not isinstance(device, Device):
        raise UsageError(
            f"device must be a Device or None, got {device!r}; "
            "ATTN_TUNE_DEVICE_AS and 'attn-tune explain --device' take a name"
        )
    settings, contract = view.settings, get_op(op)
    return Question(
        contract,
        contract.directions[0] if direction is None else direction,
        problem,
        device,
        kernel,
        view.overrides,
        settings.determinism,
        settings.unproven,
    )


def _nearest_of(question: Question, view: View) -> Callable[[], str]:
    return lambda: nearest_text(resolve_question(question, view, with_nearest=True).steps)


def _explicit(op: str, direction: str, problem: Any, device: Device, kernel: str | None, config: Any) -> Choice:
    """The caller's own config, checked against the kernel's limits."""
    name = None if kernel == AUTO else kernel
    spec = resolve(op, name) if name else _kernel_of_config(op, direction, config)
    # `never` entries hold for it too: they must be those of all processes.
    question = _ask(op, direction, problem, device, spec.name, agreed_view())
    if reason := question.refusal_of(spec):
        raise UnsupportedError(f"{spec.id} cannot do {question.signature} on {device}: {reason}")
    search = spec.searches[direction]
    if is_mapping(config):
        config = config_from_dict(search.config, config)
    if not isinstance(config, search.config):
        raise UsageError(
            f"the {direction} config of {spec.id} is a {search.config.__name__}, got {type(config).__name__}"
        )
    reason = search.infeasible(question.problem, device, config)
    if reason := reason or question.forbidden(spec, config):
        raise UnsupportedError(f"{spec.id} cannot run {question.signature} on {device} with {config}: {reason}")
    return Choice(spec, config, plain_answer(question, spec, config, Rung.EXPLICIT))


def _kernel_of_config(op: str, direction: str, config: Any) -> KernelSpec:
    if is_mapping(config) or not dataclasses.is_dataclass(config):
        raise UsageError(
            f"a config given as {type(config).__name__} does not say of which kernel of {op} it is: name one too, by "
            "platform= in a call and by kernel= in a lookup"
        )
    owners = [s for s in kernels_of(op) if _config_type(s, direction) is type(config)]
    if len(owners) != 1:
        known = ", ".join(sorted(s.name for s in owners)) or "none"
        raise UsageError(
            f"kernels of {op} with the {direction} config {type(config).__name__}: {known}; name one, by "
            "platform= in a call and by kernel= in a lookup"
        )
    return owners[0]


def _config_type(spec: KernelSpec, direction: str) -> type | None:
    search: Search | None = spec.searches.get(direction)
    return search.config if search else None
