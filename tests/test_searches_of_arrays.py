"""Searches of sorted arrays are unrolled: XLA runs others as a loop, to each step of which a GPU's host has to go."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "attn_tune"


def test_no_search_of_a_sorted_array_is_a_loop_of_the_program():
    unrolled, loops = 0, []
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if "jnp.searchsorted" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "jnp.searchsorted":
                methods = [ast.unparse(word.value) for word in node.keywords if word.arg == "method"]
                unrolled += methods == ["'scan_unrolled'"]
                loops += [f"{path.name}:{node.lineno}"] * (methods != ["'scan_unrolled'"])
    assert not loops
    assert unrolled
