"""Generic rooms know no op: no name of an op, of an output, or of an attention problem's field."""

import re
from pathlib import Path

import pytest

from attn_tune.ops.registry import op_names

PACKAGE = Path(__file__).parents[1] / "attn_tune"
ROOMS = ("schema", "packs", "devices", "runtime", "tuner", "db", "reports", "commands")
# A name of one word is of an op only where a signature begins with it.
OPS = tuple(name if "_" in name else f"{name}/v" for name in op_names())
OUTPUTS = ("dq", "dk", "dv", "dkv", "dbias", "dsinks", "dout", "lse", "dlse")
FIELDS = (
    "q_len", "kv_len", "num_q_heads", "num_kv_heads", "head_dim", "v_head_dim", "soft_cap",
    "has_sinks", "has_segments", "has_positions", "mask_dims", "bias_dims",
    "page_table", "kv_lens", "kv_dtype", "num_programs", "num_rows", "num_parts", "out_dtype",
    "mask_block_q", "mask_block_k", "block_dims", "block_mask",
    "num_selected", "block_size", "needs_lse", "block_q", "block_k", "block_kv", "head_dim_minor", "causal",
)  # fmt: skip
WORD = re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join((*OPS, *OUTPUTS, *FIELDS))})(?![A-Za-z0-9_])")


def words(path: Path) -> list[str]:
    return WORD.findall(path.read_text(encoding="utf-8"))


def counts() -> dict[str, int]:
    files = [path for room in ROOMS for path in (PACKAGE / room).rglob("*.py")]
    # The folders of ops and what they share are no generic room.
    files += (PACKAGE / "ops").glob("*.py")
    found = {path.relative_to(PACKAGE).as_posix(): len(words(path)) for path in files}
    return {name: count for name, count in sorted(found.items()) if count}


def test_generic_rooms_have_no_words_of_ops():
    assert not counts()


@pytest.mark.parametrize("text", ["op = 'flash_attention'", "problem.q_len", "('dq', 'dk')"])
def test_words_of_ops_are_seen(text, tmp_path):
    path = tmp_path / "generic.py"
    path.write_text(text)
    assert words(path)


def test_words_that_only_contain_such_a_word_are_not_meant(tmp_path):
    path = tmp_path / "generic.py"
    path.write_text("attn_tune, else, false, attention kernels")
    assert not words(path)
