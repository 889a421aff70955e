"""Reads StableHLO into a ``Graph``: text, MLIR bytecode, and the portable artifact that ``jax.export`` makes."""

from collections.abc import Sequence
from typing import Any

from attn_tune.kernels.marker import find_mark
from attn_tune.schema.errors import UsageError
from attn_tune.tuner.sources.graph import ELEMENTWISE, Graph, Value, fits

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


def read_stablehlo(data: bytes, where: str) -> Graph:
    """The graph of a module.

    Raises:
      UsageError: ``data`` is not a module that this jaxlib can parse; ``where`` names it.
    """
    from jax.interpreters import mlir
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with mlir.make_ir_context() as context:
        context.allow_unregistered_dialects = True
        try:
            if data.startswith(BYTECODE) and b"StableHLO_v" in data[:64]:
                module = stablehlo.deserialize_portable_artifact(context, data)
            else:
                module = ir.Module.parse(
                    data if data.startswith(BYTECODE) else data.decode("utf-8")
                )
        except (ir.MLIRError, UnicodeDecodeError, ValueError) as error:
            first = str(error).strip().splitlines()[0]
            raise UsageError(
                f"{where}: not a StableHLO module that this jaxlib reads: {first}"
            ) from None
        return read_module(module)


def read_module(module: Any) -> Graph:
    """The graph of a parsed module, from its public ``main``."""
    reader = _Reader(module)
    main = reader.functions.get("main") or next(iter(reader.functions.values()), None)
    if main is None:
        raise UsageError("the module has no function")
    block = main.regions[0].blocks[0]
    reader.function(main, [reader.fresh(a.type) for a in block.arguments], 1)
    if reader.partitions > 1 and not reader.has_manual_shapes:
        reader.graph.remark(
            f"the program is for {reader.partitions} devices and XLA cuts it: shapes are those of the whole"
        )
    return reader.graph


class _Reader:
    def __init__(self, module: Any):
        from jaxlib.mlir import ir

        self.ir = ir
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

    def fresh(
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

    def function(self, operation: Any, inputs: list[Value], runs: int) -> list[Value]:
        return self.block(operation.regions[0].blocks[0], inputs, runs, {})

    def block(
        self, block: Any, inputs: Sequence[Value], runs: int, outer: dict[Any, Value]
    ) -> list[Value]:
        """Adds a block's operations; gives what its last one returns. Inner blocks see the values around them."""
        known = dict(outer)
        known.update(zip(block.arguments, inputs, strict=True))
        returned: list[Value] = []
        for item in block.operations:
            operation = item.operation
            operands = [known[o] for o in operation.operands]
            if operation.name.endswith(".return"):
                returned = operands
                continue
            results = self.operation(operation, operands, runs, known)
            known.update(zip(operation.results, results, strict=True))
        return returned

    def operation(
        self, op: Any, inputs: list[Value], runs: int, known: dict[Any, Value]
    ) -> list[Value]:
        dialect, _, name = op.name.partition(".")
        if name == "call":
            callee = self.ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            if find_mark(callee):
                return self.opaque(op, inputs, runs, "marker", name=callee)
            if callee in self.functions:
                return self.function(self.functions[callee], inputs, runs)
        elif name == "while":
            return self.loop(op, inputs, runs, known)
        elif name in ("case", "if"):
            for region in op.regions:
                self.block(region.blocks[0], (), runs, known)
        elif op.name == "sdy.manual_computation":
            self.has_manual_shapes = True
            block = op.regions[0].blocks[0]
            local = [
                v
                if self.fresh(a.type, runs=runs).shape == v.shape
                else self.fresh(a.type, runs=runs)
                for v, a in zip(inputs, block.arguments, strict=True)
            ]
            self.block(block, local, runs, known)
        elif name == "composite":
            callee = self.ir.FlatSymbolRefAttr(op.attributes["decomposition"]).value
            if callee in self.functions:
                return self.function(self.functions[callee], inputs, runs)
        elif name == "custom_call":
            return self.custom_call(op, inputs, runs)
        elif dialect == "sdy" and len(inputs) == len(op.results):
            return inputs
        if name == "optimization_barrier":
            return inputs
        if len(op.results) == 1:
            return [self.single(op, dialect, name, inputs, runs)]
        return self.opaque(op, inputs, runs)

    def opaque(
        self, op: Any, inputs: Sequence[Value], runs: int, kind: str = "other", **attributes: Any
    ) -> list[Value]:
        first = self.graph.add(kind, (), "opaque", inputs, runs=runs, **attributes)
        return [self.fresh(r.type, "other", (first,), runs) for r in op.results]

    def custom_call(self, op: Any, inputs: list[Value], runs: int) -> list[Value]:
        target = self.ir.StringAttr(op.attributes["call_target_name"]).value
        if target in ("Sharding", "annotate_device_placement") and len(inputs) == 1:
            return inputs
        if target == "SPMDFullToShardShape":
            self.has_manual_shapes = True
            return [self.fresh(op.results[0].type, runs=runs)]
        config = {
            key: str(op.attributes[key])
            for key in ("mhlo.backend_config", "backend_config", "mhlo.frontend_attributes")
            if key in op.attributes
        }
        shapes = tuple(self.fresh(r.type, "other").shape for r in op.results)
        return self.opaque(
            op, inputs, runs, "custom_call", name=target, config=config, results=shapes
        )

    def loop(self, op: Any, inputs: list[Value], runs: int, known: dict[Any, Value]) -> list[Value]:
        """A while. What its body hands on unchanged is the value outside; the rest is unknown inside."""
        body = op.regions[1].blocks[0]
        arguments = list(body.arguments)
        last = list(body.operations)[-1].operation
        kept = [
            result == argument for result, argument in zip(last.operands, arguments, strict=True)
        ]
        length = self.length(op, inputs)
        inside = [
            value if same else self.fresh(a.type, runs=runs * (length or 1))
            for value, same, a in zip(inputs, kept, arguments, strict=True)
        ]
        first = len(self.graph.values)
        self.block(body, inside, runs * (length or 1), known)
        if length is None and any(
            v.kind in ("dot", "marker", "custom_call") for v in self.graph.values[first:]
        ):
            self.graph.remark("a loop of unknown length is counted once")
        return self.opaque(op, inputs, runs)

    def length(self, op: Any, inputs: list[Value]) -> int | None:
        """How often a counting loop runs (``i < constant``, by ones, as JAX writes a scan); None for another."""
        block = op.regions[0].blocks[0]
        constants: dict[Any, int] = {}
        for item in block.operations:
            name = item.operation.name
            if (
                name == "stablehlo.constant"
                and (number := self.integer(item.operation)) is not None
            ):
                constants[item.operation.results[0]] = number
            elif name == "stablehlo.compare":
                counter, bound = item.operation.operands
                places = [i for i, a in enumerate(block.arguments) if a == counter]
                start = inputs[places[0]] if places else None
                if start is None or bound not in constants or start.kind != "constant":
                    return None
                if " LT" not in f" {item.operation.attributes['comparison_direction']}".replace(
                    "<", " "
                ):
                    return None
                return max(0, constants[bound] - int(start.attributes["value"]))
        return None

    def integer(self, op: Any) -> int | None:
        attribute = op.attributes["value"]
        if not isinstance(attribute, self.ir.DenseIntElementsAttr) or not attribute.is_splat:
            return None
        return int(self.ir.IntegerAttr(attribute.get_splat_value()).value)

    def single(self, op: Any, dialect: str, name: str, inputs: list[Value], runs: int) -> Value:
        from jaxlib.mlir.dialects import stablehlo

        ir, attributes, type_ = self.ir, op.attributes, op.results[0].type
        kind = _KINDS.get(name, name)

        def make(kind: str, inputs: Sequence[Value] = inputs, **values: Any) -> Value:
            return self.fresh(type_, kind, inputs, runs, **values)

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
            combine = {"stablehlo.maximum": "reduce_max", "stablehlo.add": "reduce_sum"}.get(
                inner[0]
            )
            if combine is None or len(inner) != 2:
                return make("other")
            return make(combine, inputs[:1], dims=axes("dimensions"))
        if name == "iota":
            return make("iota", (), dims=(ir.IntegerAttr(attributes["iota_dimension"]).value,))
        if name == "concatenate":
            return make("concatenate", dims=(ir.IntegerAttr(attributes["dimension"]).value,))
        if name == "slice":
            return make("slice", start=axes("start_indices"))
        if name == "constant":
            return make("constant", (), value=_constant(attributes["value"], ir))
        if name == "compare":
            word = stablehlo.ComparisonDirectionAttr(attributes["comparison_direction"]).value
            return make("compare", direction=word)
        shape = tuple(type_.shape) if isinstance(type_, ir.RankedTensorType) else ()
        if kind in ELEMENTWISE and all(fits(v.shape, shape) for v in inputs):
            return make(kind)
        return make("other")


def _constant(attribute: Any, ir: Any) -> Any:
    """A number, an array, or None where the printer left the value out."""
    import numpy as np

    if isinstance(attribute, ir.DenseElementsAttr):
        if attribute.is_splat:
            splat = attribute.get_splat_value()
            return getattr(splat, "value", None)
        try:
            return np.array(attribute)
        except (TypeError, ValueError, RuntimeError):
            # A dtype that buffers cannot carry, such as bfloat16: of no use for a mask.
            return None
    return None
