"""The call path serves every op: no word in it belongs to one."""

import io
import re
import tokenize
from pathlib import Path

import pytest

import attn_tune.api

ROOM = Path(attn_tune.api.__file__).parent
PATH = [
    *(ROOM / f"{name}.py" for name in ("call", "declaration", "derivatives", "direction")),
    *(ROOM / f"{name}.py" for name in ("folding", "request")),
    *sorted((ROOM / "meshes").glob("*.py")),
]
# "mask", "query" and the like are arrays of attention; "key" and "value" are words of Python too.
WORDS = re.compile(
    r"attention|flash|heads?|lse|bias|sinks?|dropout|mask|quer(y|ies)|softmax|causal|window"
    r"|(q|kv)_\w+|\w+_heads|btnh|bskh|BTNH"
)


@pytest.mark.parametrize("path", PATH, ids=lambda path: path.stem)
def test_the_call_path_knows_no_word_of_attention(path):
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text()).readline)
    words = {word for token in tokens for word in re.findall(r"\w+", token.string)}
    assert {word for word in words if WORDS.fullmatch(word)} == set()
