"""Output of commands: answers to stdout, everything else to stderr."""

import contextlib
import json
import sys
from collections.abc import Collection, Iterator
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


def emit_json(**data: Any) -> None:
    """One JSON object on stdout; a command prints at most one. A frame becomes a list of its rows."""
    global _has_json
    print(json.dumps(data, indent=2, allow_nan=False, default=_plain), file=_answers)
    _has_json = True


def _plain(value: Any) -> Any:
    if not hasattr(value, "to_dict"):
        return str(value)
    from attn_tune.reports import tables

    return tables.to_records(value)


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


def emit_bytes(data: bytes) -> None:
    """An answer that is no text of the terminal's encoding, on stdout."""
    stream = _answers or sys.stdout
    stream.flush()
    stream.buffer.write(data)  # type: ignore[attr-defined]


def emit_error_json(message: str, kind: str, exit_code: int) -> None:
    """An error as the JSON object of the command, unless it has printed one, which then says itself what is wrong."""
    if not _has_json:
        emit_json(error=message, type=kind, exit_code=exit_code)


def emit_frame(frame: "pd.DataFrame", *, title: str | None = None) -> None:
    """A table on stdout, without columns that are blank in every row.

    It is fitted to the terminal if there is one; what does not fit is named on stderr.
    """
    from rich.console import Console

    from attn_tune.reports import tables

    if not frame.empty:
        frame = frame.loc[:, (frame != "").any()]
    if sys.stdout.isatty():
        width = Console().width
        shown = tables.fit(frame, width)
        # Wider than the terminal rather than cut. A dumb terminal's width counts only beside its height.
        console = Console(width=max(width, tables.least_width(shown)), height=25)
        console.print(tables.to_rich(shown, title=title), crop=False)
        if hidden := list(tables.formatted(frame.drop(columns=shown.columns)).columns):
            note(f"too narrow for: {', '.join(hidden)} (a wider terminal shows them, and so does --json)")
    else:
        print(tables.to_text(frame, title=title, width=UNLIMITED), end="")


def emit_winners(frame: "pd.DataFrame", *, title: str | None = None) -> None:
    """A table of decisions on stdout, and what its words mean where that matters."""
    from attn_tune.reports import frames

    emit_frame(frame, title=title)
    for line in frames.remarks(frame):
        print(line)


def emit_formatted(frame: "pd.DataFrame", fmt: Format, *, title: str | None = None, key: str = "rows") -> None:
    """A frame on stdout in the format asked for."""
    from attn_tune.reports import tables

    match fmt:
        case Format.JSON:
            emit_json(**{key: frame})
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
