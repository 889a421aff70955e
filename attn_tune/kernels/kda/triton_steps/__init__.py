"""KDA token by token in Triton, for decoding: a state is read once and written once."""

from attn_tune.kernels.lang.triton.steps.spec import steps_spec

SPEC = steps_spec("kda")
