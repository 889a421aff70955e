"""Which configs are JAX's own: what predictions are compared with."""

import pytest

from attn_tune.schema.blocks import has_default_blocks

PLAIN = {"block_q": 128, "block_kv": 128, "q_layout": "head_dim_minor", "vmem_limit_kib": 65536}


@pytest.mark.parametrize(
    ("config", "is_default"),
    [
        (PLAIN, True),
        (PLAIN | {"block_q": 256}, False),
        (PLAIN | {"q_layout": "seq_minor"}, False),
        ({"dq": PLAIN, "dkv": PLAIN}, True),
        ({"dq": PLAIN, "dkv": PLAIN | {"block_kv": 512}}, False),
        # How many sequences a step takes is no block of them.
        ({"block_q": 128, "block_b": 4}, True),
        ({"num_warps": 4}, False),
    ],
)
def test_all_blocks_and_layouts_of_all_parts_count(config, is_default):
    assert has_default_blocks(config) is is_default
