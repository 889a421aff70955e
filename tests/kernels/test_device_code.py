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


def test_no_kernel_makes_zeros_whose_size_is_an_attribute():
    """Triton 3.6 takes an attribute of a constexpr in ``tl.full`` and refuses it in ``tl.zeros``."""
    (root,) = attn_tune.kernels.__path__
    found = {str(path): lines for path in Path(root).rglob("*.py") if (lines := zeros_of_attributes(path.read_text()))}
    assert found == {}
