"""The pages say what the code does: all is named, links lead somewhere, examples run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from attn_tune.cli import commands
from attn_tune.commands.shared.exit_codes import MEANINGS
from attn_tune.kernels import registry
from attn_tune.ops.registry import ops
from attn_tune.schema import errors
from attn_tune.tuner.plan.grid import grid_names, load_grid
from tests.several_devices import run_with_devices

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [
    *sorted(DOCS.rglob("*.md")),
    *(ROOT / n for n in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
]
COMMANDS = dict(commands())
# Words that follow the name of the program in headers of files.
FORMATS = {"compiler"}
SOURCES = [
    *(page for page in PAGES if page.name != "CHANGELOG.md"),  # it names commands of before
    *sorted((ROOT / "attn_tune").rglob("*.py")),
    ROOT / "Makefile",
]
BY_NAME = {page.name: page for page in PAGES}


def text(name: str) -> str:
    return BY_NAME[name].read_text()


@pytest.mark.slow
def test_generated_pages_are_current():
    # In a process of its own: what a help page shows may depend on the terminal and the environment.
    done = subprocess.run([sys.executable, DOCS / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, f"stale, run 'make docs': {done.stdout}{done.stderr}"


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_and_option_is_documented(words):
    command = COMMANDS[words]
    page = text("cli.md")
    section = page.split(f"\n{'#' * (len(words) + 1)} {' '.join(words)}\n")[1].split("\n#")[0]
    for parameter in command.params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            if option.startswith("-"):
                assert option in section
                assert getattr(parameter, "help", None), f"{option} of {words} has no help"
    assert command.help


def test_every_exit_code_and_error_is_documented():
    page = text("exit-codes.md")
    for code, meaning in MEANINGS.items():
        assert f"| {code} | {meaning} |" in page
    types = [
        value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.AttnTuneError)
    ]
    assert len(types) >= 6
    for error in types:
        assert f"`{error.__name__}`" in page
        assert error.exit_code in MEANINGS


def test_every_op_and_kernel_is_documented():
    page = text("kernels.md")
    for op in ops():
        assert f"`{op}`" in page
    for spec in registry.kernels().values():
        if not spec.entry_point:
            assert f"| `{spec.id}` | {spec.backend} |" in page


def test_every_grid_is_documented():
    page = text("grids.md")
    for name in grid_names():
        assert f"| `{name}` |" in page


@pytest.mark.parametrize("name", ops())
def test_the_page_of_an_op_has_its_fields_and_kernels(name):
    op, page = ops()[name], text(f"{name}.md")
    for field in op.fields:
        assert f"| `{field.name}` |" in page
    for spec in registry.kernels().values():
        assert spec.op != name or spec.entry_point or f"### `{spec.id}`\n" in page


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in DOCS.rglob("*.md"):
        assert f": {page.relative_to(DOCS).as_posix()}\n" in navigation


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def calls(source: str):
    """(words of a command, words after them, whether it is a command for sure) of every command line in a text.

    It is one for sure in quotes, after a line break in a string, and at the start of a line of a shell block.
    """
    joined = source.replace("\\\n", " ")
    shell = re.sub(
        r"```sh\n(.*?)```",
        lambda block: re.sub("^attn-tune", "`attn-tune", block[1], flags=re.MULTILINE),
        joined,
        flags=re.DOTALL,
    )
    found = re.finditer(
        r"(?P<before>(?<!b)[`'\"] *|\\n +|(?<=[\s(])|^)attn-tune (?P<rest>[a-z-][^`'\"\n)]*)",
        shell,
        re.MULTILINE,
    )
    for match in found:
        words = match["rest"].split("#")[0].split()
        name: list[str] = []
        while words and (*name, words[0].rstrip(".,:;")) in COMMANDS:
            name.append(words.pop(0).rstrip(".,:;"))
        yield tuple(name), words, bool(match["before"])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_command_lines_in_pages_and_strings_exist(path):
    for name, rest, is_quoted in calls(path.read_text()):
        first = rest[0] if rest else ""
        if not name:  # the program itself: prose, unless it stands in quotes
            assert not is_quoted or first.startswith("-") or first in FORMATS, f"no command {first!r}"
            continue
        command = COMMANDS[name]
        if getattr(command, "commands", {}) and is_quoted:
            assert not rest or first.startswith("-"), f"{name} has no command {first!r}"
        known = {o for p in command.params for o in (*p.opts, *p.secondary_opts)}
        given = {w.partition("=")[0].rstrip(".,:;") for w in rest if re.match("--?[a-z]", w)}
        assert given <= known, f"{name} has no option {given - known}"


def test_a_command_line_that_does_not_exist_is_found():
    text = "`attn-tune pack sign`, attn-tune is, 'attn-tune inspect x', attn-tune sweep --gird x"
    assert list(calls(text)) == [
        (("pack", "sign"), [], True),
        ((), ["is,"], False),
        ((), ["inspect", "x"], True),
        (("sweep",), ["--gird", "x"], False),
    ]


def test_the_example_grids_can_be_read(tmp_path):
    blocks = re.findall(r"```toml\n(.*?)```", text("grids.md"), re.DOTALL)
    path = tmp_path / "mine.toml"
    names = []
    for block in blocks:
        path.write_text(block)
        names.append([p.name for p in load_grid(str(path), lengths=("all",)).points])
    assert names == [
        ["mine.local/8x2k", "mine.local/4x4k", "mine.local/1x512x8k", "mine.pooling"],
        ["mine.layer/4x4k", "mine.prompt", "mine.packed", "mine.step"],
    ]


def test_the_example_queries_run(tmp_path):
    import sqlite3

    from tests.cli.fakes import fill

    path = tmp_path / "lab.db"
    fill(path)
    queries = [
        block for block in re.findall(r"```sql\n(.*?)```", text("database.md"), re.DOTALL) if block.startswith("SELECT")
    ]
    connection = sqlite3.connect(path)
    found = [connection.execute(query).fetchall() for query in queries]
    connection.close()
    assert len(found) == 5
    losers, _, minutes, noise, _ = found
    assert "flash_attention/xla" in {row[0] for row in minutes}
    assert losers
    assert noise


def test_the_lines_for_a_notebook_run(capsys):
    notebook = re.findall(r"```python\n(.*?)```", text("README.md"), re.DOTALL)[0]
    assert len(notebook.splitlines()) == 5
    exec(notebook, names := {})
    assert names["out"].shape == (1, 128, 4, 128)
    printed = capsys.readouterr().out
    assert "CHOSEN" in printed
    assert "lookups: " in printed


def test_the_first_call_of_the_page_of_ops_runs(capsys):
    exec(re.findall(r"```python\n(.*?)```", text("api.md"), re.DOTALL)[0], names := {})
    assert names["out"].shape == (1, 256, 32, 128)
    assert "t=256" in capsys.readouterr().out


def test_every_cost_is_a_recorded_one():
    rows = re.findall(r"^\| (.*) \| \[\w+\]\((\.\./benchmarks/[^)#]+)(?:#[^)]*)?\) \|$", text("costs.md"), re.MULTILINE)
    assert len(rows) >= 8
    for row, record in rows:
        recorded = (DOCS / record).read_text()
        took = re.findall(r"[\d.]+", row.rpartition("|")[2])
        assert took, row
        for figure in (*took, *re.findall(r"\b\d{3,}\b", row)):
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.]*\d)", recorded), (row, figure)


def test_the_picture_names_every_step_and_both_schemes():
    picture = (DOCS / "flow.svg").read_text()
    for step in ("compile", "prove", "race", "trials", "decision", "gate", "pack", "lookup"):
        assert f">{step}</text>" in picture
    assert "prefers-color-scheme: dark" in picture
    assert all(float(size) >= 11 for size in re.findall(r"font-size: ([\d.]+)px", picture))
    assert 'viewBox="0 0 400 ' in picture


def test_the_examples_of_other_libraries_run():
    blocks = re.findall(r"```python\n(.*?)```", text("coming-from.md"), re.DOTALL)
    assert len(blocks) == 4
    exec("\n".join(blocks), {})


@pytest.mark.slow
def test_the_decoding_loop_runs_and_every_measured_row_is_recorded():
    block = "".join(re.findall(r"```python\n(.*?)```", text("serving.md"), re.DOTALL))
    names = {}
    exec(block, names)
    assert bool(names["jnp"].isfinite(names["out"]).all())
    rows = json.loads((ROOT / "benchmarks/results/h200/serving.json").read_text())["rows"]
    recorded = {f"{row['us']['auto']:.1f}" for row in rows}
    quoted = re.findall(r"^\| [^|]+ \| \d+x1x\d+k \| ([\d.]+) \|", text("serving.md"), re.MULTILINE)
    assert len(quoted) == len(rows)
    assert set(quoted) <= recorded
    # The number of rows in the README's mean is the number of rows with a time of cuDNN in the table it links.
    (counted,) = re.findall(r"cuDNN's paged attention\s+\(geometric mean of (\d+) rows", text("README.md"))
    beside = re.findall(r"^\| [^|]+ \| \d+x1x\d+k \| [\d.]+ \| [\d.]+ \| [\d.]+ \|", text("serving.md"), re.MULTILINE)
    assert len(beside) == int(counted)


@pytest.mark.slow
def test_the_page_of_serving_runs_where_there_are_several_devices():
    block = "".join(re.findall(r"```python\n(.*?)```", text("serving.md"), re.DOTALL))
    printed = run_with_devices(2, "-c", f"{block}\nprint(mesh.size, ranks.size)\n")
    assert printed.split() == ["2", "2"]


@pytest.mark.slow
def test_the_calls_of_linear_attention_run():
    names = {}
    exec("".join(re.findall(r"```python\n(.*?)```", text("linear-attention.md"), re.DOTALL)), names)
    jnp = names["jnp"]
    assert bool(jnp.isfinite(names["out"]).all())
    assert names["states"].shape == (4, 4, 32, 32)
    assert not bool(names["states"][1].any())
    assert not bool(names["out"][:, 90:].any())
    assert all(bool(jnp.isfinite(x).all()) for x in names["gradients"])


def test_the_calls_of_sparse_attention_run():
    exec("".join(re.findall(r"```python\n(.*?)```", text("sparse-attention.md"), re.DOTALL)), names := {})
    assert names["out"].shape == (names["B"], names["N"], names["L"])
    assert names["mixed"].shape == names["alone"].shape == names["query"].shape


def test_every_measured_row_of_sparse_attention_is_recorded():
    rows = json.loads((ROOT / "benchmarks/results/h100/sparse_configs.json").read_text())["rows"]
    fastest = [min(config["us"] for config in row["configs"]) for row in rows]
    quoted = re.findall(r"^\| `[^|]+ \| ([\d.]+ [mu]s)", text("sparse-attention.md"), re.MULTILINE)
    assert {*quoted} & {f"{us:.0f} us" if us < 1000 else f"{us / 1000:.2f} ms" for us in fastest} == {*quoted} > set()


def test_every_measured_row_of_native_sparse_attention_is_recorded():
    rows = json.loads((ROOT / "benchmarks/results/h100/native_sparse.json").read_text())["rows"]
    points = {row["point"]: row["us"] for row in rows}
    found = r"^\| (\d+k) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$"
    quoted = re.findall(found, text("sparse-attention.md"), re.MULTILINE)
    assert len(quoted) == 3
    for length, *given in quoted:
        measured = []
        for direction in ("fwd", "bwd"):
            us = points[f"{direction} {length} local"]
            dense = min(us[name] for name in us if name.startswith("dense"))
            measured += [f"{us['untuned'] / 1000:.2f}", f"{dense / 1000:.2f}"]
        assert given == measured


def test_every_measured_row_of_writing_a_cache_is_recorded():
    rows = json.loads((ROOT / "benchmarks/results/h200/append.json").read_text())["rows"]
    recorded = {tuple(f"{row['us'][name]:.2f}" for name in ("auto", "xla", "copy")) for row in rows}
    found = r"^\| [^|]+ \| \d+x\w+ \| ([\d.]+) \| ([\d.]+) \| [\d. ]* ?\| ([\d.]+) \|$"
    quoted = re.findall(found, text("serving.md"), re.MULTILINE)
    assert len(quoted) == len(rows)
    assert set(quoted) <= recorded
    assert all(ratio <= 1 for row in rows for ratio in row["error_ratio"].values())


def test_every_measured_row_of_linear_attention_is_recorded():
    rows = json.loads((ROOT / "benchmarks/results/h200/gated_delta_rule.json").read_text())["rows"]
    more = json.loads((ROOT / "benchmarks/results/h200/linear_attention.json").read_text())["rows"]
    for found, count, of in ((r"[\d/]+, \d+x\w+, [^|]+", 12, rows), (r"`\w+` \d+, \d+x\w+, [^|]+", 10, more)):
        recorded = {f"{us:.1f}" for row in of for us in row["us"].values()}
        numbers = rf"^\| {found} \| ([\d.]+) \| ([\d.]*) ?\| ([\d.]*) ?\|$"
        quoted = re.findall(numbers, text("linear-attention.md"), re.MULTILINE)
        assert len(quoted) == count
        assert {us for row in quoted for us in row if us} <= recorded


def test_code_of_the_page_of_context_parallelism_runs():
    names = {}
    exec("".join(re.findall(r"```python\n(.*?)```", text("context-parallel.md"), re.DOTALL)), names)
    assert names["one_token"].shape == (1, 4, 32)


def test_every_measured_row_of_cascades_is_recorded():
    rows = json.loads((ROOT / "benchmarks/results/h200/cascade.json").read_text())["rows"]
    names = ("whole", "cascade", "groups", "prefix", "own", "merge")
    recorded = {(row["point"], *(f"{row['us'][name]:.1f}" for name in names)) for row in rows}
    found = r"^\| (\d+x\d+\+\d+)" + r" \| ([\d.]+)" * len(names) + r" \|"
    quoted = re.findall(found, text("serving.md"), re.MULTILINE)
    assert len(quoted) == len(rows)
    assert set(quoted) <= recorded
    assert all(ratio <= 1 for row in rows for ratio in row["error_ratio"].values())


def test_every_measured_row_of_ragged_calls_is_recorded():
    rows = json.loads((ROOT / "benchmarks/results/h200/ragged.json").read_text())["rows"]
    names = ("auto", "one_launch", "small_tile")
    recorded = {tuple(f"{row['us'][name]:.1f}" for name in names) for row in rows}
    found = r"^\| [^|]+ \| \d+x\d+kx\d+k \| ([\d.]+) \| \d+ \| ([\d.]+) \| ([\d.]+) \|"
    quoted = re.findall(found, text("serving.md"), re.MULTILINE)
    assert len(quoted) == len(rows) == 20
    assert set(quoted) <= recorded
    assert all(ratio <= 1 for row in rows for ratio in row["error_ratio"].values())


def test_every_measured_row_of_latent_calls_is_recorded():
    rows = json.loads((ROOT / "benchmarks/results/h200/mla_ragged.json").read_text())["rows"]
    names = ("triton_hopper_latent", "rows32", "triton_latent", "xla")
    recorded = []
    for row in rows:
        hopper, rows32, rows64, xla = (f"{row['us'][name] / 1000:.2f}" if name in row["us"] else "" for name in names)
        rates = [f"{row['tflop_s'][name]:.0f}" for name in names[:2]]
        recorded.append((hopper, rates[0], rows32, rates[1], rows64, xla))
    found = r"^\| (?:16|128), [^|]+ \| " + r" \| ".join([r"([\d.]+)"] * 5) + r" \| ([\d.]*) \|"
    assert re.findall(found, text("serving.md"), re.MULTILINE) == recorded
    assert all(ratio <= 1 for row in rows for ratio in row["error_ratio"].values())


def test_docs_name_no_machine():
    private = re.compile(r"/(root|home|work|tmp)/|localhost|127\.0\.0\.1")
    files = [*PAGES, *(ROOT / "attn_tune" / "grids").glob("*.toml"), ROOT / "Makefile"]
    for path in files:
        assert not private.search(path.read_text()), path
