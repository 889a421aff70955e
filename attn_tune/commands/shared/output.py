"""Output of commands: answers to stdout, everything else to stderr."""

import contextlib
import json
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from attn_tune.commands.shared.options import Format
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    import pandas as pd

# Whether the command has printed its JSON object.
_has_json = False
# Where answers for programs go; None is stdout.
_answers: TextIO | None = None
# A table that goes to a file or a pipe is as wide as it needs to be.
UNLIMITED = 10_000


def emit_json(data: Mapping[str, Any]) -> None:
    """One JSON object on stdout; a command prints at most one."""
    global _has_json
    print(json.dumps(data, indent=2, allow_nan=False, default=str), file=_answers)
    _has_json = True


@contextlib.contextmanager
def answers_alone() -> Iterator[None]:
    """Keep stdout for the answer in a format for programs; what an installed package prints goes to stderr."""
    global _answers
    _answers = sys.stdout
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _answers = None


def begin_command() -> None:
    """Forget what an earlier command of this process printed."""
    global _has_json
    _has_json = False


def emit_error_json(message: str, kind: str, exit_code: int) -> None:
    """An error as the JSON object of the command, unless it has printed one, which then says itself what is wrong."""
    if not _has_json:
        emit_json({"error": message, "type": kind, "exit_code": exit_code})


def emit_frame(frame: "pd.DataFrame", *, title: str | None = None) -> None:
    """A table on stdout, fitted to the terminal if there is one; what does not fit is named on stderr."""
    from rich.console import Console

    from attn_tune.reports import tables

    if sys.stdout.isatty():
        console = Console()
        shown = tables.fit(frame, console.width)
        # Wider than the terminal rather than cut.
        width = max(console.width, tables.least_width(shown))
        console.print(tables.to_rich(shown, title=title), width=width, crop=False)
        if hidden := [str(name) for name in frame.columns if name not in shown.columns]:
            note(
                f"too narrow for: {', '.join(hidden)} (a wider terminal shows them, and so does --json)"
            )
    else:
        print(tables.to_text(frame, title=title, width=UNLIMITED), end="")


def emit_winners(frame: "pd.DataFrame", *, title: str | None = None) -> None:
    """A table of decisions on stdout, and what its words mean where that matters."""
    from attn_tune.reports import frames

    emit_frame(frame, title=title)
    for line in frames.remarks(frame):
        print(line)


def emit_formatted(
    frame: "pd.DataFrame", fmt: Format, *, title: str | None = None, key: str = "rows"
) -> None:
    """A frame on stdout in the format asked for."""
    from attn_tune.reports import tables

    match fmt:
        case Format.JSON:
            emit_json({key: tables.to_records(frame)})
        case Format.CSV:
            print(tables.to_csv(frame), end="", file=_answers)
        case Format.MARKDOWN:
            print(tables.to_markdown(frame), end="", file=_answers)
        case Format.TABLE:
            emit_frame(frame, title=title)


def say_absent(kernels: Collection[str], how: str = "--all") -> None:
    """A line on stdout that stands for ``kernels`` in a table; ``how`` lists them."""
    if kernels:
        print(f"{counted(len(kernels), 'kernel')} cannot run here ({how} lists them)")


def note(text: str) -> None:
    """A remark for people, on stderr."""
    print(text, file=sys.stderr)
