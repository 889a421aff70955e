"""Options that several commands share, declared once."""

import enum
import os
import re
from pathlib import Path
from typing import Annotated

import typer

from attn_tune.schema import UsageError

DB_VARIABLE = "ATTN_TUNE_DB"


class Direction(enum.StrEnum):
    """Choices of ``--direction``."""

    FWD = "fwd"
    BWD = "bwd"


class Strategy(enum.StrEnum):
    """Choices of ``--strategy``."""

    EXHAUSTIVE = "exhaustive"
    PORTFOLIO = "portfolio"
    RANDOM = "random"
    SURROGATE = "surrogate"


class Effort(enum.StrEnum):
    """Choices of ``--effort``."""

    QUICK = "quick"
    NORMAL = "normal"
    FULL = "full"


class Format(enum.StrEnum):
    """Choices of ``--format``."""

    TABLE = "table"
    CSV = "csv"
    MARKDOWN = "markdown"
    JSON = "json"


def data_directory() -> Path:
    """``attn-tune`` in the user's data directory (XDG)."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "attn-tune"


def default_database() -> Path:
    """Where ``--db`` points without being given."""
    return data_directory() / "lab.db"


_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(s|m|h|)")


def seconds(text: str) -> float:
    """Reads a duration: ``90``, ``90s``, ``10m``, ``1.5h``.

    Raises:
      UsageError: the text has another form.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"duration {text!r} must be a number with s, m or h, as in 10m")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, and nothing else there.")]
Database = Annotated[
    Path,
    typer.Option(
        "--db",
        envvar=DB_VARIABLE,
        help="The lab database. Default: attn-tune/lab.db in the user's data directory.",
        default_factory=default_database,
        show_default=False,
        metavar="PATH",
    ),
]
Grids = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        "-g",
        metavar="GRID",
        help="A preset (see 'attn-tune grids'), a TOML file or the text of one signature. Repeatable.",
    ),
]
PointGrids = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        "-g",
        metavar="GRID",
        help="A grid whose points may be named too: a TOML file of your own. Repeatable.",
    ),
]
Lengths = Annotated[
    list[str] | None,
    typer.Option(
        "--lengths",
        metavar="LENGTHS",
        help="Which lengths of the grids: 4k, 4x4k, a group such as prefill, or all. Commas; repeatable.",
    ),
]
Points = Annotated[
    list[str] | None,
    typer.Option(
        "--point",
        metavar="FILTER",
        help="Only points whose name contains this, or matches it as a shell pattern. Repeatable.",
    ),
]
Ops = Annotated[
    list[str] | None, typer.Option("--op", metavar="OP", help="Only this op. Repeatable.")
]
Kernels = Annotated[
    list[str] | None,
    typer.Option(
        "--kernel", "-k", metavar="KERNEL", help="Only this kernel: NAME or OP/NAME. Repeatable."
    ),
]
Directions = Annotated[
    list[Direction] | None,
    typer.Option(
        "--direction",
        "-d",
        metavar="fwd|bwd",
        help="Only this direction. Repeatable. Default: both.",
    ),
]
DeviceName = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="Another device than this machine's: a variant (nvidia-h200) or an architecture (sm_90).",
    ),
]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="Only compile, for a device that need not be here: tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e, tpu-7x, sm_80, "
        "sm_89, sm_90, sm_100, sm_120 or the name of a GPU. Times are predicted for TPUs.",
    ),
]
TargetNames = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="TARGET",
        help="Compile whole programs for a device that need not be here, as in sweep; may be given several times. "
        "'all' is every TPU and every architecture of GPUs.",
    ),
]
StrategyChoice = Annotated[
    Strategy | None,
    typer.Option(
        "--strategy",
        metavar="STRATEGY",
        help="What is tried, and in which order: exhaustive, portfolio, random or surrogate (needs the extra "
        "'search'). Default: what the effort says.",
    ),
]
EffortChoice = Annotated[
    Effort | None,
    typer.Option(
        "--effort",
        metavar="EFFORT",
        help="How much of each space: quick (5 %, portfolio), normal (15 %, 10 % with --target; surrogate where "
        "scikit-learn is installed, else portfolio) or full (exhaustive). Spaces of up to 48 configs are tried "
        "whole. Default: normal.",
    ),
]
AllowNondeterministic = Annotated[
    bool,
    typer.Option(
        "--allow-nondeterministic",
        help="Also kernels whose results may differ in their last bits from run to run ('attn-tune kernels' says "
        "which), and configs that are seen to. A kernel that --kernel names is allowed.",
    ),
]
AllowUnproven = Annotated[
    bool,
    typer.Option(
        "--allow-unproven",
        help="Also decide on configs that no feature problem of the op could be run with.",
    ),
]
All = Annotated[
    bool,
    typer.Option(
        "--all", help="Leave nothing out: kernels that cannot run here, and rare failures."
    ),
]
MaxTrials = Annotated[
    int | None,
    typer.Option(
        "--max-trials",
        min=1,
        metavar="N",
        help="At most so many configs of each kernel and part, the untuned one among them.",
    ),
]


def table_or_json(json: bool) -> Format:
    """The format of a command that has no other."""
    return Format.JSON if json else Format.TABLE
