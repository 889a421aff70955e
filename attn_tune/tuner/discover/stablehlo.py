"""Read StableHLO into a ``Graph``: text, MLIR bytecode, and the portable artifact that ``jax.export`` makes."""

from collections.abc import Sequence
from typing import Any

from attn_tune.ops.marker import find_mark
from attn_tune.ops.program_graph import ELEMENTWISE, Graph, Value, fits
from attn_tune.schema.errors import UsageError

BYTECODE = b"ML\xefR"
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "i1": "bool"}
_KINDS = {
    "exponential": "exp",
    "exponential_minus_one": "expm1",
    "log_plus_one": "log1p",
    "maximum": "max",
    "minimum": "min",
    "power": "pow",
}
_REDUCTIONS = {"stablehlo.maximum": "reduce_max", "stablehlo.add": "reduce_sum"}
# Operations with one result for each operand, of the same value.
_PASSING = ("optimization_barrier",)


def read_stablehlo(data: bytes, where: str) -> Graph:
    """Read the bytes of a module.

    Raises:
      UsageError: ``data`` is not a module that this jaxlib can parse; ``where`` names it.
    """
    return ModuleReader(parse_module(data, where)).read()


def parse_module(data: bytes, where: str) -> Any:
    """Parse the bytes of a module into an ``ir.Module``.

    Raises:
      UsageError: as ``read_stablehlo``.
    """
    from jax.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = True
        try:
            if data.startswith(BYTECODE) and b"StableHLO_v" in data[:64]:
                return stablehlo.deserialize_portable_artifact(context, data)
            return ir.Module.parse(data if data.startswith(BYTECODE) else data.decode("utf-8"))
        except (ir.MLIRError, UnicodeDecodeError, ValueError) as error:
            # MLIR's first line has no reason.
            said = " ".join(str(error).split()).removeprefix("Unable to parse module assembly: ")
            raise UsageError(f"{where}: no HLO text, and no StableHLO module that this jaxlib reads: {said}") from None


def read_module(module: Any) -> Graph:
    """Read a parsed module, from its public ``main``."""
    return ModuleReader(module).read()


class ModuleReader:
    """Reads one ``ir.Module`` into a ``Graph``."""

    def __init__(self, module: Any):
        from jaxlib.mlir import ir

        self.ir = ir
        # What it holds dies with it.
        self.module = module
        self.graph = Graph()
        self.has_manual_shapes = False
        self.functions: dict[str, Any] = {}
        for item in module.body.operations:
            if item.operation.name == "func.func":
                self.functions[ir.StringAttr(item.attributes["sym_name"]).value] = item.operation
        attributes = module.operation.attributes
        self.partitions = 1
        if "mhlo.num_partitions" in attributes:
            self.partitions = ir.IntegerAttr(attributes["mhlo.num_partitions"]).value

    def read(self) -> Graph:
        """The graph of the whole program.

        Raises:
          UsageError: the module has no function.
        """
        main = self.functions.get("main") or next(iter(self.functions.values()), None)
        if main is None:
            raise UsageError("the module has no function")
        block = main.regions[0].blocks[0]
        self._function(main, [self._fresh(a.type) for a in block.arguments], 1)
        if self.partitions > 1 and not self.has_manual_shapes:
            self.graph.remark(
                f"the program is for {self.partitions} devices and XLA cuts it: shapes are those of the whole"
            )
        return self.graph

    def visit(self, op: Any, runs: int) -> None:
        """Hook for subclasses, called for each operation that is read."""

    def _fresh(
        self,
        type_: Any,
        kind: str = "parameter",
        inputs: Sequence[Value] = (),
        runs: int = 1,
        **attributes: Any,
    ) -> Value:
        shape, dtype = (), "opaque"
        if isinstance(type_, self.ir.RankedTensorType):
            shape = tuple(n if n > 0 else 1 for n in type_.shape)
            name = str(type_.element_type)
            dtype = _DTYPES.get(name, name)
        return self.graph.add(kind, shape, dtype, inputs, runs=runs, **attributes)

    def _function(self, operation: Any, inputs: list[Value], runs: int) -> list[Value]:
        return self._block(operation.regions[0].blocks[0], inputs, runs, {})

    def _block(self, block: Any, inputs: Sequence[Value], runs: int, outer: dict[Any, Value]) -> list[Value]:
        """Add a block's operations and return what its last one returns. Inner blocks see the values around them."""
        known = dict(outer)
        known.update(zip(block.arguments, inputs, strict=True))
        returned: list[Value] = []
        for item in block.operations:
            operation = item.operation
            operands = [known[o] for o in operation.operands]
            if operation.name.endswith(".return"):
                returned = operands
                continue
            self.visit(operation, runs)
            results = self._operation(operation, operands, runs, known)
            known.update(zip(operation.results, results, strict=True))
        return returned

    def _operation(self, op: Any, inputs: list[Value], runs: int, known: dict[Any, Value]) -> list[Value]:
        dialect, _, name = op.name.partition(".")
        if name in ("call", "composite"):
            key = "callee" if name == "call" else "decomposition"
            callee = self.ir.FlatSymbolRefAttr(op.attributes[key]).value
            if find_mark(callee):
                return self._opaque(op, inputs, runs, "marker", name=callee)
            if callee in self.functions:
                return self._function(self.functions[callee], inputs, runs)
        elif name == "fusion":
            return self._block(op.regions[0].blocks[0], inputs, runs, {})
        elif name == "while":
            return self._loop(op, inputs, runs, known)
        elif name in ("case", "if"):
            for region in op.regions:
                self._block(region.blocks[0], (), runs, known)
        elif op.name == "sdy.manual_computation":
            self.has_manual_shapes = True
            block = op.regions[0].blocks[0]
            local = [
                v if self._fresh(a.type, runs=runs).shape == v.shape else self._fresh(a.type, runs=runs)
                for v, a in zip(inputs, block.arguments, strict=True)
            ]
            self._block(block, local, runs, known)
        elif name == "custom_call":
            return self._custom_call(op, inputs, runs)
        elif (dialect == "sdy" or name in _PASSING) and len(inputs) == len(op.results):
            return inputs
        if len(op.results) == 1:
            return [self._single(op, name, inputs, runs)]
        return self._opaque(op, inputs, runs)

    def _opaque(
        self, op: Any, inputs: Sequence[Value], runs: int, kind: str = "other", **attributes: Any
    ) -> list[Value]:
        """One value of ``kind``, and a value for each result that reads it."""
        first = self.graph.add(kind, (), "opaque", inputs, runs=runs, **attributes)
        return [self._fresh(r.type, "other", (first,), runs) for r in op.results]

    def _custom_call(self, op: Any, inputs: list[Value], runs: int) -> list[Value]:
        target = self.ir.StringAttr(op.attributes["call_target_name"]).value
        if target in ("Sharding", "annotate_device_placement") and len(inputs) == 1:
            return inputs
        if target == "SPMDFullToShardShape":
            self.has_manual_shapes = True
            return [self._fresh(op.results[0].type, runs=runs)]
        config = {
            key: str(op.attributes[key])
            for key in ("mhlo.backend_config", "backend_config", "mhlo.frontend_attributes")
            if key in op.attributes
        }
        return self._opaque(op, inputs, runs, "custom_call", name=target, config=config)

    def _loop(self, op: Any, inputs: list[Value], runs: int, known: dict[Any, Value]) -> list[Value]:
        """Read a while. Values that its body hands on unchanged are those outside; the rest is unknown inside."""
        body = op.regions[1].blocks[0]
        arguments = list(body.arguments)
        last = list(body.operations)[-1].operation
        kept = [result == argument for result, argument in zip(last.operands, arguments, strict=True)]
        length = self._length(op, inputs, known)
        inside = [
            value if same else self._fresh(a.type, runs=runs * (length or 1))
            for value, same, a in zip(inputs, kept, arguments, strict=True)
        ]
        first = len(self.graph.values)
        self._block(body, inside, runs * (length or 1), known)
        if length is None:
            self.graph.remark_unknown_loop(first)
        return self._opaque(op, inputs, runs)

    def _length(self, op: Any, inputs: list[Value], known: dict[Any, Value]) -> int | None:
        """The length of a counting loop (``i < constant``, by ones, as JAX writes a scan); None for another."""
        # The condition is read with the values that the loop starts from, into a graph that is thrown away.
        graph, self.graph = self.graph, Graph()
        try:
            (test,) = self._block(op.regions[0].blocks[0], inputs, 1, known)
        finally:
            self.graph = graph
        if test.kind != "compare" or test.attributes["direction"] != "LT":
            return None
        start, bound = (_integer(value) for value in test.inputs)
        return None if start is None or bound is None else max(0, bound - start)

    def _single(self, op: Any, name: str, inputs: list[Value], runs: int) -> Value:
        from jaxlib.mlir.dialects import stablehlo

        ir, attributes, type_ = self.ir, op.attributes, op.results[0].type
        kind = _KINDS.get(name, name)

        def make(kind: str, inputs: Sequence[Value] = inputs, **values: Any) -> Value:
            return self._fresh(type_, kind, inputs, runs, **values)

        def axes(key: str) -> tuple[int, ...]:
            return tuple(ir.DenseI64ArrayAttr(attributes[key]))

        if name == "dot_general":
            d = stablehlo.DotDimensionNumbers(attributes["dot_dimension_numbers"])
            return make(
                "dot",
                contract=(tuple(d.lhs_contracting_dimensions), tuple(d.rhs_contracting_dimensions)),
                batch=(tuple(d.lhs_batching_dimensions), tuple(d.rhs_batching_dimensions)),
            )
        if name == "transpose":
            return make("transpose", dims=axes("permutation"))
        if name == "reshape":
            return make("reshape")
        if name == "broadcast_in_dim":
            return make("broadcast", dims=axes("broadcast_dimensions"))
        if name == "reduce":
            inner = [o.operation.name for o in op.regions[0].blocks[0].operations]
            combine = _REDUCTIONS.get(inner[0])
            if combine is None or len(inner) != 2:
                return make("other")
            return make(combine, inputs[:1], dims=axes("dimensions"))
        if name == "iota":
            return make("iota", (), dims=(ir.IntegerAttr(attributes["iota_dimension"]).value,))
        if name == "concatenate":
            return make("concatenate", dims=(ir.IntegerAttr(attributes["dimension"]).value,))
        if name == "slice":
            return make("slice")
        if name == "constant":
            return make("constant", (), value=_constant(attributes["value"], ir))
        if name == "compare":
            word = stablehlo.ComparisonDirectionAttr(attributes["comparison_direction"]).value
            return make("compare", direction=word)
        shape = tuple(type_.shape) if isinstance(type_, ir.RankedTensorType) else ()
        if kind in ELEMENTWISE and all(fits(v.shape, shape) for v in inputs):
            return make(kind)
        return make("other")


def _integer(value: Value) -> int | None:
    """The number that a constant scalar holds, also a copy of one."""
    while value.kind in ("convert", "copy"):
        value = value.inputs[0]
    number = value.attributes.get("value") if value.kind == "constant" else None
    return int(number) if isinstance(number, int) else None


def _constant(attribute: Any, ir: Any) -> Any:
    """A number, an array, or None where the printer left the value out."""
    import numpy as np

    if isinstance(attribute, ir.DenseElementsAttr):
        if attribute.is_splat:
            return getattr(attribute.get_splat_value(), "value", None)
        try:
            return np.array(attribute)
        except (TypeError, ValueError, RuntimeError):
            # A dtype that buffers cannot carry, such as bfloat16: of no use for a mask.
            return None
    return None
