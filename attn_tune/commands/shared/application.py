"""The outermost group of commands: errors become a line on stderr and an exit code here, and nowhere else."""

import contextlib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from attn_tune.commands.shared import output
from attn_tune.commands.shared.exit_codes import FAILED, INTERRUPTED
from attn_tune.commands.shared.options import Format

_FORMAT = "attn_tune.format"
_CHOICE = re.compile(r"'([^']*)' is not one of (.*)")
_COMMAND = re.compile(r"No such command '([^']*)'$")


class Application(TyperGroup):
    """The group of all commands. It reports their errors, as JSON where the answer is to be JSON."""

    def parse_args(self, ctx, args):
        # Before anything can fail: an error has to know how it is to be reported.
        ctx.meta[_FORMAT] = self._format(args)
        output.begin_command()
        with _reporting(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx):
        alone = output.answers_alone() if ctx.meta[_FORMAT] else contextlib.nullcontext()
        with _reporting(ctx), alone:
            return super().invoke(ctx)

    def _format(self, args: Sequence[str]) -> str:
        """The format for programs that ``args`` ask for; empty for tables and for help."""
        valued = {"-f", "--format"} | self._options_with_value(args)
        words, as_json, fmt = iter(args), False, ""
        for word in itertools.takewhile(lambda word: word != "--", words):
            if word in ("--help", "-h"):
                return ""
            if word in valued:
                value = next(words, "")
                fmt = value if word in ("-f", "--format") else fmt
            elif word.startswith(("--format=", "-f")):
                fmt = word.removeprefix("--format=").removeprefix("-f")
            as_json = as_json or word == "--json"
        known = (Format.JSON, Format.CSV, Format.MARKDOWN)
        return "json" if as_json else fmt if fmt in known else ""

    def _options_with_value(self, args: Sequence[str]) -> set[str]:
        """The options of the command that ``args`` name after which the next word is a value."""
        command, found = self, set[str]()
        for word in args:
            inner = getattr(command, "commands", {}).get(word)
            for option in inner.params if inner else ():
                found |= set() if getattr(option, "is_flag", True) else set(option.opts)
            command = inner or command
        return found


@contextlib.contextmanager
def _reporting(ctx: Any) -> Iterator[None]:
    """Make a line and an exit code of an error. Python shows the traceback of a defect."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        _report(ctx, "interrupted", "KeyboardInterrupt", INTERRUPTED)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        from attn_tune.schema.errors import AttnTuneError, UsageError, near_names

        kind, code, message = type(error).__name__, FAILED, str(error)
        if kind == "NoArgsIsHelpError":  # the help is shown already
            raise
        if isinstance(error, AttnTuneError):
            code = error.exit_code
            if ctx.params.get("debug"):
                import traceback

                traceback.print_exc()
        elif say := getattr(error, "format_message", None):  # typer's, about the command line
            kind, code = UsageError.__name__, UsageError.exit_code
            place = getattr(error, "ctx", None) or ctx
            line = " ".join(say().split()).rstrip(".").replace("Value error, ", "")
            if wrong := _CHOICE.search(line):
                near = near_names(wrong[1], wrong[2].strip("'").split("', '"))
                line += f" ({near})" if near else ""
            if (wrong := _COMMAND.search(line)) and (owners := _groups_with(place, wrong[1])):
                line += f" (did you mean {' or '.join(owners)}?)"
            message = f"{line[:1].lower()}{line[1:]}; see '{place.command_path} --help'"
        else:
            if ctx.meta[_FORMAT] == Format.JSON:
                output.emit_error_json(message, kind, code)
            raise
        _report(ctx, message, kind, code)
        raise typer.Exit(code) from None


def _groups_with(ctx: Any, name: str) -> list[str]:
    """The commands called ``name`` in groups of the group of ``ctx``, as they are typed."""
    groups = {word: getattr(group, "commands", {}) for word, group in getattr(ctx.command, "commands", {}).items()}
    return [
        f"'{ctx.command_path} {word} {name}'"
        for word, inner in groups.items()
        if name in inner and not inner[name].hidden
    ]


def _report(ctx: Any, message: str, kind: str, exit_code: int) -> None:
    """Print the first line of ``message`` as the error, after the others, which are its details."""
    if ctx.meta[_FORMAT] == Format.JSON:
        output.emit_error_json(message, kind, exit_code)
    line, *details = message.splitlines() or [""]
    for text in details:
        output.note(text)
    output.note(f"error: {line}")
