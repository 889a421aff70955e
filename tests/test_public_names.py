"""The public list: every name loads, nothing on it is a module or a private thing, and type checkers see the same."""

import ast
import inspect
import json
import subprocess
import sys
import types
import typing
from pathlib import Path

import jax.numpy as jnp
import pytest

import attn_tune
from attn_tune.ops.registry import ops
from tests.api import probe_ops


@pytest.mark.parametrize("name", attn_tune.__all__)
def test_every_public_name_loads_and_is_documented(name):
    value = getattr(attn_tune, name)
    assert not isinstance(value, types.ModuleType)
    assert (value.__doc__ or "").strip()
    assert name in dir(attn_tune)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="flash_atention"):
        attn_tune.flash_atention  # noqa: B018


def test_dir_and_a_wildcard_import_give_the_public_names_alone():
    assert dir(attn_tune) == sorted([*attn_tune.__all__, "__version__"])
    names = {}
    exec("from attn_tune import *", names)
    assert {name for name in names if name != "__builtins__"} == set(attn_tune.__all__)


def test_names_that_type_checkers_import_are_the_public_list():
    tree = ast.parse(Path(attn_tune.__file__).read_text())
    (block,) = (n for n in tree.body if isinstance(n, ast.If))
    imported = {
        alias.asname: statement.module
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert imported == attn_tune._PUBLIC | attn_tune._functions_of_ops()


def test_every_op_has_a_public_function_of_its_own_name():
    for name, op in ops().items():
        assert name in {path.partition(":")[2] for path in op.functions}
        assert callable(getattr(attn_tune, name))


def test_an_op_of_another_package_is_called_by_one_public_line(monkeypatch):
    probe_ops.register(monkeypatch)
    assert "scale_rows" in dir(attn_tune)
    assert "scale_rows" in attn_tune.__all__
    x = jnp.ones((3, 5))
    try:
        assert (attn_tune.scale_rows(x, 2 * x[0]) == 2).all()
    finally:
        monkeypatch.undo()
        vars(attn_tune).pop("scale_rows", None)
    assert not hasattr(attn_tune, "scale_rows")


USE = """
import attn_tune, jax.numpy as jnp
q = jnp.ones((1, 4, 2, 8))
reveal_type(attn_tune.flash_attention(q, q, q, causal=True))
reveal_type(attn_tune.flash_attention(q, q, q, return_lse=True))
reveal_type(attn_tune.dot_product_attention(q, q, q))
reveal_type(attn_tune.dot_product_attention(q, q, q, return_residual=True))
reveal_type(attn_tune.stats())
attn_tune.flash_attention(q, q, q, not_an_argument=3)
attn_tune.flash_attention("q", q, q)
attn_tune.flash_atention
"""


@pytest.mark.slow
def test_pyright_knows_every_signature(tmp_path):
    root = Path(attn_tune.__file__).parent.parent
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(root)]}))
    (tmp_path / "use.py").write_text(USE)
    checker = Path(sys.executable).with_name("pyright")
    done = subprocess.run(
        [checker, "--outputjson", "--pythonpath", sys.executable, "use.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = USE.splitlines()
    errors = {lines[d["range"]["start"]["line"]] for d in found if d["severity"] == "error"}
    assert errors == set(lines[-3:])
    revealed = [d["message"].rpartition(" is ")[2] for d in found if d["severity"] != "error"]
    assert revealed == ['"Array"', '"tuple[Array, Array]"'] * 2 + ['"Stats"']


def test_the_typed_form_of_flash_attention_has_its_parameters():
    def parameters(function):
        found = inspect.signature(function).parameters.values()
        return [(str(p), p.kind) for p in found if p.name != "return_lse"]

    typed, *_ = typing.get_overloads(attn_tune.flash_attention)
    assert parameters(typed) == parameters(attn_tune.flash_attention)
