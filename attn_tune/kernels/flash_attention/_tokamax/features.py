"""Features that tokamax computes otherwise than the op asks, or not at all."""

from attn_tune.kernels.lang.libraries.features import lacking
from attn_tune.ops.flash_attention.problem import Problem


def refusal(problem: Problem) -> str | None:
    """The reason that neither of its kernels can do the problem, or None."""
    if problem.bias_dims is not None and problem.soft_cap is not None:
        return "it caps the logits after it adds the bias"
    return lacking(problem, known=("mask", "bias", "soft_cap"))
