"""Recorded searches as text: what is read is what was written, knobs that a config leaves out among it."""

import pytest
from searches import read_searches, write_searches

from attn_tune.ops.registry import get_op
from attn_tune.schema.config import config_digest
from attn_tune.tuner.plan.replay import RecordedCase

OP = get_op("flash_attention")
SIGNATURE = OP.parse_signature("flash_attention/v1 b=1 t=64 s=64 n=2 k=2 h=64 v=64 dtype=bfloat16 causal=1")
PLAIN, CAPPED, FAILED = (
    {"block_q": 64, "num_warps": 4},
    {"block_q": 64, "num_warps": 4, "max_registers": 128},
    {"block_q": 128, "num_warps": 4},
)


@pytest.mark.parametrize("order", [(PLAIN, CAPPED, FAILED), (CAPPED, PLAIN, FAILED)])
def test_a_knob_that_only_some_configs_have_is_kept(order, tmp_path):
    case = RecordedCase(
        kernel="flash_attention/triton",
        direction="fwd",
        part="",
        signature=SIGNATURE,
        candidates=order,
        times={config_digest(PLAIN): 2000.0, config_digest(CAPPED): 1000.0},
        fields=OP.fields,
    )
    path = tmp_path / "searches.jsonl"
    write_searches([case], path)
    assert read_searches(path) == [case]
