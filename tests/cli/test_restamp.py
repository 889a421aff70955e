"""Rows are restamped if their programs are equal, from real checkouts: copies of this package with edited kernels."""

import dataclasses
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import attn_tune
from attn_tune.cli import app
from attn_tune.commands.pack import restamp
from attn_tune.kernels import source
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.registry import get_op
from attn_tune.packs.reader import read_pack
from attn_tune.packs.writer import files_of_rows, write_pack
from attn_tune.runtime.lookup.answer import Knobs
from attn_tune.schema.config import config_to_dict

PACKAGE = Path(attn_tune.__file__).parent
SHIPPED = PACKAGE / "packs" / "shipped" / "nvidia-h200"
LIBRARY = "cudnn"
pytestmark = pytest.mark.slow


def run(pack, *words):
    return CliRunner().invoke(app, ["pack", "restamp", str(pack), *map(str, words)])


@pytest.fixture(scope="module")
def before(tmp_path_factory):
    """A checkout in which the library kernel has one constant more, and the XLA kernel another program."""
    root = tmp_path_factory.mktemp("before")
    skip = shutil.ignore_patterns("__pycache__", "shipped")
    shutil.copytree(PACKAGE, root / "attn_tune", ignore=skip)
    called = [_file(root, LIBRARY), _file(root, "xla")]
    called[0].write_text(called[0].read_text() + "\n_NOT_USED = 1\n")
    text = called[1].read_text()
    assert text.count("jnp.exp(") > 0
    called[1].write_text(text.replace("jnp.exp(", "jnp.exp(2 * "))
    return root


@pytest.fixture(scope="module")
def digests(before):
    """The digest of each kernel's source in the other checkout."""
    script = (
        "import json; from attn_tune.kernels.registry import kernels; "
        "print(json.dumps({i: k.source_hash for i, k in kernels().items()}))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=before, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.fixture
def pack(tmp_path, digests):
    """A pack with three stale rows: of the library, of XLA, and of an unknown source."""
    shipped = read_pack(SHIPPED)
    found = (r for r in shipped.rows if r.kernel == LIBRARY and r.direction == "fwd")
    row, plain, other = itertools.islice(found, 3)
    environment = shipped.environments[row.env]

    def stale(row, kernel, digest):
        changed = dataclasses.replace(environment, source_hash=digest)
        config = row.config
        if kernel != row.kernel:
            op = get_op(row.op)
            problem = op.from_signature(op.parse_signature(row.signature))
            search = get_kernel(f"{row.op}/{kernel}").searches[row.direction]
            device = shipped.devices[row.device]
            config = Knobs(config_to_dict(search.heuristic(problem, device)))
        return dataclasses.replace(row, kernel=kernel, config=config, env=changed.digest), changed

    rows = [
        stale(row, LIBRARY, digests[f"{row.op}/{LIBRARY}"]),
        stale(plain, "xla", digests[f"{row.op}/xla"]),
        stale(other, LIBRARY, "b2:" + "0" * 32),
    ]
    files = files_of_rows(
        [row for row, _ in rows],
        name="old",
        version="1",
        devices=shipped.devices,
        environments={e.digest: e for _, e in rows},
        contracts={f"{row.op}/{kernel}": 1 for kernel in (LIBRARY, "xla")},
    )
    write_pack(tmp_path / "old.atpack", files)
    return tmp_path / "old.atpack"


def test_rows_with_equal_programs_are_restamped_and_others_left_out(pack, before):
    out = pack.with_name("new.atpack")
    words = ("--before", before, "--out", out, "--version", "2", "--jobs", "2")
    said = json.loads(run(pack, *words, "--json").stdout)
    assert (said["kept"], said["restamped"], said["left_out"]) == (0, 1, 2)
    verdicts = [row["verdict"] for row in said["rows"]]
    assert verdicts.count(restamp.SAME) == 1
    assert any("other programs" in verdict for verdict in verdicts), verdicts
    assert any("not the source that it was measured with" in verdict for verdict in verdicts)
    new = read_pack(out)
    (row,) = new.rows
    assert (row.kernel, new.version) == (LIBRARY, "2")
    assert not restamp.is_stale(row, new)
    old = next(r for r in read_pack(pack).rows if r.key == row.key)
    assert dataclasses.replace(row, env=old.env) == old
    # What is restamped stays as it is the next time.
    assert [verdict.text for verdict in restamp.judge(new, before)] == [restamp.KEPT]


def test_an_alias_makes_rows_that_are_out_already_fresh(pack, before, tmp_path, monkeypatch):
    table = tmp_path / "aliases.json"
    table.write_text("{}")
    monkeypatch.setattr(source, "ALIASES", table)
    source.read_aliases.cache_clear()
    try:
        old = read_pack(pack)
        row = next(r for r in old.rows if r.kernel == LIBRARY)
        added = restamp.add_aliases(old, [restamp.Verdict(row, restamp.SAME)])
        digest = old.environments[row.env].source_hash
        assert added == {digest: get_kernel(f"{row.op}/{LIBRARY}").source_hash}
        assert json.loads(table.read_text()) == added
        assert not restamp.is_stale(row, old)
        # One row with other programs, and the digest proves nothing.
        verdicts = [restamp.Verdict(row, restamp.SAME), restamp.Verdict(row, "left out: other")]
        table.write_text("{}")
        source.read_aliases.cache_clear()
        assert restamp.add_aliases(old, verdicts) == {}
    finally:
        source.read_aliases.cache_clear()


def test_rows_not_asked_for_are_left_out_and_kept_ones_copied(pack, before, monkeypatch):
    monkeypatch.setattr(restamp, "_ask", lambda checkout, questions, jobs: [])
    old = read_pack(pack)
    verdicts = restamp.judge(old, before, kernels=["triton"], keep=["xla"])
    said = {(v.row.kernel, v.text) for v in verdicts}
    assert said == {(LIBRARY, "left out: not asked for"), ("xla", restamp.KEPT)}


def test_a_checkout_that_answers_nothing_is_an_error(pack, tmp_path):
    (tmp_path / "empty" / "attn_tune").mkdir(parents=True)
    (tmp_path / "empty" / "attn_tune" / "__init__.py").touch()
    done = run(pack, "--before", tmp_path / "empty", "--out", tmp_path / "new")
    assert (done.exit_code, "failed in" in done.stderr) == (1, True)
    assert not (tmp_path / "new").exists()


def test_bad_paths_are_refused_before_anything_is_compiled(pack, before, tmp_path):
    done = run(pack, "--before", tmp_path, "--out", tmp_path / "new")
    assert (done.exit_code, "no folder attn_tune" in done.stderr) == (2, True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    done = run(pack, "--before", before, "--out", tmp_path / "mine", "--overwrite")
    assert (done.exit_code, "not overwritten" in done.stderr) == (4, True)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def _file(root, kernel):
    call = get_kernel(f"flash_attention/{kernel}").searches["fwd"].call
    return root / Path(*call.partition(":")[0].split(".")).with_suffix(".py")
