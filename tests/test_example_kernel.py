"""The kernel of the page on adding one: found, proven, swept, packed and called, as the page says."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "adding-a-kernel.md"


@pytest.fixture(scope="module")
def dense_kernel(tmp_path_factory):
    """The kernel of ``adding-a-kernel.md``, installed beside nothing else; what runs the command line where it is."""
    folder = tmp_path_factory.mktemp("dense_kernel")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    project = tomllib.loads(toml)
    (folder / "dense_kernel.py").write_text(code)
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["include"] == ["dense_kernel.py"]
    (entries,) = project["project"]["entry-points"].items()
    name, version = (project["project"][key] for key in ("name", "version"))
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"[{entries[0]}]", *(f"{key} = {value}" for key, value in entries[1].items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    path = os.pathsep.join([str(folder), str(ROOT)])
    env = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}

    def run(script, *words):
        done = subprocess.run(
            [sys.executable, "-c", script, *words],
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    return run


def test_the_example_kernel_is_found_and_right(dense_kernel):
    words = ["validate", "-k", "dense", "--feature", "causal_longer_queries", "--json"]
    (answer,) = dense_kernel(_COMMANDS, json.dumps([words]))
    rows = answer["validations"]
    assert {row["kernel"] for row in rows} == {"flash_attention/dense"}
    proven = {(row["problem"], row["direction"]): row for row in rows if row["status"] == "ok"}
    assert set(proven) >= {("causal_longer_queries", direction) for direction in ("fwd", "bwd")}
    assert all(0 < row["worst_error"] <= 1 for row in proven.values())


def test_one_call_by_hand_takes_the_config(dense_kernel):
    _, section = PAGE.read_text().split("## When it is wrong")
    (call, *_) = re.findall(r"```py\n(.*?)```", section, re.DOTALL)
    assert dense_kernel(f"{call}assert out.shape == q.shape\nprint(out.size)") == [64 * 4 * 16]


@pytest.mark.slow
@pytest.mark.exhaustive  # other kernels of entry points go the same way in tests/probe_ops
def test_the_example_kernel_goes_from_its_file_into_a_pack(dense_kernel):
    # Rows: 1 2. With the heads of other sweeps of the tests, whose feature problems then need not be compiled again.
    signature = "flash_attention/v1 b=2 t=2 s=2 n=4 k=2 h=32 v=32 dtype=float32 causal=1"
    where = ["--grid", signature, "--kernel", "dense", "--db", "lab.db", "--json"]
    # Forward alone: a sweep of both takes twice as long and shows nothing more.
    sweep = ["sweep", *where, "--direction", "fwd"]
    export = ["export", "dense.atpack", "--kernel", "dense", "--db", "lab.db", "--json"]
    # Allowed because other programs may run on this machine.
    export += ["--max-regret", "1000", "--allow-noisy"]
    planned, _, exported = dense_kernel(_COMMANDS, json.dumps([["plan", *where], sweep, export]))
    assert [row["to_try"] for row in planned["kernels"]] == [2, 2]
    assert exported
    (answer,) = dense_kernel(_LOOK_UP, signature)
    assert answer["kernel"] == "dense"
    assert answer["source"] == "dense 1"
    assert answer["config"]["rows"] in (1, 2)
    assert answer["is_right"]


# Several commands in one process, for each loads the same libraries. Prints a line of JSON for each.
_COMMANDS = """
import json, sys
from typer.testing import CliRunner
from attn_tune.cli import app
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words, prog_name="attn-tune")
    assert done.exit_code == 0, (done.output, done.exception)
    print(json.dumps(json.loads(done.stdout)))
"""

# A job: it uses the pack, asks what it says, and calls the op with it.
_LOOK_UP = """
import json, sys
import jax, numpy as np
import attn_tune
q, k, v = (
    jax.random.normal(jax.random.key(i), (2, 2, heads, 32)) for i, heads in enumerate((4, 2, 2))
)
attend = lambda platform: jax.value_and_grad(
    lambda q: attn_tune.flash_attention(q, k, v, causal=True, platform=platform).sum()
)(q)
with attn_tune.use_pack("dense.atpack"):
    same = all(map(lambda a, b: np.allclose(a, b, atol=1e-5), attend("dense"), attend("xla")))
    answer = attn_tune.lookup("flash_attention", sys.argv[1], "fwd", kernel="dense")
    fields = {name: getattr(answer, name) for name in ("kernel", "source")}
    print(json.dumps(fields | {"config": dict(answer.config), "is_right": bool(same)}))
"""
