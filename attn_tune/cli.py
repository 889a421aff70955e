"""The application: its commands, and the one place where an error becomes a line and an exit code."""

import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from attn_tune.commands.shared import output, process
from attn_tune.commands.shared.exit_codes import FAILED, INTERRUPTED
from attn_tune.commands.shared.group import COMMANDS, load_command
from attn_tune.commands.shared.options import Format
from attn_tune.schema.errors import StorageError


class _Commands(TyperGroup):
    """A group that imports a command when it is run, and where all errors end."""

    def __init__(self, **settings):
        super().__init__(**settings)
        # Names only: what suggests near ones to a mistyped one looks here.
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

    def list_commands(self, ctx):
        return list(COMMANDS)

    def get_command(self, ctx, cmd_name):
        return load_command(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx, formatter):
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def parse_args(self, ctx, args):
        # Before anything can fail: an error has to know how it is to be reported.
        ctx.meta[_FORMAT] = _format(args)
        output.begin_command()
        with _reporting(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx):
        alone = output.answers_alone() if ctx.meta[_FORMAT] else contextlib.nullcontext()
        with _reporting(ctx), alone:
            return super().invoke(ctx)


_FORMAT = "attn_tune.format"


def _format(args: Sequence[str]) -> str:
    """The format for programs that the answer is to have, and with ``json`` an error too; empty for a table."""
    valued = _options_with_value(args)
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


def _options_with_value(args: Sequence[str]) -> set[str]:
    """The options of the command in ``args``, and of its inner ones, after which the next word is a value."""
    name = next((word for word in args if word in COMMANDS), None)
    command = load_command(name) if name else None
    commands = (command, *getattr(command, "commands", {}).values())
    options = [one for each in commands if each for one in each.params]
    taking = [one for one in options if not getattr(one, "is_flag", True)]
    return {"-f", "--format", *(name for one in taking for name in one.opts)}


@contextlib.contextmanager
def _reporting(ctx: Any) -> Iterator[None]:
    """Makes a line and an exit code of an error; of a defect Python shows the traceback."""
    try:
        yield
    except (typer.Exit, typer.Abort):
        raise
    except KeyboardInterrupt:
        _report(ctx, "interrupted", "KeyboardInterrupt", INTERRUPTED)
        raise typer.Exit(INTERRUPTED) from None
    except Exception as error:
        from attn_tune.schema import AttnTuneError, UsageError

        kind, code, message = type(error).__name__, FAILED, str(error)
        if isinstance(error, AttnTuneError):
            code = error.exit_code
            if ctx.params.get("debug"):
                import traceback

                traceback.print_exc()
        elif say := getattr(error, "format_message", None):  # typer's, about the command line
            kind, code, message = UsageError.__name__, UsageError.exit_code, say()
            place = getattr(error, "ctx", None) or ctx
            if message == place.get_help():  # there are no words at all
                raise
            line = " ".join(message.split()).rstrip(".")
            message = f"{line[:1].lower()}{line[1:]}; see '{place.command_path} --help'"
        else:
            if ctx.meta[_FORMAT] == Format.JSON:
                output.emit_error_json(message, kind, code)
            raise
        _report(ctx, message, kind, code)
        raise typer.Exit(code) from None


def _report(ctx: Any, message: str, kind: str, exit_code: int) -> None:
    if ctx.meta[_FORMAT] == Format.JSON:
        output.emit_error_json(message, kind, exit_code)
    print(f"error: {message}", file=sys.stderr)


app = typer.Typer(
    cls=_Commands,
    name="attn-tune",
    help="Tunes attention kernels for JAX, on GPU and TPU, with proof.",
    epilog="Exit codes: 0 ok, 1 nothing valid, 2 usage, 3 no data, 4 lock or I/O, 5 integrity, 130 interrupted.",
    # Plain help: rich help changes with the terminal, and docs/cli.md is made from it.
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(value: bool) -> None:
    if value:
        from importlib.metadata import version

        print(f"attn-tune {version('attn-tune')}")
        raise typer.Exit


@app.callback()
def _root(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_version, is_eager=True),
    ] = False,
) -> None:
    """Tunes attention kernels for JAX, on GPU and TPU, with proof."""


def main() -> None:
    """The entry point of ``attn-tune``."""
    process.settle()
    try:
        try:
            app(prog_name="attn-tune")
        finally:
            sys.stdout.flush()
    except StorageError as error:  # of stdout: a command's own errors end in ``invoke``
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
