"""Each error that the page of questions and errors quotes is one of the code, or of JAX; the glossary's words."""

import ast
import re
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import attn_tune

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "faq.md").read_text()
HOLE = "…"
JAX_SAYS = "can't apply forward-mode autodiff (jvp) to a custom_vjp function."
QUOTED = [
    *re.findall(r"^### `(.*)`$", PAGE, re.MULTILINE),
    *re.findall(r"^\| `(.*?)` \| ", PAGE, re.MULTILINE),
]


@cache
def messages() -> str:
    """All texts in the code, a line each, with a hole for each value in them."""
    return "\n".join(text for path in (ROOT / "attn_tune").rglob("*.py") for text in texts(path.read_text()))


def texts(source: str):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else HOLE for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sr]", HOLE, node.value)


def is_said(quoted: str, said: str) -> bool:
    """Whether some message of ``said`` begins like ``quoted``; a hole of the quotation stands for any text."""
    pattern = ".*?".join(map(re.escape, quoted.split(HOLE)))
    return re.search(rf"^{pattern}", said, re.MULTILINE) is not None


@pytest.mark.parametrize("quoted", [one for one in QUOTED if one != JAX_SAYS])
def test_every_quoted_error_is_in_the_code(quoted):
    assert is_said(quoted, messages())


def test_the_errors_quoted_are_many_and_an_invented_one_is_found():
    assert len(QUOTED) > 30
    assert not is_said("the disk is fuller: …", messages())
    assert not is_said("… may not be shipped…; something was written: …", messages())


def test_jax_refuses_forward_mode_in_the_words_quoted():
    assert JAX_SAYS in QUOTED
    x = jnp.ones((1, 2, 1, 16))
    with pytest.raises(TypeError, match=re.escape(JAX_SAYS)):
        jax.jvp(lambda q: attn_tune.flash_attention(q, x, x), (x,), (x,))


def test_the_glossary_has_the_words_that_commands_print():
    page = (ROOT / "docs" / "glossary.md").read_text()
    words = {word for words in re.findall(r"^\| (.*?) \| ", page, re.MULTILINE) for word in words.split(", ")}
    shown = "case contract decision digest final gate grade grid guard miss neighbour pack part point proven regret"
    assert words >= {*shown.split(), "row", "round", "rung", "spool", "tie", "twin", "untuned config"}


def test_with_64_bits_floats_without_a_dtype_are_refused_and_integers_taken():
    with jax.enable_x64(True):
        q, ids = jnp.ones((1, 4, 1, 16)), jnp.ones((1, 4), int)
        assert ids.dtype == jnp.int64
        with pytest.raises(attn_tune.UsageError, match=r"query must have dtype .*, got float64"):
            attn_tune.flash_attention(q, q, q)
        q = q.astype(jnp.float32)
        assert attn_tune.flash_attention(q, q, q, q_segment_ids=ids).dtype == jnp.float32
