"""Two packs answer one problem: which answer stays. One rule for imports and for merging packs."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_tune.packs.rows import Row
from attn_tune.schema import Device, Environment, Rule, UsageError, config_to_json
from attn_tune.schema.environment import UNKNOWN
from attn_tune.schema.words import config_words, counted, duration

POLICIES = ("error", "keep", "replace", "fastest-verified", "prefer=NAME")
# Times of different sessions: below this they do not tell which is faster, and what is there stays.
MARGIN = 0.02
SHOWN = 20

# One problem: (device digest, signature, direction). Its rows stand or fall together: their ranks count as one answer.
type Key = tuple[str, str, str]


class Fate(enum.StrEnum):
    """What becomes of the rows of one problem that a pack brings."""

    ADDED = "added"
    UNCHANGED = "unchanged"
    KEPT = "kept"
    REPLACED = "replaced"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The rows of one problem, with the pack they are from."""

    pack: str
    rows: Sequence[Row]
    environments: Mapping[str, Environment]

    @property
    def decides(self) -> dict[str, tuple[int, str, tuple[str, ...]]]:
        """By kernel, rank, config and doubts: evidence left out."""
        return {row.kernel: (row.rank, config_to_json(row.config), row.doubts) for row in self.rows}

    @property
    def winner(self) -> Row:
        """The row of the best rank."""
        return min(self.rows, key=lambda row: row.rank)

    @property
    def is_verified(self) -> bool:
        """Whether its winner was timed and compared with the reference, by software that is known.

        A winner of which it is known that it ran no feature problem is not.
        """
        row = self.winner
        environment = self.environments.get(row.env)
        return (
            row.median_ns is not None
            and row.error_ppm is not None
            and row.error_ppm <= 1_000_000
            and row.state != Rule.PREDICTED
            and row.features != 0
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one problem, and why: a line of the table that an import prints."""

    signature: str
    direction: str
    device: str
    fate: Fate
    stored: str
    incoming: str
    reason: str

    @classmethod
    def of(
        cls,
        key: Key,
        device: Device,
        stored: Answer | None,
        incoming: Answer,
        fate: Fate | None,
        reason: str,
    ) -> "Outcome":
        """The line of a problem for which ``Policy.resolve`` said ``fate`` and ``reason``."""
        return cls(
            signature=key[1],
            direction=key[2],
            device=str(device),
            fate=fate or Fate.KEPT,
            stored="" if stored is None else str(stored),
            incoming=str(incoming),
            reason=reason if fate else f"conflict: {reason}",
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do where answers differ. ``name`` is the pack that ``prefer=`` names."""

    kind: str
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> "Policy":
        """Reads ``error``, ``keep``, ``replace``, ``fastest-verified`` or ``prefer=NAME``.

        Raises:
          UsageError: it is none of these.
        """
        kind, _, name = text.partition("=")
        if text in POLICIES[:-1] or (kind == "prefer" and name):
            return cls(kind, name)
        raise UsageError(f"policy must be one of {', '.join(POLICIES)}, got {text!r}")

    def resolve(self, stored: Answer | None, incoming: Answer) -> tuple[Fate | None, str]:
        """What becomes of ``incoming``, and why; None is a conflict that the policy leaves to the caller."""
        if stored is None:
            return Fate.ADDED, "new"
        if stored.decides == incoming.decides:
            return Fate.UNCHANGED, "same answer"
        match self.kind:
            case "keep":
                return Fate.KEPT, "policy keep"
            case "replace":
                return Fate.REPLACED, "policy replace"
            case "prefer" if incoming.pack == self.name:
                return Fate.REPLACED, f"prefers {self.name}"
            case "prefer" if stored.pack == self.name:
                return Fate.KEPT, f"prefers {self.name}"
            case "fastest-verified":
                return _faster(stored, incoming)
        return None, f"{stored.pack} and {incoming.pack} differ"


def _faster(stored: Answer, incoming: Answer) -> tuple[Fate, str]:
    """The verified answer; of two, the one that is faster beyond what sessions differ by."""
    if not incoming.is_verified:
        return Fate.KEPT, f"{incoming.pack} is not verified"
    if not stored.is_verified:
        return Fate.REPLACED, f"{stored.pack} is not verified"
    # Verified answers have times.
    ratio = (incoming.winner.median_ns or 1) / (stored.winner.median_ns or 1)
    if ratio < 1 - MARGIN:
        return Fate.REPLACED, f"takes {ratio:.3f} of the time"
    return Fate.KEPT, f"{incoming.pack} takes {ratio:.3f} of the time"


def conflict_error(what: str, conflicts: Sequence[Outcome]) -> UsageError:
    """The error that says how to go on, with a list of the problems under it and their answers, each once."""
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
