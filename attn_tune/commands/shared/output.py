"""Output of commands: answers to stdout, everything else to stderr."""

import contextlib
import json
import os
import select
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from attn_tune.commands.shared.options import Format
from attn_tune.schema.words import counted, printable

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import RenderableType

# Whether the command has printed its JSON object.
_has_json = False
# Where answers for programs go; None is stdout.
_answers: TextIO | None = None


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


def is_unread() -> bool:
    """Whether stdout is a pipe whose reader is gone, which a command that prints for long should end for."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
    except (OSError, ValueError, AttributeError):  # no file of the system is behind it, or the system has no poll
        return False


def emit_bytes(data: bytes) -> None:
    """An answer that is no text of the terminal's encoding, on stdout."""
    stream = _answers or sys.stdout
    stream.flush()
    stream.buffer.write(data)  # type: ignore[attr-defined]


def emit_error_json(message: str, kind: str, exit_code: int) -> None:
    """An error as the JSON object of the command, unless it has printed one, which then says itself what is wrong."""
    if not _has_json:
        emit_json(error=message, type=kind, exit_code=exit_code)


def width() -> int | None:
    """The characters of a line, of ``COLUMNS`` or else the terminal; None, as wide as needed, for a pipe without it."""
    given = os.environ.get("COLUMNS", "")
    if not sys.stdout.isatty() and not (given.isdecimal() and int(given)):
        return None
    return shutil.get_terminal_size().columns


def emit_frame(
    frame: "pd.DataFrame",
    *,
    title: str | None = None,
    notes: Mapping[str, str] = {},
    cut: Mapping[str, str] = {},
    whole: Collection[str] = (),
) -> None:
    """A table on stdout that fits ``width``, without columns that are blank in every row.

    What does not fit is named in a line under it; where too little would be left, each row is a block of lines.
    ``notes`` explain columns, by name, whether or not there is room for them; ``cut`` stands for columns without room.
    Of the columns ``whole`` no cell is cut.
    """
    from attn_tune.reports import terminal

    _emit(terminal.renderables(frame, title=title, width=width(), notes=notes, cut=cut, whole=whole))


def emit_rows(frame: "pd.DataFrame") -> None:
    """As ``emit_frame``, with every column under its own name and values as they are, but for digits of fractions."""
    from attn_tune.reports import tables, terminal

    _emit(terminal.of_columns(tables.plain_columns(frame), width=width()))


def _emit(parts: "Iterator[RenderableType]") -> None:
    from attn_tune.reports import terminal

    if not sys.stdout.isatty():
        print(terminal.as_text(parts, width()), end="")
        return
    from rich.console import Console

    # A dumb terminal's width counts only beside its height.
    console = Console(width=width(), height=25, highlight=False)
    for part in parts:
        console.print(part, markup=False, soft_wrap=True)


def say(text: str, indent: int | None = None) -> None:
    """A sentence on stdout, folded at spaces where the width is known; later lines begin with ``indent`` spaces.

    Without ``indent`` they begin two spaces behind a line that is indented itself.
    """
    from attn_tune.reports.layout import folded

    room, text = width(), printable(text)
    if room is None:
        print(text)
        return
    lead = len(text) - len(text.lstrip(" "))
    indent = (lead + 2 if lead else 0) if indent is None else indent
    # Paths and digests stay whole, to be copied.
    print(*folded(text, room, indent=indent if room > 2 * indent else 2, cut=lambda word, _: word), sep="\n")


def say_line(text: str) -> None:
    """As ``say``, but folded on a terminal alone: for lines that programs read too. ``COLUMNS`` does not count."""
    if sys.stdout.isatty():
        say(text)
    else:
        print(printable(text))


def emit_winners(frame: "pd.DataFrame", *, title: str | None = None) -> None:
    """A table of decisions on stdout, and what its words mean where that matters."""
    from attn_tune.reports import frames

    emit_frame(frames.marked(frame), title=title, notes=frames.remarks(frame))


def emit_formatted(
    frame: "pd.DataFrame", fmt: Format, *, title: str | None = None, key: str = "rows", whole: Collection[str] = ()
) -> None:
    """A frame on stdout in the format asked for; of the columns ``whole`` no cell of a table is cut."""
    from attn_tune.reports import tables

    match fmt:
        case Format.JSON:
            emit_json(**{key: frame})
        case Format.CSV:
            print(tables.to_csv(frame), end="", file=_answers)
        case Format.MARKDOWN:
            print(tables.to_markdown(frame), end="", file=_answers)
        case Format.TABLE:
            emit_frame(frame, title=title, whole=whole)


def emit_text(text: str) -> None:
    """An answer for programs that is text already, on stdout."""
    print(text, end="", file=_answers)


def say_absent(kernels: Collection[str], how: str = "--all") -> None:
    """A line on stdout that stands for ``kernels`` in a table; ``how`` lists them."""
    if kernels:
        say(f"{counted(len(kernels), 'kernel')} cannot run here ({how} lists them)")


def note(text: str) -> None:
    """A remark for people, on stderr."""
    print(printable(text), file=sys.stderr)
