"""Writes the generated blocks of the pages in this folder; ``--check`` only says which are out of date.

A block stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. Text around it is written by hand.
"""

import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# What the pages show must not depend on who makes them.
for _name in ("ATTN_TUNE_DB", "ATTN_TUNE_DEVICE_AS", "FORCE_COLOR"):
    os.environ.pop(_name, None)
os.environ["COLUMNS"] = "100"

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def commands() -> str:
    """The help of every command."""
    from typer.testing import CliRunner

    from attn_tune.cli import app
    from attn_tune.commands.shared.group import COMMANDS, load_command

    def help_of(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--help"], prog_name="attn-tune")
        return f"```\n{result.stdout.rstrip()}\n```\n"

    parts = [help_of()]
    for name in COMMANDS:
        parts.append(f"\n## {name}\n\n{help_of(name)}")
        inner = getattr(load_command(name), "commands", {})
        parts += [f"\n### {name} {sub}\n\n{help_of(name, sub)}" for sub in inner]
    return "".join(parts)


def exit_codes() -> str:
    """The table of exit codes, with the error type that carries each."""
    from attn_tune.commands.shared.exit_codes import MEANINGS
    from attn_tune.reports.tables import markdown_table
    from attn_tune.schema import errors

    types: dict[int, list[str]] = {}
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.AttnTuneError):
            types.setdefault(value.exit_code, []).append(f"`{name}`")
    rows = [[str(c), text, ", ".join(types.get(c, []))] for c, text in MEANINGS.items()]
    return markdown_table(["code", "meaning", "errors"], rows)


def grids() -> str:
    """The presets, with their sources and layers."""
    from attn_tune.reports.tables import markdown_table
    from attn_tune.tuner.grid import grid_names, load_grid

    rows = []
    for name in grid_names():
        default, every = load_grid(name), load_grid(name, lengths=("all",))
        source = f"[config]({every.source})" if every.source else ""
        heads = sorted({_heads(p.signature.values) for p in default.points})
        if len(heads) > 4:
            heads = [f"{len(heads)} kinds of layer"]
        counts = f"{len(default.points)} of {len(every.points)}"
        rows.append([f"`{name}`", default.summary, "<br>".join(heads), counts, source])
    return markdown_table(["grid", "what", "N/K/H and flags", "points run of all", "source"], rows)


def _heads(values: dict) -> str:
    flags = [f"left={values['left']}"] if values.get("left") is not None else []
    flags += [flag for flag in ("cap", "sinks") if values.get(flag)]
    return " ".join([f"{values['n']}/{values['k']}/{values['h']}", *flags])


def fields() -> str:
    """The signature fields of each op."""
    from attn_tune.kernels.registry import ops
    from attn_tune.reports.tables import markdown_table

    parts = []
    for op in ops().values():
        rows = [
            [f"`{f.name}`", str(f.kind), "" if f.default != "<required>" else "yes", f.doc]
            for f in op.fields
        ]
        table = markdown_table(["field", "matching", "required", "meaning"], rows)
        parts.append(f"### {op.name}/v{op.version}\n\n{table}")
    return "\n".join(parts)


def kernels() -> str:
    """Every op and kernel of the registry."""
    from attn_tune.kernels import registry
    from attn_tune.reports.tables import markdown_table

    ops = [[f"`{o.name}`", ", ".join(o.directions), o.summary] for o in registry.ops().values()]
    rows = [
        [
            f"`{s.id}`",
            s.backend,
            ", ".join(s.searches),
            ", ".join(f"not {d}" for d in s.searches if s.searches[d].nondeterministic) or "yes",
            s.summary,
        ]
        for s in registry.kernels().values()
        if not s.entry_point
    ]
    return (
        markdown_table(["op", "directions", "what"], ops)
        + "\n"
        + markdown_table(["kernel", "backend", "directions", "deterministic", "what"], rows)
    )


def schema() -> str:
    """The schema of a fresh database."""
    import sqlite3

    from attn_tune.db import Database

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lab.db"
        Database.open(path, create=True).close()
        connection = sqlite3.connect(path)
        try:
            found = connection.execute(
                "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"
                " AND name NOT LIKE '_sqlite_%' ORDER BY type DESC, name"
            ).fetchall()
        finally:
            connection.close()
    return "```sql\n" + "\n\n".join(f"{sql.strip()};" for (sql,) in found) + "\n```\n"


BLOCKS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "exit-codes": exit_codes,
    "grids": grids,
    "fields": fields,
    "kernels": kernels,
    "schema": schema,
}


def render(text: str) -> str:
    """``text`` with its generated blocks made anew."""
    return BLOCK.sub(lambda m: f"{m[1]}{BLOCKS[m[2]]()}{m[3]}", text)


def stale() -> list[Path]:
    """The pages that are out of date."""
    return [p for p in sorted(HERE.glob("*.md")) if render(p.read_text()) != p.read_text()]


def main() -> None:
    """Writes, or with ``--check`` fails if there is something to write."""
    for page in (pages := stale()):
        if "--check" not in sys.argv:
            page.write_text(render(page.read_text()))
        print(page.name)
    if pages and "--check" in sys.argv:
        sys.exit("run 'make docs'")


if __name__ == "__main__":
    main()
