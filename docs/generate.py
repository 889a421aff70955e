"""Writes the generated blocks of the README and of the pages in this folder, ``flow.svg``, and the pages in ``ops``.

``--check`` writes nothing and says which are stale.

A block stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``. Text around it is written by hand.
"""

import contextlib
import os
import re
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What the pages show must not depend on who makes them.
for _name in ("ATTN_TUNE_DB", "ATTN_TUNE_DEVICE_AS", "FORCE_COLOR"):
    os.environ.pop(_name, None)
os.environ["COLUMNS"] = "100"

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def commands() -> str:
    """The usage, the text and the options of every command."""
    import typer

    from attn_tune.cli import app, commands as found

    parts = [_page(typer.main.get_command(app), "attn-tune")]
    for words, command in found():
        name = " ".join(words)
        parts.append(f"\n{'#' * (len(words) + 1)} {name}\n\n{_page(command, f'attn-tune {name}')}")
    return "".join(parts)


def _page(command: Any, name: str) -> str:
    """The help of one command: a table for each panel."""
    import typer

    from attn_tune.reports.tables import markdown_table

    context = typer.Context(command, info_name=name)
    panels: dict[str, list[list[str]]] = {"Arguments": []}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or {"--help", "--show-completion"} & {*parameter.opts}:
            continue
        kind = "Arguments" if parameter.param_type_name == "argument" else "Options"
        title = getattr(parameter, "rich_help_panel", None) or kind
        panels.setdefault(title, []).append([f"`{record[0]}`", " ".join(record[1].split())])
    tables = [markdown_table([title, ""], rows) for title, rows in panels.items() if rows]
    if inner := getattr(command, "commands", {}):
        found = [inner[name] for name in command.list_commands(context) if not inner[name].hidden]
        rows = [[f"`{one.name}`", (one.help or "").partition("\n")[0]] for one in found]
        tables.append(markdown_table(["Command", ""], rows))
    usage = command.get_usage(context).replace("\n", " ")
    lines = [line if line.startswith("Example: ") else wrapped(line) for line in (command.help or "").split("\n")]
    text = re.sub(r"^Example: (.*)$", r"```sh\n\1\n```", "\n".join(lines), flags=re.MULTILINE)
    return f"```\n{' '.join(usage.split())}\n```\n\n{text}\n\n" + "\n".join(tables)


def wrapped(text: str) -> str:
    """``text`` as lines of at most 120 characters; a longer word stays whole."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


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
    from attn_tune.tuner.plan.grid import grid_names, load_grid

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
    heads = "/".join(str(values[name]) for name in ("n", "k", "h") if name in values)
    return " ".join([heads, *flags])


def kernels() -> str:
    """Every op and kernel of the registry."""
    from attn_tune.kernels import registry
    from attn_tune.ops.registry import ops as all_ops
    from attn_tune.reports.tables import markdown_table

    ops = [[f"`{o.name}`", ", ".join(o.directions), o.summary] for o in all_ops().values()]
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
    """The statuses, then the columns of tables and views, from the comments that the schema carries."""
    import inspect

    from attn_tune.db.described import relations
    from attn_tune.reports.tables import markdown_table
    from attn_tune.schema import Status

    says = dict(re.findall(r'= "(\w+)"\n +"""(.*)"""', inspect.getsource(Status)))
    traits = {"measured": "is_measured", "failed": "is_failure", "never chosen": "bars"}
    rows = [[f"`{s}`", says[s], *("yes" if getattr(s, name) else "" for name in traits.values())] for s in Status]
    text = "## Statuses\n\n" + markdown_table(["status", "says", *traits], rows)
    for one in relations():
        table = markdown_table(["column", "says"], [[f"`{column}`", says] for column, says in one.columns.items()])
        text += f"\n## The {one.kind} `{one.name}`\n\n{one.about}\n\n{table}"
    return text


def references() -> str:
    """The columns that name rows of other tables, by table, from the keys of the schema."""
    import sqlite3

    from attn_tune.db.store.schema import create_schema

    keys: dict[str, list[str]] = {}
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create_schema(connection)
        for table, column, other, key in connection.execute(
            "SELECT tables.name, keys.'from', keys.'table', keys.'to' FROM sqlite_schema AS tables, "
            "pragma_foreign_key_list(tables.name) AS keys WHERE tables.type = 'table' "
            "ORDER BY tables.name, keys.id DESC"
        ):
            keys.setdefault(table, []).append(f"`{column}` → `{other}.{key}`")
    return "\n".join(f"- `{table}`: {', '.join(columns)}" for table, columns in keys.items()) + "\n"


def frame_trials() -> str:
    """The columns of the frame of trials that every trial has."""
    from attn_tune.db import Database

    with tempfile.TemporaryDirectory() as folder, Database.open(Path(folder) / "lab.db", create=True) as database:
        columns = database.frame("trials").columns
    return wrapped(", ".join(f"`{name}`" for name in columns)) + ".\n"


def questions() -> str:
    """The questions of the database's page, each with its query."""
    from attn_tune.db.questions import QUESTIONS

    return "\n".join(
        f"**{one.title}** {one.note} (`attn-tune lab query {name}`):\n\n```sql\n{one.sql}```\n"
        for name, one in QUESTIONS.items()
    )


def results() -> str:
    """The results of the README."""
    import recorded

    return recorded.results()


def serving_decoding() -> str:
    """The recorded rows of decoding."""
    import recorded

    return recorded.decoding()


def shipped_packs() -> str:
    """The packs of the wheel."""
    import recorded

    return recorded.packs()


def serving_peers() -> str:
    """Serving beside FlashInfer and torch, from what is recorded."""
    import recorded

    return recorded.serving_peers()


def serving_by_splits() -> str:
    """FlashAttention-3 over pages beside ours, from what is recorded."""
    import recorded

    return recorded.flash_attention_3()


def _screen(name: str) -> Callable[[], str]:
    """The maker of a block with a section of the recorded terminal."""

    def made() -> str:
        import recorded

        return recorded.screen(name)

    return made


def reference() -> str:
    """A directive of mkdocstrings for every public name."""
    import attn_tune

    return "".join(f"\n::: attn_tune.{name}\n" for name in attn_tune.__all__) + "\n"


BLOCKS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "exit-codes": exit_codes,
    "frame-trials": frame_trials,
    "references": references,
    "grids": grids,
    "kernels": kernels,
    "live-log": _screen("log"),
    "live-status": _screen("status"),
    "live-sweep": _screen("sweep"),
    "live-watch": _screen("status --watch"),
    "questions": questions,
    "reference": reference,
    "results": results,
    "schema": schema,
    "serving-decoding": serving_decoding,
    "serving-peers": serving_peers,
    "serving-by-splits": serving_by_splits,
    "shipped-packs": shipped_packs,
}


def render(text: str) -> str:
    """``text`` with its generated blocks rebuilt."""
    return BLOCK.sub(lambda m: f"{m[1]}{BLOCKS[m[2]]()}{m[3]}", text)


def written() -> dict[Path, str]:
    """Text of every page: the README and this folder's with their blocks made again, the pictures, the ops' pages."""
    from flow import drawn
    from op_pages import pages
    from report_picture import picture

    by_hand = [*sorted(HERE.glob("*.md")), HERE.parent / "README.md"]
    found = {page: render(page.read_text()) for page in by_hand} | {HERE / "flow.svg": drawn()}
    found[HERE / "landscape.svg"] = picture()
    return found | {HERE / "ops" / f"{op}.md": text for op, text in pages().items()}


def main() -> None:
    """Writes, or with ``--check`` fails if there is something to write."""
    texts = written()
    stale = [p for p, text in texts.items() if not p.exists() or p.read_text() != text]
    surplus = [p for p in HERE.glob("ops/*.md") if p not in texts]
    for page in (*stale, *surplus):
        print(page.name)
    if "--check" in sys.argv:
        sys.exit("run 'make docs'" if stale or surplus else 0)
    for page in surplus:
        page.unlink()
    for page in stale:
        page.parent.mkdir(exist_ok=True)
        page.write_text(texts[page])


if __name__ == "__main__":
    main()
