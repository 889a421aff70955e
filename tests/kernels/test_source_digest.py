"""The digest of a kernel's source: the same on every Python and under every name; every shipped row has today's."""

import ast
import importlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import attn_tune
from attn_tune.kernels import source
from attn_tune.kernels.canonical_source import canonical_source, file_of_module
from attn_tune.kernels.registry import get_kernel, kernels
from attn_tune.kernels.source import (
    reached_modules,
    reason_to_leave_out,
    source_hash,
)
from attn_tune.packs.reader import read_pack
from attn_tune.schema.digest import digest_text

HERE = Path(attn_tune.__file__).parent.parent
PACKS = sorted(path.parent for path in (HERE / "attn_tune" / "packs" / "shipped").glob("*/manifest.json"))
# The version that was installed when the rows of such a kernel were measured.
MEASURED = {"tokamax": "0.0.17", "fa4-jax": "0.1.0", "nvidia-cutlass-dsl": "4.8.1"}

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
KERNELS = {name: spec for name, spec in kernels().items() if not spec.entry_point}
# The digest that Python 3.12.1 and 3.13.0 both give.
GOLDEN = "b2:b4ffa9df33aa618015fb63bb73564663"


def test_the_digest_of_a_source_is_a_known_one():
    assert digest_text(repr(canonical_source(SOURCE))) == GOLDEN


def test_docstrings_and_comments_do_not_change_a_digest():
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
def test_code_that_runs_differently_has_another_digest(pair):
    one, other = map(canonical_source, pair)
    assert one != other


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A function that makes a package in a folder of its own, alone on the path."""
    made = []

    def make(files, top="planted"):
        place = tmp_path / str(len(made))
        made.append(place)
        clear()
        for old in made[:-1]:
            if str(old) in sys.path:
                sys.path.remove(str(old))
        for name, text in files.items():
            path = place / top / f"{name.replace('.', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        for inner in [place / top, *filter(Path.is_dir, (place / top).rglob("*"))]:
            (inner / "__init__.py").touch()
        monkeypatch.syspath_prepend(place)
        return lambda *modules: source_hash(tuple(f"{top}.{name}" for name in modules))

    yield make
    clear()


def clear():
    """Forget what was read of sources: another test has other files under the same names."""
    for cached in (file_of_module, source._mark, source._read_module, source_hash):
        cached.cache_clear()
    importlib.invalidate_caches()


FILES = {
    "forward": "from planted.tiles import load\nfrom planted.softmax import exp\n\ndef call(x): return exp(load(x))\n",
    "tiles": "import math\n\ndef load(x): return x * math.pi\n",
    "softmax": "def exp(x):\n    from planted.tiles import load\n    return load(x) ** 2\n",
}


def test_a_moved_module_keeps_the_digest(folder):
    before = folder(FILES)("forward")
    moved = {
        "attention.hopper.launch": FILES["forward"]
        .replace("planted.tiles", "other.zz.loads")
        .replace("planted.softmax", "other.aa.rows")
        # isort puts them in this order now.
        .replace(
            "from other.zz.loads import load\nfrom other.aa.rows import exp\n",
            "from other.aa.rows import exp\nfrom other.zz.loads import load\n",
        ),
        "zz.loads": FILES["tiles"],
        "aa.rows": FILES["softmax"].replace("planted.tiles", "other.zz.loads"),
    }
    assert folder(moved, top="other")("attention.hopper.launch") == before


@pytest.mark.parametrize("module", FILES)
def test_a_change_in_any_reached_module_changes_the_digest(folder, module):
    before = folder(FILES)("forward")
    changed = FILES | {module: FILES[module] + "\nROWS = 64\n"}
    assert folder(changed)("forward") != before


def test_an_import_from_another_module_with_the_same_names_changes_the_digest(folder):
    files = FILES | {
        "exact": FILES["softmax"].replace("** 2", "** 3"),
        "forward": FILES["forward"] + "from planted import exact\n",
    }
    before = folder(files)("forward")
    swapped = {
        "forward": files["forward"]
        .replace("planted.softmax", "planted.exact")
        .replace("import exact", "import softmax as exact")
    }
    assert folder(files | swapped)("forward") != before


def test_modules_that_import_one_another_in_a_circle_have_a_digest(folder):
    circle = FILES | {"tiles": "from planted import forward\n" + FILES["tiles"]}
    before = folder(circle)("forward")
    assert before != folder(FILES)("forward")
    changed = circle | {"softmax": FILES["softmax"].replace("2", "3")}
    assert folder(changed)("tiles") != folder(circle)("tiles")


def test_relative_imports_and_paths_in_texts_are_followed(folder):
    files = FILES | {"forward": 'from .tiles import load\nEXP = "planted.softmax:exp"\n\ndef call(x): return load(x)\n'}
    before = folder(files)("forward")
    assert folder(files | {"softmax": FILES["softmax"].replace("2", "3")})("forward") != before
    assert folder(files | {"tiles": FILES["tiles"].replace("pi", "e")})("forward") != before


def test_a_module_that_decides_no_code_is_left_out(folder):
    mark = 'DECIDES_NO_CODE = "spaces"\n'
    files = FILES | {"tiles": mark + FILES["tiles"]}
    before = folder(files)("forward")
    assert folder(files | {"tiles": mark + "from planted import gone\n"})("forward") == before
    # But never the module that is called.
    files = FILES | {"forward": mark + FILES["forward"]}
    changed = {"softmax": FILES["softmax"].replace("2", "3")}
    assert folder(files)("forward") != folder(files | changed)("forward")


def test_a_package_that_decides_no_code_is_left_out_whole(folder):
    files = FILES | {
        "words.__init__": 'DECIDES_NO_CODE = (\n    "words"\n)\n',
        "words.errors": "A = 1\n",
        "forward": FILES["forward"] + "from planted.words.errors import A\n",
    }
    before = folder(files)("forward")
    assert folder(files | {"words.errors": "A = 2\n"})("forward") == before


def test_a_module_that_is_not_there_is_named(folder):
    digest = folder(FILES)
    with pytest.raises(ImportError, match=r"planted\.nowhere"):
        digest("nowhere")


def test_computing_a_digest_imports_nothing(folder):
    digest = folder(FILES | {"tiles": "raise SystemExit\n"})
    assert digest("forward")
    assert not any(name.startswith("planted.") for name in sys.modules)


@pytest.mark.parametrize("spec", KERNELS.values(), ids=KERNELS)
def test_a_kernel_reaches_its_own_modules_and_no_other_room(spec):
    """Spaces, limits, the lookup and the tuner decide no code; a module reached by accident makes rows stale for it."""
    rooms = {name.split(".")[1] for name in reached_modules(calls_of(spec))}
    assert rooms <= {"kernels", "ops"}
    assert set(calls_of(spec)) <= set(reached_modules(calls_of(spec)))


def test_every_mark_is_read_and_needed():
    """The constant is found by its text; Python must agree, and a kernel must import the module."""
    marked = {
        name
        for spec in KERNELS.values()
        for syntax in reached_modules(calls_of(spec)).values()
        for run in syntax.runs
        for name in [ref.module for ref in run if ref.module]
        if reason_to_leave_out(name)
    }
    root = Path(attn_tune.__file__).parent
    for path in root.rglob("*.py"):
        constants = [
            node.value.value
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.Assign)
            and [ast.unparse(target) for target in node.targets] == [source.MARK]
            and isinstance(node.value, ast.Constant)
        ]
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts)
        package = name.removesuffix(".__init__")
        if constants:
            assert reason_to_leave_out(package) == constants[0]
            assert any(other == package or other.startswith(package + ".") for other in marked), path


def calls_of(spec):
    """The modules of the kernel's calls."""
    return tuple(sorted({search.call.partition(":")[0] for search in spec.searches.values()}))


def test_every_python_here_makes_the_same_digests():
    """Golden values say it for the fixture; where another Python is installed, this says it for every kernel."""
    others = _other_pythons()
    if not others:
        pytest.skip("no other Python from 3.12 on is installed")
    script = (
        "import json, sys; from attn_tune.kernels import source; source.read_table = dict; "
        "print(json.dumps([source.source_hash(tuple(names)) for names in json.load(sys.stdin)]))"
    )
    modules = [calls_of(spec) for spec in KERNELS.values()]
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
    monkeypatch.setattr(importlib.metadata, "version", lambda name: MEASURED.get(name) or version(name))
    source_hash.cache_clear()
    pack = read_pack(path)
    stale = {
        row.kernel
        for row in pack.rows
        if pack.environments[row.env].source_hash != get_kernel(f"{row.op}/{row.kernel}").source_hash
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
