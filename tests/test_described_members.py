"""Members of enums and fields of records are described, by a sentence of their own or in the docstring of the class."""

import ast
import re
from pathlib import Path

import attn_tune

PACKAGE = Path(attn_tune.__file__).parent
ENUMS = {"Enum", "Flag", "IntEnum", "IntFlag", "StrEnum"}


def classes(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            yield node, {ast.unparse(base).rpartition(".")[2] for base in node.bases}, ast.get_docstring(node) or ""


def undescribed_members(text):
    """``Class.MEMBER`` of the members of enums without a sentence in a module's source."""
    for node, bases, doc in classes(text):
        if not bases & ENUMS:
            continue
        for one, following in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(one, ast.Assign) or not isinstance(one.targets[0], ast.Name):
                continue
            name = one.targets[0].id
            is_described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            value = one.value.value if isinstance(one.value, ast.Constant) else name
            if not is_described and not any(word in doc for word in (f"``{value}``", f"``{name}``", f"{name}: ")):
                yield f"{node.name}.{name}"


def undescribed_fields(text):
    """``Class.field`` of the fields of public records whose docstring does not have the field's name.

    A group of options is described by the help of its options.
    """
    for node, bases, doc in classes(text):
        is_record = "NamedTuple" in bases or any("dataclass" in ast.unparse(one) for one in node.decorator_list)
        if not is_record or node.name.startswith("_") or "The help of an option describes its field" in doc:
            continue
        for one in node.body:
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                name = one.target.id
                if ast.unparse(one.annotation).startswith("ClassVar"):
                    continue
                if not name.startswith("_") and not re.search(rf"\b{name}\b", doc):
                    yield f"{node.name}.{name}"


def found_by(find, paths):
    return [name for path in paths for name in find(path.read_text(encoding="utf-8"))]


def test_every_member_of_an_enum_has_a_sentence():
    assert not found_by(undescribed_members, sorted(PACKAGE.rglob("*.py")))


def test_every_field_of_a_record_is_named_in_its_docstring():
    paths = sorted(path for path in PACKAGE.rglob("*.py") if PACKAGE / "kernels" not in path.parents)
    assert not found_by(undescribed_fields, paths)


def test_a_member_without_a_sentence_is_found():
    body = ['    """``x``."""', '    X = "x"', '    Y = "y"', '    Z = "z"', '    "Last."']
    assert list(undescribed_members("\n".join(["class A(enum.StrEnum):", *body]))) == ["A.Y"]


def test_a_field_without_a_name_in_the_docstring_is_found():
    body = ['    """Some ``x``."""', "    x: int", "    y: int = 0", "    _z: int = 0", "    K: ClassVar[int] = 1"]
    assert list(undescribed_fields("\n".join(["@dataclass(frozen=True)", "class A:", *body]))) == ["A.y"]
