"""Problems that cuDNN's fused attention cannot do, known before anything is compiled."""

from attn_tune.kernels.lang.libraries.cudnn import cudnn_version, refuses_device
from attn_tune.kernels.lang.libraries.features import lacking
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

# Values and keys of unequal head dim (multi-head latent attention) came with 9.10.
_UNEQUAL_HEAD_DIMS = (9, 10, 0)


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that cuDNN cannot do this problem in the contract of the op, or None."""
    return (
        refuses_device(device, cudnn_version())
        or _of_shape(problem, device.compute_capability or 0)
        or lacking(problem, known=("mask", "bias", "segments", "dropout"))
        or _of_features(problem)
        or _of_bias(problem, direction)
        or _of_backward(problem, direction)
    )


def _of_shape(problem: Problem, capability: int) -> str | None:
    if problem.dtype == "float32":
        return "cuDNN's fused attention takes bfloat16 and float16 only"
    limit = 256 if capability >= 90 else 128
    for name, dim in (("head_dim", problem.head_dim), ("v_head_dim", problem.v_head_dim)):
        if dim % 8 or dim > limit:
            return f"{name}={dim} must be a multiple of 8 and at most {limit} on sm_{capability}"
    if problem.head_dim != problem.v_head_dim:
        if capability < 90:
            return f"head_dim != v_head_dim needs sm_90, this is sm_{capability}"
        if (cudnn_version() or (0, 0, 0)) < _UNEQUAL_HEAD_DIMS:
            return "head_dim != v_head_dim needs cuDNN 9.10"
    return None


def _of_features(problem: Problem) -> str | None:
    if problem.dropout_rate > 0:
        return "its dropout draws other random numbers than the op defines"
    if problem.has_segments and not problem.has_lengths:
        return "it has no segment ids; padding behind the keys it takes as lengths (MaskInfo.from_lengths)"
    if problem.has_lengths and (problem.bias_dims is not None or problem.window != (None, None)):
        return "its lengths come with a causal mask at most: with a bias or a window they were not proven"
    if problem.mask_dims is not None:
        return "a dense mask may hide whole rows, for which cuDNN leaves the output undefined"
    left, right = problem.bounds
    if (left, right) == (None, None) or _sees_everything(problem):
        return None
    if right != 0:
        return "its window needs a causal edge on the right"
    if problem.q_len != problem.kv_len:
        return "it aligns causal masks at the top left, which differs when query and key lengths do"
    return None


def _of_bias(problem: Problem, direction: str) -> str | None:
    if problem.bias_dims is None:
        return None
    if problem.bias_dims[2:] != "ts":
        return "its bias cannot broadcast along the lengths"
    if problem.q_len % 2 or problem.kv_len % 2:
        return "with a bias both lengths must be even"
    whole_heads = problem.bias_dims[1] == "n" or problem.num_q_heads == 1
    if direction == "bwd" and not (problem.bias_dims[0] == "1" and whole_heads):
        return "its bias gradient is for [1, N, T, S] only"
    return None


def _of_backward(problem: Problem, direction: str) -> str | None:
    if direction == "bwd" and problem.q_len == problem.kv_len == 1:
        return "it has no backward of one query and one key"
    return None


def _sees_everything(problem: Problem) -> bool:
    return problem.visible_pairs == problem.q_len * problem.kv_len
