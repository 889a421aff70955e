"""``attn-tune override``: entries that go before packs and heuristics, and files that alone may answer."""

import enum
import os
from collections.abc import Callable, Sequence
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attn_tune.cli import choose, options, sink
from attn_tune.cli.exit_codes import FAILED, INTEGRITY
from attn_tune.cli.freeze import freeze
from attn_tune.schema import NoDataError, UsageError

if TYPE_CHECKING:
    from attn_tune.packs.override_entries import Entry

app = typer.Typer(
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Override lookups: use this config, never that one, only these answers.\n\n"
    "A never entry goes before a use entry, and both before packs and heuristics. Where a file is only, as freeze "
    "writes it, nothing else answers. Jobs go by the files of ATTN_TUNE_OVERRIDES, then by the user's own.\n\n"
    "Example: attn-tune override list",
)

File = Annotated[
    Path | None,
    typer.Option(
        "--file",
        metavar="PATH",
        help="The file. Default: attn-tune/overrides.json in the user's configuration directory, which every lookup "
        "of the user finds.",
    ),
]
OneFile = Annotated[Path, typer.Argument(metavar="FILE", help="The file of overrides.")]


class Kind(enum.StrEnum):
    """Choices of ``add``: ``use`` answers with a config, ``never`` forbids configs."""

    USE = "use"
    NEVER = "never"


@app.command("add")
def add(
    kind: Annotated[
        Kind,
        typer.Argument(metavar="use|never", help="use: answer with this config. never: forbid it."),
    ],
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL", help="OP/NAME or NAME; with never also an op, for all its kernels."
        ),
    ],
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="KNOB=VALUE",
            help="use: every knob without a default. never: the knobs that must agree. PART.KNOB=VALUE in a part, or "
            "a config as JSON. Repeatable.",
        ),
    ] = None,
    direction: Annotated[
        str | None,
        typer.Option(
            "--direction",
            "-d",
            metavar="DIRECTION",
            help="The direction. Default: use: fwd, never: all.",
        ),
    ] = None,
    point: Annotated[
        str | None,
        typer.Option(
            "--point", metavar="POINT", help="Only this problem: a grid point or a signature."
        ),
    ] = None,
    grid: options.PointGrids = None,
    signature: Annotated[
        list[str] | None,
        typer.Option(
            "--signature",
            "-s",
            metavar="FIELD=VALUE",
            help="Only problems with this field. Repeatable.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option("--device", metavar="DEVICE", help="Only this device: a variant or a family."),
    ] = None,
    reason: Annotated[
        str,
        typer.Option("--reason", metavar="TEXT", help="Why; never needs it, and lookups say it."),
    ] = "",
    file: File = None,
    json: options.Json = False,
) -> None:
    """Use a config, or never use configs. A condition that is left out matches everything.

    It takes the place of an entry for the same. Where a config to use cannot run, or is forbidden, packs answer. What
    is forbidden is turned down whoever says it, explicit configs too, and no row with it is exported.

    Example: attn-tune override add use flash_attention/xla -c chunk_q=64 -c chunk_k=128 --point llama3-8b/4x4k
    Example: attn-tune override add never triton -d bwd -c dq.num_warps=8 --device sm_90 --reason "wrong dq"
    """
    from attn_tune.kernels.override_entries import make_entry

    if grid and not point:
        raise UsageError("--grid says where --point is found; give --point too")
    if point and signature:
        raise UsageError("--point and --signature both name problems; give one of them")
    never = kind is Kind.NEVER
    made = make_entry(
        kernel,
        never=never,
        config=_knobs(config or ()),
        direction=direction or ("" if never else "fwd"),
        device=device or "",
        signature=choose.signature(point, grid).signature.text if point else signature or "",
        reason=reason,
    )
    path, after = _change(file, lambda old: (*(e for e in old if e.key != made.key), made))
    if json:
        sink.emit_json({"path": path, "id": made.id, "entries": len(after)})
    else:
        print(f"{path}: {_words(made)}")


@app.command("remove")
def remove(
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="As 'attn-tune override list' shows.")
    ],
    file: File = None,
    json: options.Json = False,
) -> None:
    """Take entries out of a file.

    Example: attn-tune override remove 3f2a9c01
    """

    def without(old: "tuple[Entry, ...]") -> "tuple[Entry, ...]":
        known = sorted({entry.id for entry in old})
        for one in ids:
            if one not in known:
                has = ", ".join(known) or "none"
                raise NoDataError(f"there is no entry {one!r} in the file; it has {has}")
        return tuple(entry for entry in old if entry.id not in ids)

    path, after = _change(file, without)
    if json:
        sink.emit_json({"path": path, "removed": ids, "entries": len(after)})
    else:
        print(f"{path}: {len(ids)} removed, {len(after)} left")


@app.command("list")
def show(
    file: Annotated[
        Path | None, typer.Option("--file", metavar="PATH", help="Only this file.")
    ] = None,
    json: options.Json = False,
) -> None:
    """List the entries that this user's jobs go by, those that packs carry too.

    Jobs leave out what cannot be read; here it is named, and the exit status is 5.

    Example: attn-tune override list
    """
    from attn_tune.packs.override_files import read_overrides
    from attn_tune.runtime.layers import current_view
    from attn_tune.runtime.overrides import Overrides

    found = Overrides([read_overrides(file)]) if file else current_view().overrides
    use = [entry for each in found.files for entry in each.entries if not entry.never]
    entries, only = [*use, *found.never], [each.path for each in found.only]
    broken = [text for each in found.files for text in (*each.ignored, each.broken) if text]
    if json:
        sink.emit_json({"entries": [_row(one) for one in entries], "only": only, "broken": broken})
    else:
        for entry in entries:
            print(f"{_words(entry)}  ({entry.origin})")
        print(f"Only {' and '.join(only)} may answer." if only else f"Overrides: {len(entries)}.")
    for text in broken:
        sink.note(f"error: {text}")
    if broken:
        raise typer.Exit(INTEGRITY)


app.command("freeze")(freeze)


@app.command("check")
def check(path: OneFile, json: options.Json = False) -> None:
    """Check whether each entry of a file can act here: whether a job would replay a frozen one exactly.

    Also what lookups would answer without the file by now. Exit code 1 if an entry cannot act.

    Example: attn-tune override check job.json
    """
    from attn_tune.kernels.override_check import check_overrides
    from attn_tune.packs.override_files import read_overrides
    from attn_tune.runtime.settings import current_settings

    file = read_overrides(path)
    found = list(check_overrides(file, current_settings()))
    stops = sum(bool(one.problem) for one in found)
    if json:
        rows = [
            {**_row(one.entry), "problem": one.problem, "now": one.now, "advice": one.advice}
            for one in found
        ]
        said = {"path": path, "digest": file.digest, "only": file.only, "holds": not stops}
        sink.emit_json({**said, "frozen": file.frozen, "entries": rows})
    else:
        for one in found:
            if one.problem:
                print(f"stops: {one.problem}: {_words(one.entry)}")
            elif one.advice or one.now:
                print(f"holds; {one.advice or f'without it {one.now}'}: {_words(one.entry)}")
        differs = sum(bool(one.now) for one in found)
        print(
            f"{path}: {len(found) - stops} of {len(found)} entries hold; "
            f"{differs} would differ without the file"
        )
    if stops:
        raise typer.Exit(FAILED)


def _change(
    file: Path | None, change: "Callable[[tuple[Entry, ...]], tuple[Entry, ...]]"
) -> "tuple[Path, tuple[Entry, ...]]":
    from attn_tune.packs.override_files import change_overrides
    from attn_tune.runtime.overrides import user_file

    path = choose.own_file(file, user_file(os.environ), "file")
    return path, change_overrides(path, change).entries


def _knobs(words: Sequence[str]) -> dict[str, Any]:
    """The config of ``KNOB=VALUE`` words (``dq.num_warps=8`` for a knob of a part), or of one JSON object.

    Raises:
      UsageError: it is neither.
    """
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return loads(words[0])
        except ValueError as error:
            raise UsageError(f"config {words[0]!r} is not JSON: {error}") from None
    found: dict[str, Any] = {}
    for word in words:
        path, equals, text = word.partition("=")
        *parts, name = path.split(".")
        if not equals or not name or len(parts) > 1:
            raise UsageError(f"knob {word!r} must be KNOB=VALUE, or PART.KNOB=VALUE")
        inside = found.setdefault(parts[0], {}) if parts else found
        if not isinstance(inside, dict) or name in inside:
            raise UsageError(f"knob {path!r} is given twice")
        try:
            inside[name] = loads(text)
        except ValueError:
            inside[name] = text
    return found


def _words(entry: "Entry") -> str:
    kind = Kind.NEVER if entry.never else Kind.USE
    return f"{entry.id} {kind} {entry.condition}" + (f": {entry.reason}" if entry.reason else "")


def _row(entry: "Entry") -> dict[str, Any]:
    kind = "never" if entry.never else "use"
    return {"id": entry.id, "entry": kind, **loads(entry.line), "file": entry.origin}
