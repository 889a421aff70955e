"""Lower the calls of pack rows to programs, on any machine: the evidence that a source change left them alone."""

from collections.abc import Mapping
from typing import Any

from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.contract import load
from attn_tune.ops.registry import get_op
from attn_tune.schema.config import config_from_dict


def program_of(question: Mapping[str, Any]) -> dict[str, Any]:
    """Lower one call.

    Args:
      question: ``op``, ``kernel``, ``direction``, ``signature`` and ``config`` of a row; ``target``, the TPU's name, or
        ``""``; ``capability``, the GPU's compute capability, or None.

    Returns:
      ``source``, the digest of the kernel's source; ``made``, the compiled launches of a Triton kernel (kernels, grids
      and machine code), or else the text of the lowered StableHLO; or ``failed``, the reason why there is neither.
    """
    try:
        return _lowered(question)
    except Exception as error:  # a row that this checkout cannot lower is not proven, for any reason
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


def _lowered(question: Mapping[str, Any]) -> dict[str, Any]:
    import jax

    # Where a line stood is no part of the program.
    jax.config.update("jax_traceback_in_locations_limit", 0)
    op = get_op(question["op"])
    spec = get_kernel(f"{question['op']}/{question['kernel']}")
    direction = question["direction"]
    search = spec.searches[direction]
    config = config_from_dict(search.config, question["config"])
    problem = op.from_signature(op.parse_signature(question["signature"]))
    inputs = jax.eval_shape(lambda: load(op.inputs)(problem, direction, 0))
    call = jax.jit(lambda arrays: load(search.call)(problem, config, arrays))
    source = {"source": spec.source_hash}
    if question["target"]:
        from attn_tune.tuner.offline.compilers.tpu import seeming, target_device
        from attn_tune.tuner.offline.target import find_target

        with seeming(target_device(find_target(question["target"]).topology)):
            lowered = call.trace(inputs).lower(lowering_platforms=("tpu",))
        return source | {"made": [lowered.as_text()]}

    from attn_tune.kernels.lang.triton.compile import record_compiles
    from attn_tune.kernels.lang.triton.target import compile_target

    with compile_target(question["capability"]), record_compiles() as done:
        lowered = call.trace(inputs).lower(lowering_platforms=("cuda",))
    return source | {"made": done.launches if spec.backend == "triton" else [lowered.as_text()]}
