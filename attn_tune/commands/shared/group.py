"""Groups of commands. The module of a command is imported when the command is run, so that help is quick."""

import contextlib
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import typer
from typer.core import TyperCommand, TyperGroup

ROOM = "attn_tune.commands"
MARKUP: Literal["rich"] = "rich"
_FIRST_LINE = re.compile(r'"""(.+?)(?:"""|\n)')


class LazyGroup(TyperGroup):
    """A group of commands that imports the module of a command when the command is run.

    Attributes:
      panels: for each panel of the help the names of its commands. A name maps to the module below
        ``attn_tune.commands`` that has the command, or to a group. The function ``command`` of the module is run,
        or the one that follows a colon. The help is the docstring of the function or, without one, of the module.
    """

    panels: ClassVar[Mapping[str, Mapping[str, "str | LazyGroup"]]] = {}

    def __init__(
        self,
        panels: Mapping[str, Mapping[str, Any]] | None = None,
        hidden: Mapping[str, str] | None = None,
        **settings: Any,
    ):
        super().__init__(**settings)
        shown = self.panels if panels is None else panels
        self._places = {name: place for panel in shown.values() for name, place in panel.items()}
        self._panel_of = {name: title for title, panel in shown.items() for name in panel}
        self._is_summarised = False
        # Names only: typer suggests near ones to a mistyped one from here.
        self.commands = dict.fromkeys(self._places)  # type: ignore[assignment]
        self._places |= hidden or {}

    def get_command(self, ctx, cmd_name):
        place = self._places.get(cmd_name)
        if place is None:
            return None
        if self._is_summarised:
            return TyperCommand(
                cmd_name,
                help=place.help if isinstance(place, LazyGroup) else summary(place),
                rich_help_panel=self._panel_of[cmd_name],
                rich_markup_mode=MARKUP,
            )
        return place if isinstance(place, LazyGroup) else load_command(cmd_name, place)

    def format_help(self, ctx, formatter):
        with self._summarised():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx, incomplete):
        with self._summarised():
            return super().shell_complete(ctx, incomplete)

    @contextlib.contextmanager
    def _summarised(self) -> Iterator[None]:
        """Give names and help lines in place of commands; no module is imported."""
        self._is_summarised = True
        try:
            yield
        finally:
            self._is_summarised = False


def group(
    name: str, help: str, commands: Mapping[str, str], hidden: Mapping[str, str] | None = None
) -> LazyGroup:
    """A group inside the application, with one panel of commands. The help does not name ``hidden`` ones."""
    return LazyGroup(
        {"Commands": commands},
        hidden,
        name=name,
        help=help,
        no_args_is_help=True,
        rich_markup_mode=MARKUP,
    )


def load_command(name: str, place: str) -> Any:
    """Import the command at ``place``, ``"module"`` or ``"module:function"``."""
    path, _, attribute = place.partition(":")
    module = importlib.import_module(f"{ROOM}.{path}")
    found = getattr(module, attribute or "command")
    if isinstance(found, typer.Typer):
        found.rich_markup_mode = MARKUP
        return typer.main.get_command(found)
    single = typer.Typer(
        rich_markup_mode=MARKUP, add_completion=False, pretty_exceptions_enable=False
    )
    single.command(name, help=_unwrapped(found.__doc__ or module.__doc__ or ""))(found)
    return typer.main.get_command(single)


def summary(place: str) -> str:
    """The first line of the docstring of the module at ``place``, which is not imported."""
    path, _, attribute = place.partition(":")
    if attribute:
        return load_command("", place).help.partition("\n")[0]
    spec = importlib.util.find_spec(f"{ROOM}.{path}")
    source = spec.loader.get_source(spec.name) if spec else ""  # type: ignore[union-attr]
    return match[1] if (match := _FIRST_LINE.match(source or "")) else ""


def walk(group: LazyGroup, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group below ``group``, imported, with the words that lead to it."""
    context = typer.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield (*words, name), command
        if isinstance(command, LazyGroup):
            yield from walk(command, *words, name)
        else:
            for inner, one in getattr(command, "commands", {}).items():
                yield (*words, name, inner), one


def _unwrapped(text: str) -> str:
    """``text`` with each paragraph on one line: help is folded to the width of the terminal."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
