"""`CaseFunctions`: compiled functions that make the prepared cases of one problem: inputs, reference and baseline."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from attn_tune.ops.contract import Op, Output, Outputs, load
from attn_tune.schema.errors import UsageError
from attn_tune.tuner.work.in_place import leaf_places
from attn_tune.tuner.work.mesh import input_shardings, mesh_for
from attn_tune.tuner.work.validate import Prepared, compile_judgement

# XLA times the algorithms of every product of a new program. The reference runs a few times: any algorithm will do.
_NO_AUTOTUNING = {"xla_gpu_autotune_level": "0"}


@dataclass(frozen=True, kw_only=True)
class CaseFunctions:
    """Compiled functions of one problem and direction.

    Attributes:
      op, problem, direction: the case.
      inputs: ``seed -> inputs``.
      reference: ``inputs -> outputs`` in high precision.
      baseline: ``inputs -> outputs`` in the working dtype.
      shapes: those of the inputs, the reference's outputs and the baseline's.
    """

    op: Op
    problem: Any
    direction: str
    inputs: Callable[[Any], Any]
    reference: Callable[[Any], Outputs]
    baseline: Callable[[Any], Outputs]
    shapes: tuple[Any, Mapping[str, Any], Mapping[str, Any]]

    def compile_judgement(self) -> None:
        """Compile what judges the outputs of a kernel, so that it is there when they are. Nothing is run."""
        inputs, reference, baseline = self.shapes
        declared = self.op.outputs(self.problem, self.direction)
        compile_judgement(reference, baseline, declared, _originals(declared, inputs))

    def make(self, seed: int) -> Prepared:
        """A case, on the default device or on the problem's mesh.

        Raises:
          UsageError: the op's reference or baseline lacks an output that the op declares.
        """
        import jax
        import numpy as np

        outputs = self.op.outputs(self.problem, self.direction)
        with mesh_for(self.op, self.problem):
            inputs = self.inputs(np.int32(seed))
            reference, baseline = self.reference(inputs), self.baseline(inputs)
        for output in outputs:
            for what, answers in (("reference", reference), ("baseline", baseline)):
                if output.name not in answers:
                    raise UsageError(f"the {what} of {self.op.name} has no output {output.name!r}")
        prepared = Prepared(
            inputs=inputs,
            reference=reference,
            baseline=baseline,
            outputs=outputs,
            originals=_originals(outputs, inputs),
        )
        jax.block_until_ready((prepared.inputs, prepared.reference, prepared.baseline))
        return prepared


def _originals(outputs: Iterable[Output], inputs: Any) -> dict[str, Any]:
    """By output, the operand that it takes over, of ``inputs`` or their shapes."""
    import jax

    updated = {output.name: output.updates for output in outputs if output.updates}
    places, leaves = leaf_places(inputs, updated.values()), jax.tree.leaves(inputs)
    return {name: leaves[places[operand]] for name, operand in updated.items()}


def compile_case_functions(op: Op, problem: Any, direction: str) -> CaseFunctions:
    """Compile without running anything: the device may be busy with a measurement."""
    import jax
    import numpy as np

    def answer(path: str) -> Callable[[Any], Outputs]:
        return lambda inputs: dict(load(path)(problem, direction, inputs))

    def make(seed: Any) -> Any:
        return load(op.inputs)(problem, direction, seed)

    seed = jax.ShapeDtypeStruct((), np.int32)
    options = _NO_AUTOTUNING if jax.default_backend() == "gpu" else None
    with mesh_for(op, problem) as mesh:
        layout = {}
        if mesh is not None:
            shapes = jax.eval_shape(make, seed)
            layout = {"out_shardings": input_shardings(op, problem, direction, mesh, shapes)}
        inputs = jax.jit(make, **layout).lower(seed)
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), inputs.out_info)
        if layout:
            shapes = jax.tree.map(
                lambda x, at: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=at),
                shapes,
                layout["out_shardings"],
            )
        answers = [jax.jit(answer(path)).lower(shapes) for path in (op.reference, op.baseline)]
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda x: x.compile(compiler_options=options), (inputs, *answers)))
    return CaseFunctions(
        op=op,
        problem=problem,
        direction=direction,
        inputs=made[0],
        reference=made[1],
        baseline=made[2],
        shapes=(shapes, _shapes(answers[0].out_info), _shapes(answers[1].out_info)),
    )


def _shapes(infos: Mapping[str, Any]) -> dict[str, Any]:
    import jax

    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in infos.items()}
