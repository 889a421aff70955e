"""Decisions from predictions, for devices on which nothing was measured. A measurement always wins over them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from attn_tune.db.decide.selection import ranked
from attn_tune.schema import Decision, Rule, Trial
from attn_tune.schema.trial import WHOLE, Prediction, Status

# The statuses of a config that is only compiled, where times are predicted.
FATES = tuple(s for s in Status if s.needs_no_device and s is not Status.COMPILED)


def decide_predicted(trials: Iterable[Trial]) -> list[Decision]:
    """The config that is predicted to be fastest, of each kernel, for every (op, direction, signature, device).

    Rank 0 of a problem comes first. No time is given, for none was measured: ``gain`` is predicted too.
    """
    groups: dict[tuple, list[Trial]] = defaultdict(list)
    for trial in _newest(trials):
        if trial.status is Status.PREDICTED:
            key = (trial.signature.text, trial.direction, trial.device.digest, trial.kernel)
            groups[key].append(trial)
    found = [(key, *_decide_kernel(group)) for key, group in groups.items()]
    found.sort(key=lambda item: (*item[0][:3], item[1], item[0][3]))
    return ranked(decision for _, _, decision in found)


def _newest(trials: Iterable[Trial]) -> Iterable[Trial]:
    """The newest trial of each whole config: one that was predicted may have failed as a whole program."""
    found: dict[tuple, Trial] = {}
    for trial in trials:
        if trial.part != WHOLE or trial.status not in FATES:
            continue
        key = (
            trial.kernel,
            trial.signature.text,
            trial.direction,
            trial.device.digest,
            trial.environment.digest,
            trial.config_digest,
        )
        if key not in found or found[key].started_us <= trial.started_us:
            found[key] = trial
    return found.values()


def unmeasured(predicted: Iterable[Decision], measured: Iterable[Decision]) -> list[Decision]:
    """The predicted decisions of problems that were not measured on any device of the same name."""
    known = {_problem(decision) for decision in measured}
    return [decision for decision in predicted if _problem(decision) not in known]


def _problem(decision: Decision) -> tuple:
    device = decision.device
    return decision.signature, decision.direction, device.variant, device.partition


def _decide_kernel(trials: Sequence[Trial]) -> tuple[int, Decision]:
    """The predicted nanoseconds and the decision; from the newest environment."""
    newest = max(trials, key=lambda t: (t.started_us, t.environment.digest)).environment
    found = {t.config_digest: t for t in trials if t.environment == newest}
    best = min(found.values(), key=lambda t: (_of(t).ns, t.config_digest))
    untuned = next((t for t in found.values() if t.is_heuristic), None)
    ties = [t.config_digest for t in found.values() if t is not best and _of(t).ns == _of(best).ns]
    decision = Decision(
        op=best.signature.op,
        direction=best.direction,
        signature=best.signature,
        device=best.device,
        environment=newest,
        kernel=best.kernel,
        config=dict(best.config),
        rule=Rule.PREDICTED,
        median_ns=None,
        gain=_of(untuned).ns / _of(best).ns if untuned else None,
        ties=tuple(sorted(ties)),
        trials=len(trials),
        contract=best.signature.version,
    )
    return _of(best).ns, decision


def _of(trial: Trial) -> Prediction:
    assert trial.prediction is not None
    return trial.prediction
