"""Device code of all kernels, read and not run: spellings that the oldest Triton does not compile."""

import ast
from pathlib import Path

import attn_tune.kernels


def zeros_of_attributes(source: str) -> list[int]:
    """The lines where ``tl.zeros`` is given a size that is an attribute."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    made = [call for call in calls if ast.unparse(call.func) == "tl.zeros"]
    return [c.lineno for c in made if c.args and any(isinstance(n, ast.Attribute) for n in ast.walk(c.args[0]))]


def test_zeros_whose_size_is_an_attribute_are_found():
    assert zeros_of_attributes("a = tl.zeros([n], tl.float32)\nb = tl.zeros([static.n, 2], tl.float32)") == [2]


def defaults_of_text(source: str) -> list[int]:
    """The lines where an argument that is a constexpr has a text as its default."""
    functions = [node.args for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    pairs = [
        (arg, default)
        for args in functions
        for arg, default in [
            *zip([*args.posonlyargs, *args.args][::-1], args.defaults[::-1], strict=False),
            *zip(args.kwonlyargs, args.kw_defaults, strict=True),
        ]
    ]
    return [
        arg.lineno
        for arg, default in pairs
        if arg.annotation and ast.unparse(arg.annotation).endswith("constexpr")
        if isinstance(default, ast.Constant) and isinstance(default.value, str)
    ]


def found_in_kernels(lines_of) -> dict[str, list[int]]:
    (root,) = attn_tune.kernels.__path__
    return {str(path): lines for path in Path(root).rglob("*.py") if (lines := lines_of(path.read_text()))}


def test_no_kernel_makes_zeros_whose_size_is_an_attribute():
    """Triton 3.6 takes an attribute of a constexpr in ``tl.full`` and refuses it in ``tl.zeros``."""
    assert found_in_kernels(zeros_of_attributes) == {}


def test_texts_that_are_defaults_of_constants_are_found():
    assert defaults_of_text("def f(a, b: tl.constexpr = 1, *, c: gl.constexpr = 'x'): pass\ndef g(d='x'): pass") == [1]
    assert defaults_of_text("def f(a, b: tl.constexpr = 'x'): pass") == [1]


def test_no_device_function_has_a_text_as_the_default_of_a_constant():
    """Triton 3.6 gives such a default to the function as it is, not as a constexpr, and fails."""
    assert found_in_kernels(defaults_of_text) == {}
