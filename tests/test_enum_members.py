"""Every member of an enum of the package has a sentence: one of its own, or a place in the docstring of the enum."""

import ast
from pathlib import Path

import attn_tune

PACKAGE = Path(attn_tune.__file__).parent
ENUMS = {"Enum", "Flag", "IntEnum", "IntFlag", "StrEnum"}


def undescribed(text):
    """``Class.MEMBER`` of the members without a sentence in a module's source."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef) or not ENUMS & {ast.unparse(b).rpartition(".")[2] for b in node.bases}:
            continue
        doc = ast.get_docstring(node) or ""
        for one, following in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(one, ast.Assign) or not isinstance(one.targets[0], ast.Name):
                continue
            is_described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            name = one.targets[0].id
            value = one.value.value if isinstance(one.value, ast.Constant) else name
            if not is_described and not any(word in doc for word in (f"``{value}``", f"``{name}``", f"{name}: ")):
                yield f"{node.name}.{name}"


def test_every_member_of_an_enum_has_a_sentence():
    found = {
        str(path.relative_to(PACKAGE)): names
        for path in sorted(PACKAGE.rglob("*.py"))
        if (names := list(undescribed(path.read_text(encoding="utf-8"))))
    }
    assert not found


def test_a_member_without_a_sentence_is_found():
    body = ['    """``x``."""', '    X = "x"', '    Y = "y"', '    Z = "z"', '    "Last."']
    assert list(undescribed("\n".join(["class A(enum.StrEnum):", *body]))) == ["A.Y"]
