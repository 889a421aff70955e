"""The walk of TPU kernels over the cache (``Op.walk``)."""

from attn_tune.ops.fields.cache_walk import make_walk

WALK = make_walk(lambda problem: problem.sequences)
