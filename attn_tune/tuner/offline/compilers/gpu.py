"""Compile kernels for an absent NVIDIA GPU; of those in Triton: shared memory, registers and spills."""

from attn_tune.schema.trial import Status
from attn_tune.tuner.offline.compilers.protocol import Compiled
from attn_tune.tuner.protocol import ConfigRef


def compile_for_gpu(ref: ConfigRef, capability: int) -> Compiled:
    """Compile ``ref`` down to machine code for the compute capability.

    Raises:
      CompileError, OutOfResources: from the kernel's compiler. Every other error is the kernel's own.
    """
    from attn_tune.ops.registry import get_op
    from attn_tune.tuner.work.compile import lower_config
    from attn_tune.tuner.work.lowering_helper import abstract_inputs

    inputs = abstract_inputs(get_op(ref.signature.op).inputs, ref.runs_on, ref.direction)
    lowered = lower_config(ref, inputs, capability)
    return Compiled(status=Status.COMPILED, resources=lowered.resources, compile_ms=lowered.lower_ms)
