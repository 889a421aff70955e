"""Device code as the oldest Triton takes it."""

import re
from pathlib import Path

import attn_tune.kernels

# Triton 3.6 fails on them: it gives a default of text to the function as it is, and other values as constants.
_DEFAULT_OF_TEXT = re.compile(r"\b(tl|gl)\.constexpr = [\"']")


def test_no_device_function_has_a_default_of_text():
    (folder,) = attn_tune.kernels.__path__
    texts = {path: path.read_text() for path in Path(folder).rglob("*.py")}
    assert sum("tl.constexpr" in text for text in texts.values()) > 30
    assert [str(path) for path, text in texts.items() if _DEFAULT_OF_TEXT.search(text)] == []
