"""What makes the cases of one problem: its inputs, the high-precision answer and the plain one, compiled together."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from attn_tune.kernels.spec import Op, Outputs, Problem, load
from attn_tune.tuner.validate import Prepared

# XLA times the algorithms of every product of a new program. The reference runs a few times: any algorithm will do.
_NO_AUTOTUNING = {"xla_gpu_autotune_level": "0"}


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Compiled functions ``seed -> inputs`` and ``inputs -> outputs``, twice."""

    inputs: Callable[[Any], Any]
    reference: Callable[[Any], Outputs]
    baseline: Callable[[Any], Outputs]

    def make(self, seed: int) -> Prepared:
        """A case, on the default device."""
        import jax
        import numpy as np

        inputs = self.inputs(np.int32(seed))
        prepared = Prepared(
            inputs=inputs, reference=self.reference(inputs), baseline=self.baseline(inputs)
        )
        jax.block_until_ready((prepared.inputs, prepared.reference, prepared.baseline))
        return prepared


def compile_maker(op: Op, problem: Problem, direction: str) -> Maker:
    """Compiles without running anything: the device may be busy with a measurement."""
    import jax
    import numpy as np

    def answer(path: str) -> Callable[[Any], Outputs]:
        return lambda inputs: dict(load(path)(problem, direction, inputs))

    seed = jax.ShapeDtypeStruct((), np.int32)
    inputs = jax.jit(lambda seed: load(op.inputs)(problem, direction, seed)).lower(seed)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs.out_info)
    answers = [jax.jit(answer(path)).lower(shapes) for path in (op.reference, op.baseline)]
    options = _NO_AUTOTUNING if jax.default_backend() == "gpu" else None
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda x: x.compile(compiler_options=options), (inputs, *answers)))
    return Maker(inputs=made[0], reference=made[1], baseline=made[2])
