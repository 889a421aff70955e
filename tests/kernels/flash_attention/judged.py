"""The rule of proof with the outputs of ``flash_attention``, in any direction."""

import dataclasses

from attn_tune.ops import tolerance
from attn_tune.ops.flash_attention.features import samples
from attn_tune.ops.flash_attention.op import OP

_BIASED = dataclasses.replace(samples()["plain"], bias_dims="bnts")
OUTPUTS = tuple(o for direction in OP.directions for o in OP.outputs(_BIASED, direction))


def compare(outputs, reference, baseline):
    return tolerance.compare(outputs, reference, baseline, OUTPUTS)
