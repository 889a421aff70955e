"""The two sides of a comparison: the decisions of a lab database or of a pack, with the samples behind them."""

import functools
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from attn_tune.db.database import Database
from attn_tune.db.decide.decisions import Candidate, noise_of
from attn_tune.db.decide.recorded import RecordedTrial
from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import PPM, Row
from attn_tune.schema import Decision, Device, Rule, Signature, Status, Trial, config_digest, config_to_json
from attn_tune.schema.trial import WHOLE

# The text of a signature, a direction, a kernel, the digest of an environment and a config as JSON.
type Program = tuple[str, str, str, str, str]
type Times = Mapping[Device, Mapping[Program, float]]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The samples behind one decision, in nanoseconds.

    Attributes:
      samples: those of the newest run with finals, as decisions take them.
      rounds: those of each final of that run, by the name of the run and the round.
      noise: the share by which the config was seen to differ from itself.
      disturbances: what else the host did during the last final.
    """

    samples: tuple[int, ...]
    rounds: Mapping[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    noise: float = 0.0
    disturbances: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side of a comparison.

    Attributes:
      name: the path or the name, as it was given.
      kind: ``"database"`` or ``"pack"``.
      decisions: the decisions, of all ranks.
      evidence: finds the samples behind a decision; None where only its median is known.
      timed: finds the median time of every program, in nanoseconds; of a pack those of its rows.
    """

    name: str
    kind: str
    decisions: tuple[Decision, ...]
    evidence: Callable[[Decision], Evidence | None]
    timed: Callable[[], Times]


def side_of_database(database: Database, name: str) -> Side:
    """The decisions of a lab database, as of its last ``rebuild_decisions``; it stays open while they are compared."""
    runs = database.run_names()

    @functools.cache
    def trials() -> Mapping[Device, Mapping[Program, list[RecordedTrial]]]:
        return _right_trials(database)

    def evidence(decision: Decision) -> Evidence | None:
        measured = trials().get(decision.device, {}).get(_program(decision))
        if not measured:
            return None
        entry = Candidate(digest=config_digest(decision.config), config=decision.config, measured=measured)
        conditions = measured[-1].trial.conditions
        return Evidence(
            samples=entry.samples(entry.newest_run),
            rounds={
                (runs[run], round_id): samples
                for (run, round_id), samples in entry.rounds.items()
                if run == entry.newest_run
            },
            noise=noise_of(entry),
            disturbances=conditions.disturbances if conditions else (),
        )

    return Side(
        name=name,
        kind="database",
        decisions=tuple(database.decisions()),
        evidence=evidence,
        timed=lambda: _timed_in(trials()),
    )


def _right_trials(database: Database) -> dict[Device, dict[Program, list[RecordedTrial]]]:
    """The trials of whole configs that were right, of searches and finals, by device and program, oldest first."""
    found: dict[Device, dict[Program, list[RecordedTrial]]] = {}
    for one in database.recorded(status=Status.OK):
        if one.trial.part == WHOLE:
            found.setdefault(one.trial.device, {}).setdefault(_program(one.trial), []).append(one)
    return found


def _program(one: Decision | Trial) -> Program:
    return (one.signature.text, one.direction, one.kernel, one.environment.digest, config_to_json(one.config))


def _timed_in(trials: Mapping[Device, Mapping[Program, list[RecordedTrial]]]) -> Times:
    """The median of all samples of each program."""
    timed: dict[Device, dict[Program, float]] = {}
    for device, programs in trials.items():
        for program, found in programs.items():
            samples = [ns for one in found if one.trial.measurement for ns in one.trial.measurement.samples_ns]
            if samples:
                timed.setdefault(device, {})[program] = statistics.median(samples)
    return timed


def timed_by(decisions: Iterable[Decision]) -> Times:
    """The times of the programs that were chosen."""
    found: dict[Device, dict[Program, float]] = defaultdict(dict)
    for d in decisions:
        if d.median_ns and d.rule is not Rule.PREDICTED:
            found[d.device][_program(d)] = d.median_ns
    return found


def side_of_pack(pack: Pack, name: str) -> Side:
    """The rows of a pack as decisions. A pack holds no samples."""
    made = tuple(_decision(pack, row) for row in pack.rows)
    return Side(name=name, kind="pack", decisions=made, evidence=lambda _: None, timed=lambda: timed_by(made))


def _decision(pack: Pack, row: Row) -> Decision:
    signature = _signature(row.signature)
    return Decision(
        op=row.op,
        direction=row.direction,
        signature=signature,
        device=pack.devices[row.device],
        environment=pack.environments[row.env],
        kernel=f"{row.op}/{row.kernel}",
        config=row.config,
        rule=Rule(row.state),
        median_ns=row.median_ns,
        heuristic_ns=row.heuristic_ns,
        gain=None if row.gain_ppm is None else 1 + row.gain_ppm / PPM,
        regret_bound=None if row.regret_ppm is None else row.regret_ppm / PPM,
        worst_error=None if row.error_ppm is None else row.error_ppm / PPM,
        samples=row.samples,
        repeatable=row.repeatable,
        features=row.features,
        contract=signature.version,
        rank=row.rank,
    )


def _signature(text: str) -> Signature:
    """The signature of a canonical text, whose op need not be installed; all values stay text."""
    head, *items = text.split()
    op, _, version = head.partition("/v")
    pairs = tuple((name, value) for name, _, value in (item.partition("=") for item in items))
    return Signature(op, int(version), pairs)
