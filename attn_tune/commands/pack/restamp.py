"""Keep the rows of a pack whose kernels' source changed and whose programs did not.

A row is proof of the machine code that was measured. Its environment names the kernel's source by a digest, and
another digest makes the row stale, even where the compiler makes the same code. Each stale row's call is lowered
from the checkout BEFORE and from this installation, by what is installed here. Of a Triton kernel every launch is
compiled, by the Triton that the row was measured with; kernels, grids and machine code must be equal. Of other
kernels the lowered StableHLO must be equal. Equal rows get the digest of today; others are left out and named.
Rows that are not stale are copied. Nothing runs, and no GPU or TPU is needed.

Example: attn-tune pack restamp h200.atpack --before ../before --out new.atpack
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attn_tune.commands.shared import options, output
from attn_tune.schema import AttnTuneError, UsageError
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.packs.reader import Pack
    from attn_tune.packs.rows import Row

COMMAND = ("-m", "attn_tune", "pack", "programs")
HERE = Path(__file__).resolve().parents[3]
# libtpu is asked only for its compiler.
_WITHOUT_A_DEVICE = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}
SAME, KEPT = "the same programs", "kept"
_OTHER = "left out: other programs"
_NOT_MEASURED = "left out: the other checkout is not the source that it was measured with"
_NO_PROBLEM = "left out: no problem has this signature any more"
_NOT_ASKED = "left out: not asked for"
_NOT_LOWERED = "left out: not lowered"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome for one row: ``SAME``, ``KEPT``, or the reason why it is left out.

    Attributes:
      row: the row.
      text: the outcome.
    """

    row: "Row"
    text: str

    @property
    def is_in(self) -> bool:
        """True if the new pack has the row."""
        return self.text in (SAME, KEPT)


def programs() -> None:
    """Lower calls of rows: a JSON object a line from stdin, an answer a line to stdout."""
    from attn_tune.tuner.offline.programs import program_of

    for line in sys.stdin:
        print(json.dumps(program_of(json.loads(line))), flush=True)


def command(
    pack: options.PackPath,
    before: Path = options.option(
        ..., "--before", "PATH", "A checkout of the source that the rows were measured with."
    ),
    out: Path = options.option(..., "--out", "PATH", "The new pack."),
    version: str | None = options.option(
        None, "--version", "VERSION", "The new pack's version. Default: the old one's."
    ),
    kernel: list[str] | None = options.option(
        None,
        "--kernel -k",
        "KERNEL",
        "Only stale rows of this kernel; others are left out. Repeatable.",
    ),
    keep: list[str] | None = options.option(
        None,
        "--keep",
        "KERNEL",
        "Copy the stale rows of this kernel, whose library is not installed here. Repeatable.",
    ),
    alias: bool = options.flag(
        "--alias", "Also write the digests to the table of aliases, for packs that are out already."
    ),
    jobs: int = options.option(1, "--jobs", "N", "Processes for each checkout.", min=1),
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    from attn_tune.packs.reader import read_pack
    from attn_tune.packs.writer import check_target, write_pack

    if not (before / "attn_tune").is_dir():
        raise UsageError(f"--before {before} has no folder attn_tune; name a checkout of attn-tune")
    old = read_pack(pack)
    check_target(out, overwrite=overwrite)
    verdicts = judge(old, before, kernels=kernel or (), keep=keep or (), jobs=jobs)
    if all(not verdict.is_in for verdict in verdicts):
        raise AttnTuneError(f"no row of {pack} can be kept; nothing was written")
    write_pack(out, _files(old, verdicts, version or old.version))
    aliases = add_aliases(old, verdicts) if alias else {}
    _tell(verdicts, aliases, json=json)


def judge(
    pack: "Pack",
    before: Path,
    *,
    kernels: Iterable[str] = (),
    keep: Iterable[str] = (),
    jobs: int = 1,
) -> list[Verdict]:
    """Finds the verdict of each row.

    Args:
      pack: the pack.
      before: a checkout of the source that the stale rows were measured with.
      kernels: the kernels whose stale rows are lowered; empty for all.
      keep: the kernels whose rows are copied without being lowered.
      jobs: processes for each checkout.
    """
    kernels, keep = frozenset(kernels), frozenset(keep)
    verdicts: dict[tuple[Any, ...], str] = {}
    stale = []
    for row in pack.rows:
        if not _has_a_problem(row):
            verdicts[row.key] = _NO_PROBLEM
        elif row.kernel in keep or not is_stale(row, pack):
            verdicts[row.key] = KEPT
        elif kernels and row.kernel not in kernels:
            verdicts[row.key] = _NOT_ASKED
        elif reason := _refusal(row, pack):
            verdicts[row.key] = reason
        else:
            stale.append(row)
    questions = [_question(row, pack) for row in stale]
    then, now = (_ask(checkout, questions, jobs) for checkout in (before, HERE))
    for row, a, b in zip(stale, then, now, strict=True):
        verdicts[row.key] = _compared(row, pack, a, b)
    return [Verdict(row, verdicts[row.key]) for row in pack.rows]


def is_stale(row: "Row", pack: "Pack") -> bool:
    """True if the kernel's source is not the one that ``row`` was measured with."""
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.kernels.source import current_digest

    stored = current_digest(pack.environments[row.env].source_hash)
    return stored != get_kernel(f"{row.op}/{row.kernel}").source_hash


def add_aliases(pack: "Pack", verdicts: Iterable[Verdict]) -> dict[str, str]:
    """Adds the digests of restamped rows to the table of aliases, where all rows of a digest had equal programs."""
    from attn_tune.kernels import source
    from attn_tune.kernels.registry import get_kernel

    added: dict[str, str] = {}
    refused = set()
    for verdict in verdicts:
        row = verdict.row
        digest = pack.environments[row.env].source_hash
        if verdict.text == SAME:
            added[digest] = get_kernel(f"{row.op}/{row.kernel}").source_hash
        elif not verdict.is_in:
            refused.add(digest)
    added = {old: new for old, new in added.items() if old not in refused}
    table = dict(sorted({**source.read_aliases(), **added}.items()))
    source.ALIASES.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
    source.read_aliases.cache_clear()
    return added


def _compared(row: "Row", pack: "Pack", then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    for answer, checkout in ((then, "the other checkout"), (now, "this one")):
        if "failed" in answer:
            return f"{_NOT_LOWERED} from {checkout}: {answer['failed']}"
    if then["source"] != pack.environments[row.env].source_hash:
        return _NOT_MEASURED
    return SAME if then["made"] == now["made"] else _OTHER


def _has_a_problem(row: "Row") -> bool:
    """True if a problem has the row's signature: not one of a window that hides nothing, say."""
    from attn_tune.ops.registry import get_op

    op = get_op(row.op)
    return op.problem_signature(row.signature).text == row.signature


def _refusal(row: "Row", pack: "Pack") -> str | None:
    from attn_tune.kernels.registry import get_kernel

    if get_kernel(f"{row.op}/{row.kernel}").backend != "triton":
        return None
    measured, here = pack.environments[row.env].triton, installed_version("triton")
    if measured == here:
        return None
    return f"{_NOT_LOWERED}: it was measured with Triton {measured or '(unknown)'}, and {here} is installed"


def _question(row: "Row", pack: "Pack") -> dict[str, Any]:
    device = pack.devices[row.device]
    named = {name: getattr(row, name) for name in ("op", "kernel", "direction", "signature")}
    return {
        **named,
        "config": dict(row.config),
        "capability": device.compute_capability,
        "target": device.variant if device.platform == "tpu" else "",
    }


def _ask(checkout: Path, questions: Sequence[Mapping[str, Any]], jobs: int) -> list[dict[str, Any]]:
    """The answers of ``programs`` in ``checkout``, in the order of ``questions``."""
    lines = [json.dumps(question) for question in questions]
    path = os.pathsep.join(filter(None, (str(checkout.resolve()), os.environ.get("PYTHONPATH"))))
    environment = os.environ | _WITHOUT_A_DEVICE | {"PYTHONPATH": path}

    def ask(part: Sequence[str]) -> list[dict[str, Any]]:
        done = subprocess.run(
            [sys.executable, *COMMAND],
            cwd=checkout,
            env=environment,
            input="\n".join(part),
            capture_output=True,
            text=True,
        )
        answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or len(answers) != len(part):
            last = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
            raise AttnTuneError(f"lowering failed in {checkout}: {last}")
        return answers

    parts = [part for n in range(jobs) if (part := lines[n::jobs])]
    with ThreadPoolExecutor(jobs) as pool:
        answered = list(pool.map(ask, parts))
    found: list[dict[str, Any]] = [{}] * len(lines)
    for n, answers in enumerate(answered):
        found[n::jobs] = answers
    return found


def _files(pack: "Pack", verdicts: Iterable[Verdict], version: str) -> dict[str, bytes]:
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.packs.writer import files_of_rows

    rows, environments = [], dict(pack.environments)
    for verdict in verdicts:
        row = verdict.row
        if verdict.is_in:
            row = _with_todays_knobs(row)
        if verdict.text == SAME:
            source = get_kernel(f"{row.op}/{row.kernel}").source_hash
            environment = dataclasses.replace(pack.environments[row.env], source_hash=source)
            environments[environment.digest] = environment
            row = dataclasses.replace(row, env=environment.digest)
        if verdict.is_in:
            rows.append(row)
    return files_of_rows(
        rows,
        name=pack.name,
        version=version,
        devices=pack.devices,
        environments={row.env: environments[row.env] for row in rows},
        contracts=pack.contracts,
        gate=dict(pack.gate),
        quarantine=pack.quarantine.entries,
    )


def _with_todays_knobs(row: "Row") -> "Row":
    """``row`` with the knobs that its kernel has got since, at the value that changes nothing."""
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.runtime.lookup.answer import Knobs
    from attn_tune.schema.config import config_from_dict, config_to_dict

    known = get_kernel(f"{row.op}/{row.kernel}").searches[row.direction].config
    config = config_to_dict(config_from_dict(known, dict(row.config)))
    return dataclasses.replace(row, config=Knobs(config))


def _tell(verdicts: Sequence[Verdict], aliases: Mapping[str, str], *, json: bool) -> None:
    counts = {
        "kept": sum(verdict.text == KEPT for verdict in verdicts),
        "restamped": sum(verdict.text == SAME for verdict in verdicts),
        "left_out": sum(not verdict.is_in for verdict in verdicts),
    }
    if json:
        rows = [
            {name: getattr(v.row, name) for name in ("op", "kernel", "direction", "signature")} | {"verdict": v.text}
            for v in verdicts
        ]
        output.emit_json(**counts, aliases=dict(aliases), rows=rows)
        return
    for verdict in verdicts:
        if not verdict.is_in:
            row = verdict.row
            output.say(f"{row.op}/{row.kernel} {row.direction} {row.signature}: {verdict.text}")
    output.say(f"{counted(counts['kept'], 'row')} kept, {counts['restamped']} restamped, {counts['left_out']} left out")
    if aliases:
        output.say(f"{counted(len(aliases), 'digest')} in the table of aliases")
