"""Reasons why a library's kernel cannot take a problem, in the same words for each library."""

from attn_tune.kernels.lang.attention import Attention
from attn_tune.schema.device import Device


def lacking(problem: Attention, *, known: tuple[str, ...] = ()) -> str | None:
    """The first thing the problem asks for that a library has not; ``known`` are those of them that it has.

    Args:
      known: of ``mask``, ``bias``, ``soft_cap``.
    """
    asked = {
        "mask": ("it has no dense mask", problem.mask_dims is not None),
        "bias": ("it has no bias", problem.bias_dims is not None),
        "soft_cap": ("it has no tanh soft cap", problem.soft_cap is not None),
        "segments": (
            "it knows segment ids as a dense mask only, which takes O(T S) memory",
            problem.has_segments,
        ),
        "positions": ("it has no explicit positions", problem.has_positions),
        "dropout": (
            "its dropout takes a dense mask, and draws other random numbers than the op defines",
            problem.dropout_rate > 0,
        ),
        "logits": (
            f"its logits are float32, not {problem.logits_dtype}",
            problem.logits_dtype != "float32",
        ),
        # The running maximum is taken of logits that are not scaled yet.
        "scale": (f"scale={problem.scale!r} is not positive", problem.scale <= 0),
    }
    return next((reason for name, (reason, wanted) in asked.items() if wanted and name not in known), None)


def visible_bounds(problem: Attention) -> tuple[int | None, int | None]:
    """``Problem.bounds``, None where a bound hides nothing."""
    left, right = problem.bounds
    last = problem.kv_len - 1
    # The last row stands at position S - 1, the first at S - T.
    return (
        None if left is None or left >= last else left,
        None if right is None or problem.offset + right >= last else right,
    )


def not_on(device: Device, capabilities: tuple[int, int], what: str) -> str | None:
    """The reason that ``device`` is no NVIDIA GPU with a compute capability from the first to the second."""
    least, most = capabilities
    if device.platform != "cuda":
        return f"{what} runs on NVIDIA GPUs, not on {device.platform}"
    if not least <= (device.compute_capability or 0) <= most:
        wanted = f"sm_{least}" if least == most else f"sm_{least} to sm_{most}"
        return f"{what} is for {wanted}; {device} is {device.family}"
    return None
