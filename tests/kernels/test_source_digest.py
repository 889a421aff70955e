"""The digest of a kernel's source is the same on every Python, and every shipped row has today's."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attn_tune
from attn_tune.kernels.registry import get_kernel, kernels
from attn_tune.kernels.source import canonical_source, source_hash
from attn_tune.packs.reader import read_pack
from attn_tune.schema.digest import digest_text

HERE = Path(attn_tune.__file__).parent.parent
PACKS = sorted(
    path.parent for path in (HERE / "attn_tune" / "packs" / "shipped").glob("*/manifest.json")
)
# The version that was installed when the rows of such a kernel were measured.
MEASURED = {"tokamax": "0.0.17"}

SOURCE = r'''
"""A module's docstring."""
import a.b as c
from d import (e,)

class Tile[T: int](c.Base, metaclass=e):
    """A class's docstring."""
    n: int = 0x10
    m: float

    @property
    def plain(self) -> None: ...

async def f(x, /, y=-1.5e300, *z, k=None, **more):
    """A function's docstring."""  # a comment
    u"not a docstring of its own: the second"
    async with x as (p, *q):
        yield {**more, "é\u2028\U0001fae8": b"\x00", u"k": 3j}
    match x:
        case {"a": [1, *_], **rest} if (w := x) is not None:
            return
        case None | Tile(n=2):
            del y[1:, ::2]
    try:
        return_ = [i async for i in x if i] + [lambda: (yield)]
    except* ValueError as error:
        raise error from None
    print(f"{x!r:>{y}} {z=:}" "tail", f"{x:{k}.{k}}", 10**5, 10 ** 5)

type Alias[**P] = dict[str, P]
'''
# The digest that Python 3.12.1 and 3.13.0 both give.
GOLDEN = "b2:8b84e12fd53c7a0ad234b57e930e7979"


def test_the_digest_of_a_source_is_a_known_one():
    assert digest_text(canonical_source(SOURCE)) == GOLDEN


def test_what_does_not_run_does_not_count():
    one = 'def f(x):\n    """Words."""\n    return (x +\n            "a" u"b")  # why\n'
    assert canonical_source(one) == canonical_source("def f(x): return x + 'ab'\n")


@pytest.mark.parametrize(
    "pair",
    [
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = 'a'", "x = b'a'"),
        ("x = 'None'", "x = None"),
        ("return_ = None", "return_ = 'None'"),
        ("f(a, b)", "f(a)(b)"),
        ("f(*a)", "f(a)"),
        ("{**a}", "{a: a}"),
        ("def f(a=None): g()", "def f(a): g()"),
        ("def f(): return", "def f(): return None"),
        ("def f(a, /): g()", "def f(a): g()"),
        ("f'{a}'", "f'{a!r}'"),
        ("f'{a:>{b}}'", "f'{a:>{b} }'"),
        ("'words'\n'more'", "'words'\n'other'"),
        ("x = 'words'", "x = 'other'"),
        ("a[:b]", "a[b:]"),
        ("a < b", "a <= b"),
    ],
    ids=str,
)
def test_what_runs_differently_has_another_digest(pair):
    one, other = map(canonical_source, pair)
    assert one != other


def test_every_python_here_makes_the_same_digests():
    """Golden values say it for the fixture; where another Python is installed, this says it for every kernel."""
    others = _other_pythons()
    if not others:
        pytest.skip("no other Python from 3.12 on is installed")
    script = (
        "import json, sys; from attn_tune.kernels.source import source_hash; "
        "print(json.dumps([source_hash(tuple(names)) for names in json.load(sys.stdin)]))"
    )
    modules = [spec.modules for spec in kernels().values() if not spec.entry_point]
    here = [source_hash(names) for names in modules]
    for python in others:
        done = subprocess.run(
            [python, "-c", script],
            cwd=HERE,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE)},
            input=json.dumps(modules),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == here, python


@pytest.mark.parametrize("path", PACKS, ids=lambda path: path.name)
def test_every_shipped_row_has_the_digest_of_todays_source(path, monkeypatch):
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: MEASURED.get(name) or version(name)
    )
    source_hash.cache_clear()
    pack = read_pack(path)
    stale = {
        row.kernel
        for row in pack.rows
        if pack.environments[row.env].source_hash
        != get_kernel(f"{row.op}/{row.kernel}").source_hash
    }
    source_hash.cache_clear()
    assert not stale


def _other_pythons():
    """One interpreter of each other minor version from 3.12 on, on the path or of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {}
    for minor in range(12, 20):
        name = f"python3.{minor}"
        candidates = [shutil.which(name), *sorted(root.glob(f"versions/*/bin/{name}"))]
        for python in filter(None, candidates):
            # A shim of pyenv is on the path for versions that it will not run.
            if subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
                found[minor] = str(python)
                break
    found.pop(sys.version_info.minor, None)
    return list(found.values())
