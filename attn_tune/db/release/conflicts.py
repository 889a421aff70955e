"""Conflicts between packs that answer one problem differently: one rule for imports and for merging packs."""

import enum
import itertools
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from attn_tune.kernels.registry import find_kernel
from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import Row
from attn_tune.runtime.determinism import Determinism
from attn_tune.schema import Environment, Rule, UsageError, config_to_json
from attn_tune.schema.decision import Proof
from attn_tune.schema.environment import UNKNOWN
from attn_tune.schema.words import config_words, counted, duration

POLICIES = ("error", "keep", "replace", "fastest-verified", "prefer=NAME")
# Times of different sessions: below this they do not tell which is faster, and what is there stays.
MARGIN = 0.02
SHOWN = 20

# One problem: (device digest, signature, direction). Its rows stand or fall together: their ranks count as one answer.
type Key = tuple[str, str, str]


class Fate(enum.StrEnum):
    """The fate of the rows of one problem that a pack brings."""

    ADDED = "added"
    """Nothing answered the problem before."""
    UNCHANGED = "unchanged"
    """The stored answer is the same."""
    KEPT = "kept"
    """The stored answer stays."""
    REPLACED = "replaced"
    """The new answer takes the place of the stored one."""


@dataclass(frozen=True, slots=True)
class PackAnswer:
    """The rows of one problem in one pack.

    Attributes:
      pack: the name of the pack.
      rows: the rows, one a kernel.
      environments: the pack's environments by digest.
    """

    pack: str
    rows: Sequence[Row]
    environments: Mapping[str, Environment]

    @property
    def decides(self) -> dict[str, tuple[int, str, tuple[str, ...]]]:
        """Rank, config and doubts by kernel: what the answer decides, without its evidence."""
        return {row.kernel: (row.rank, config_to_json(row.config), row.doubts) for row in self.rows}

    @property
    def software(self) -> dict[str, Environment | None]:
        """Environment by kernel: the versions and the source digest that its row was measured with."""
        return {row.kernel: self.environments.get(row.env) for row in self.rows}

    @property
    def winner(self) -> Row:
        """The row of the best rank."""
        return min(self.rows, key=lambda row: row.rank)

    def row_of(self, determinism: Determinism, *, unproven: bool) -> Row | None:
        """The row that a job gets that wants such determinism, and takes unproven rows or not; None if it gets none."""
        rows = (row for row in self.rows if _is_taken(row, determinism, unproven))
        return min(rows, key=lambda row: row.rank, default=None)

    @property
    def usual(self) -> Row | None:
        """The row that a job gets that sets nothing, None if it gets none."""
        return self.row_of(Determinism.USUAL, unproven=False)

    def is_verified(self, row: Row) -> bool:
        """Whether ``row`` was timed and compared with the reference, by software that is known.

        A row that is known to have run no feature problem is not verified.
        """
        environment = self.environments.get(row.env)
        return (
            row.median_ns is not None
            and row.is_proven
            and (row.error_ppm or 0) <= 1_000_000
            and row.state != Rule.PREDICTED
            and environment is not None
            and UNKNOWN not in (environment.jaxlib, environment.source_hash)
        )

    def __str__(self) -> str:
        ranked = sorted(self.rows, key=lambda row: row.rank)
        return ", ".join(
            f"{r.kernel} {config_words(r.config)}"
            + ("" if r.median_ns is None else f" {duration(r.median_ns)}")
            + "".join(f" ({doubt})" for doubt in r.doubts)
            for r in ranked
        )


def _is_taken(row: Row, determinism: Determinism, unproven: bool) -> bool:
    """Whether a job takes ``row``, as far as its wish for determinism and unproven rows goes."""
    if row.proof is Proof.UNPROVEN and not unproven:
        return False
    if determinism is Determinism.WAIVED:
        return True
    spec = find_kernel(f"{row.op}/{row.kernel}")
    if spec is None:  # It declares nothing here.
        return row.repeatable is not False
    if determinism is Determinism.REQUIRED:
        search = spec.searches.get(row.direction)
        return row.repeatable is not False and not (search and search.nondeterministic)
    return not spec.needs_leave(row.direction, row.repeatable)


def _change(stored: PackAnswer | None, incoming: PackAnswer) -> str:
    """The kernels that came in by rank: times before and now, knobs that differ; ``+`` is new, ``-`` is gone."""
    before = {row.kernel: row for row in stored.rows} if stored else {}
    words = []
    for row in sorted(incoming.rows, key=lambda row: row.rank):
        old = before.pop(row.kernel, None)
        times = [duration(one.median_ns) for one in (old, row) if one and one.median_ns is not None]
        known = config_words(old.config).split() if old else []
        knobs = [word for word in config_words(row.config).split() if word not in known]
        doubts = [f"({doubt})" for doubt in row.doubts if not old or doubt not in old.doubts]
        name = f"+{row.kernel}" if stored and not old else row.kernel
        words.append(" ".join(filter(None, [name, " -> ".join(dict.fromkeys(times)), *knobs, *doubts])))
    return ", ".join([*words, *(f"-{kernel}" for kernel in before)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    """The fate of one problem and the reason: a line of the table that an import prints.

    Attributes:
      signature: the problem.
      direction: the direction.
      device: the device's name.
      fate: the fate of the rows that came in.
      change: what the answer that came in has otherwise; empty where nothing changes.
      stored: the stored answer as text, ``""`` where there is none.
      incoming: the answer that came in, as text.
      reason: the reason of the fate.
    """

    signature: str
    direction: str
    device: str
    fate: Fate
    change: str
    stored: str
    incoming: str
    reason: str


def _resolve(policy: str, stored: PackAnswer | None, incoming: PackAnswer) -> tuple[Fate | None, str]:
    """The fate of ``incoming`` and the reason; None is a conflict that the policy leaves to the caller."""
    kind, _, name = policy.partition("=")
    if policy not in POLICIES[:-1] and not (kind == "prefer" and name):
        raise UsageError(f"policy must be one of {', '.join(POLICIES)}, got {policy!r}")
    if stored is None:
        return Fate.ADDED, "new"
    if stored.decides == incoming.decides:
        # Rows that went stale are measured again with the same winner: their new evidence is what was asked for.
        if stored.software != incoming.software and policy in ("replace", f"prefer={incoming.pack}"):
            return Fate.REPLACED, "same answer of other software"
        return Fate.UNCHANGED, "same answer"
    match kind:
        case "keep":
            return Fate.KEPT, "policy keep"
        case "replace":
            return Fate.REPLACED, "policy replace"
        case "prefer" if incoming.pack == name:
            return Fate.REPLACED, f"prefers {name}"
        case "prefer" if stored.pack == name:
            return Fate.KEPT, f"prefers {name}"
        case "fastest-verified":
            return _faster(stored, incoming)
    return None, f"{stored.pack} and {incoming.pack} differ"


def _faster(stored: PackAnswer, incoming: PackAnswer) -> tuple[Fate, str]:
    """Prefers the answer that usual jobs get, then the verified one, then the one faster by more than sessions differ.

    It must be faster in some kind of job, and in none slower or without a row.
    """
    old, new = stored.usual, incoming.usual
    if old and not new:
        return Fate.KEPT, f"{incoming.pack} has no row that a job may use by default"
    if not incoming.is_verified(new or incoming.winner):
        return Fate.KEPT, f"{incoming.pack} is not verified"
    if new and not old:
        return Fate.REPLACED, f"{stored.pack} has no row that a job may use by default"
    if not stored.is_verified(old or stored.winner):
        return Fate.REPLACED, f"{stored.pack} is not verified"
    ratios = []
    for determinism, unproven in itertools.product(Determinism, (False, True)):
        before, after = (one.row_of(determinism, unproven=unproven) for one in (stored, incoming))
        if before is None or before.median_ns is None:
            continue
        if after is None or after.median_ns is None:
            return Fate.KEPT, f"{incoming.pack} has no row for some jobs that {stored.pack} has one for"
        ratios.append(after.median_ns / before.median_ns)
    if min(ratios) < 1 - MARGIN and max(ratios) <= 1 + MARGIN:
        return Fate.REPLACED, f"takes {min(ratios):.3f} of the time"
    return Fate.KEPT, f"{incoming.pack} takes {max(ratios):.3f} of the time"


def answers_of(pack: Pack, left_out: Collection[Row] = ()) -> dict[Key, PackAnswer]:
    """The rows of ``pack`` but those ``left_out``, put together by problem."""
    groups: dict[Key, list[Row]] = defaultdict(list)
    keys = {row.key for row in left_out}
    for row in pack.rows:
        if row.key not in keys:
            groups[row.device, row.signature, row.direction].append(row)
    return {key: PackAnswer(pack.name, rows, pack.environments) for key, rows in groups.items()}


def take_in(
    answers: dict[Key, PackAnswer], pack: Pack, policy: str, left_out: Collection[Row] = ()
) -> tuple[list[Resolution], list[Resolution]]:
    """Brings the answers of ``pack`` into ``answers``, without the rows ``left_out``.

    Returns the fate of each problem, and those of them that ``policy``, one of ``POLICIES``, does not resolve.

    Raises:
      UsageError: there is no such policy.
    """
    outcomes, conflicts = [], []
    for key, incoming in answers_of(pack, left_out).items():
        stored = answers.get(key)
        fate, reason = _resolve(policy, stored, incoming)
        one = Resolution(
            signature=key[1],
            direction=key[2],
            device=str(pack.devices[key[0]]),
            fate=fate or Fate.KEPT,
            change="" if fate is Fate.UNCHANGED else _change(stored, incoming),
            stored="" if stored is None else str(stored),
            incoming=str(incoming),
            reason=reason if fate else f"conflict: {reason}",
        )
        outcomes.append(one)
        if fate is None:
            conflicts.append(one)
        elif fate in (Fate.ADDED, Fate.REPLACED):
            answers[key] = incoming
    return outcomes, conflicts


def conflict_error(what: str, conflicts: Sequence[Resolution]) -> UsageError:
    """An error with the way out, and a list of the problems and their answers under it."""
    problems: dict[str, dict[str, None]] = {}
    for one in conflicts:
        answers = problems.setdefault(f"  {one.signature} {one.direction} on {one.device}", {})
        answers |= {f"    stored: {one.stored}": None, f"    pack:   {one.incoming}": None}
    lines = [
        f"{what} {counted(len(problems), 'problem')} otherwise; nothing was written: choose another policy with "
        f"--on-conflict ({', '.join(POLICIES[1:])})"
    ]
    for problem, answers in list(problems.items())[:SHOWN]:
        lines += [problem, *answers]
    if len(problems) > SHOWN:
        lines.append(f"  and {len(problems) - SHOWN} more")
    return UsageError("\n".join(lines))
