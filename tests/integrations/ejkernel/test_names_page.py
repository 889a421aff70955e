"""The tables of names of others: every call exists and takes what it names, and no name of ejkernel is missing."""

import functools
import inspect
import re
from pathlib import Path

import pytest

import attn_tune
import attn_tune.integrations.ejkernel as ours

PAGE = Path(__file__).resolve().parents[3] / "docs" / "names-of-others.md"
CODE = re.compile(r"`([^`]+)`")
CALL = re.compile(r"([\w.]+)\(([^)]*)\)")
NO_OP = ("not attention: no op", "none", "plain JAX")


def rows(table):
    """``(names, calls, rest)`` of each row."""
    text = PAGE.read_text(encoding="utf-8").split(f"<!-- table: {table} -->")[1].split("<!-- end table -->")[0]
    for line in text.strip().splitlines()[2:]:
        first, second, third = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:4])
        yield CODE.findall(first), second, third


ALL = [*rows("ejkernel"), *rows("others")]


def function(name):
    """The function of a call: public, or of an integration."""
    if name.startswith("integrations."):
        __import__("attn_tune." + name.rpartition(".")[0])
    return functools.reduce(getattr, name.split("."), attn_tune)


def calls(text):
    for code in CODE.findall(text):
        found = CALL.fullmatch(code)
        if found:
            yield found[1], [argument.strip() for argument in found[2].split(",")]


@pytest.mark.parametrize("row", ALL, ids=[" ".join(names) or second for names, second, _ in ALL])
def test_every_call_of_the_row_exists_and_takes_the_arguments_that_it_names(row):
    _, second, third = row
    assert second.startswith(NO_OP) or list(calls(second))
    for name, arguments in [*calls(second), *calls(third)]:
        parameters = inspect.signature(function(name)).parameters
        plain = [argument for argument in arguments if not argument.endswith("=")]
        assert plain == list(parameters)[: len(plain)], name
        named = {argument.removesuffix("=") for argument in arguments[len(plain) :]}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            assert named <= set(parameters), name


def test_every_function_of_this_package_is_a_row_and_every_row_with_a_call_is_a_function():
    names = {name for found, _, _ in rows("ejkernel") for name in found}
    assert set(ours.__all__) <= names
    for found, second, _ in rows("ejkernel"):
        if not second.startswith(("none", "not attention")) and found != ["apply_native_sparse_attention"]:
            assert set(found) & set(ours.__all__), found


def test_the_page_says_which_names_of_the_registry_are_no_attributes():
    (said,) = re.findall(
        r"Four names of its registry of kernels are not there: (.*?)\.", PAGE.read_text(encoding="utf-8")
    )
    rows_of_ours = [set(found) for found, _, _ in rows("ejkernel") if set(found) & set(ours.__all__)]
    assert set(CODE.findall(said)) == set().union(*rows_of_ours) - set(ours.__all__)


def test_the_example_of_the_page_runs():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names = {}
    exec(block, names)
    assert names["out"].shape == (3, 4, 16)


def test_the_table_has_every_name_of_ejkernel(monkeypatch, tmp_path):
    monkeypatch.setenv("EJKERNEL_PERSISTENT_CACHE_DIR", str(tmp_path))
    modules = pytest.importorskip("ejkernel.modules", reason="ejkernel is not installed")
    registry = pytest.importorskip("ejkernel.kernels").kernel_registry
    theirs = set(registry._registry) | {n for n in modules.__all__ if inspect.isfunction(getattr(modules, n))}
    names = {name for found, _, _ in rows("ejkernel") for name in found}
    assert theirs <= names
