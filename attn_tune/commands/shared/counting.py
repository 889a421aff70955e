"""Progress of a command that does one thing after another, on stderr."""

import contextlib
import sys
from collections.abc import Callable, Generator

from attn_tune.commands.shared import output


@contextlib.contextmanager
def counting(total: int, what: str) -> Generator[Callable[[str, str], None]]:
    """A function to call with the group and the name of each of ``total`` things before it is done.

    A terminal has one line, which is redrawn; anything else a line for each group. ``what`` is a plural.
    """
    from attn_tune.commands.sweeps.progress import is_animated

    if is_animated(sys.stderr):
        with _drawn(total, what) as step:
            yield step
        return
    done, last = 0, ""

    def tell(group: str, name: str) -> None:
        nonlocal done, last
        if group != last:
            output.note(f"{group}: {done}/{total} {what} done")
        done, last = done + 1, group

    yield tell


@contextlib.contextmanager
def _drawn(total: int, what: str) -> Generator[Callable[[str, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        MofNCompleteColumn(),
        TextColumn(what),
        BarColumn(20),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    done = 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)

        def step(group: str, name: str) -> None:
            nonlocal done
            progress.update(task, completed=done, description=f"{group} {name}")
            done += 1

        yield step
