"""Reads HLO text into a ``Graph``: what ``XLA_FLAGS=--xla_dump_to`` and ``as_text(dialect="hlo")`` write.

Before optimisation everything is there. After it products have merged axes, so that their sizes say little: then only
the names that our ops leave and cuDNN's calls are read.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from attn_tune.kernels.marker import find_mark, mark_name
from attn_tune.schema.errors import UsageError
from attn_tune.tuner.sources.graph import ELEMENTWISE, Graph, Value, fits
from attn_tune.tuner.sources.hlo_text import Computation, Instruction, Module, Type, parse_module

_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "pred": "bool"}
_KINDS = {
    "exponential": "exp",
    "exponential-minus-one": "expm1",
    "is-finite": "is_finite",
    "log-plus-one": "log1p",
    "maximum": "max",
    "minimum": "min",
    "power": "pow",
    "round-nearest-even": "round",
}
_REDUCTIONS = {"maximum": "reduce_max", "add": "reduce_sum"}

# What an instruction makes: one value, or those of a tuple.
type Made = Value | list[Any]


def is_hlo(data: bytes) -> bool:
    """Whether ``data`` is HLO text."""
    return data.lstrip()[:9] == b"HloModule"


def read_hlo(text: str, where: str) -> Graph:
    """The graph of a module.

    Raises:
      UsageError: ``text`` has no entry computation; ``where`` names it.
    """
    module = parse_module(text)
    if module is None:
        raise UsageError(f"{where}: HLO text without an ENTRY computation")
    reader = _Reader(module)
    entry = module.computations[module.entry]
    reader.run(entry, [reader.fresh(i.type) for i in _parameters(entry)], 1)
    optimised = any(
        i.opcode == "fusion" for c in module.computations.values() for i in c.instructions
    )
    if optimised:
        reader.keep_names_only()
    elif (parts := re.search(r"num_partitions=(\d+)", module.header)) and not reader.is_manual:
        reader.graph.remark(
            f"the program is for {parts[1]} devices and XLA cuts it: shapes are those of the whole"
        )
    return reader.graph


class _Reader:
    def __init__(self, module: Module):
        self.module = module
        self.graph = Graph()
        self.is_manual = False
        # Marks by the path in front of them: after optimisation a call is only in its instructions' names.
        self.names: dict[tuple[str, str], int] = {}
        self.has_other_products = False

    def fresh(
        self,
        type_: Type,
        kind: str = "parameter",
        inputs: Sequence[Value] = (),
        runs: int = 1,
        **attributes: Any,
    ) -> Made:
        if type_.parts is not None:
            return [self.fresh(part, kind, inputs, runs) for part in type_.parts]
        dtype = _DTYPES.get(type_.dtype, type_.dtype)
        return self.graph.add(kind, type_.shape, dtype, inputs, runs=runs, **attributes)

    def run(self, computation: Computation, inputs: Sequence[Made], runs: int) -> Made:
        """Adds the instructions; gives what the root makes."""
        known: dict[str, Made] = {}
        for instruction in computation.instructions:
            if instruction.opcode == "parameter":
                known[instruction.name] = inputs[int(instruction.operands[0])]
            else:
                known[instruction.name] = self.instruction(instruction, known, runs)
        root = computation.root or computation.instructions[-1].name
        return known[root]

    def instruction(self, i: Instruction, known: dict[str, Made], runs: int) -> Made:
        name = i.word("op_name")
        mark = find_mark(name)
        # Instructions that the partitioner adds around the shards' launches are no launches.
        if mark is not None and not mark.is_cut and i.opcode != "call":
            place = name[: name.find("attn_tune.")], f"{mark.signature} {mark.direction}"
            self.names[place] = max(runs, self.names.get(place, 0))
        elif mark is None and i.opcode == "dot" and i.numbers("lhs_batch_dims"):
            self.has_other_products = True
        operands = [] if i.opcode == "constant" else [_element(o, known) for o in i.operands]
        flat = [v for o in operands for v in _flat(o)]
        if i.opcode == "tuple":
            return operands
        if i.opcode == "get-tuple-element":
            return operands[0][int(i.word("index"))]  # type: ignore[index]
        if i.opcode in ("opt-barrier", "optimization-barrier"):
            return operands[0]
        if i.opcode in ("call", "fusion"):
            callee = i.word("to_apply") or i.word("calls")
            if find_mark(callee) or (find_mark(name) and i.opcode == "call"):
                mark_text = callee if find_mark(callee) else name
                return self.opaque(i, flat, runs, "marker", name=mark_text)
            return self.run(self.module.computations[callee], operands, runs)
        if i.opcode == "while":
            return self.loop(i, operands[0], runs)
        if i.opcode == "conditional":
            return self.branches(i, operands, runs)
        if i.opcode == "custom-call":
            return self.custom_call(i, flat, runs)
        if i.type.parts is not None:
            return self.opaque(i, flat, runs)
        return self.single(i, flat, runs)

    def opaque(
        self,
        i: Instruction,
        inputs: Sequence[Value],
        runs: int,
        kind: str = "other",
        **attributes: Any,
    ) -> Made:
        first = self.graph.add(kind, (), "opaque", inputs, runs=runs, **attributes)
        return self.fresh(i.type, "other", (first,), runs)

    def custom_call(self, i: Instruction, inputs: list[Value], runs: int) -> Made:
        target = i.word("custom_call_target")
        if target == "Sharding" and len(inputs) == 1:
            return inputs[0]
        if target == "SPMDFullToShardShape":
            self.is_manual = True
            return self.fresh(i.type, runs=runs)
        start = i.rest.find("backend_config=")
        config = i.rest[start:] if start >= 0 else ""
        return self.opaque(
            i, inputs, runs, "custom_call", name=target, config={"backend_config": config}
        )

    def loop(self, i: Instruction, carried: Made, runs: int) -> Made:
        """A while. What its body hands on unchanged is the value outside; the rest is unknown inside."""
        body = self.module.computations[i.word("body")]
        values = carried if isinstance(carried, list) else [carried]
        kept = _kept(body)
        length = self.length(i, values)
        fresh = self.fresh(i.type, runs=runs * (length or 1))
        inside = fresh if isinstance(fresh, list) else [fresh]
        inside = [values[n] if n in kept else value for n, value in enumerate(inside)]
        first = len(self.graph.values)
        self.run(body, [inside if isinstance(carried, list) else inside[0]], runs * (length or 1))
        if length is None and any(
            v.kind in ("dot", "marker", "custom_call") for v in self.graph.values[first:]
        ):
            self.graph.remark("a loop of unknown length is counted once")
        return self.opaque(i, [v for c in values for v in _flat(c)], runs)

    def length(self, i: Instruction, values: Sequence[Made]) -> int | None:
        """The loop's length as XLA found it, or as ``i < constant`` says it."""
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', i.rest):
            return int(known[1])
        condition = self.module.computations[i.word("condition")]
        compare = condition.instruction(condition.root or condition.instructions[-1].name)
        if compare is None or compare.opcode != "compare" or compare.word("direction") != "LT":
            return None
        place = _parameter_element(condition, compare.operands[0])
        bound = condition.instruction(compare.operands[1].partition("#")[0])
        start = values[place] if place is not None and place < len(values) else None
        if bound is None or bound.opcode != "constant" or not isinstance(start, Value):
            return None
        first = start.attributes.get("value")
        return None if first is None else max(0, int(bound.operands[0]) - int(first))

    def branches(self, i: Instruction, operands: list[Made], runs: int) -> Made:
        match = re.search(r"branch_computations=\{([^}]*)\}", i.rest)
        names = (
            match[1].split(",")
            if match
            else [i.word("true_computation"), i.word("false_computation")]
        )
        for name, operand in zip(names, operands[1:], strict=False):
            self.run(self.module.computations[name.strip().lstrip("%")], [operand], runs)
        return self.opaque(i, [v for o in operands for v in _flat(o)], runs)

    def single(self, i: Instruction, inputs: list[Value], runs: int) -> Made:
        kind = _KINDS.get(i.opcode, i.opcode)

        def make(kind: str, inputs: Sequence[Value] = inputs, **attributes: Any) -> Made:
            return self.fresh(i.type, kind, inputs, runs, **attributes)

        if kind == "dot":
            return make(
                "dot",
                contract=(i.numbers("lhs_contracting_dims"), i.numbers("rhs_contracting_dims")),
                batch=(i.numbers("lhs_batch_dims"), i.numbers("rhs_batch_dims")),
            )
        if kind in ("transpose", "broadcast"):
            return make(kind, dims=i.numbers("dimensions"))
        if kind == "reshape":
            return make("reshape")
        if kind == "reduce":
            combine = self.module.computations[i.word("to_apply")]
            root = combine.instruction(combine.root or combine.instructions[-1].name)
            known = _REDUCTIONS.get(root.opcode if root else "")
            return make(known, inputs[:1], dims=i.numbers("dimensions")) if known else make("other")
        if kind == "iota":
            return make("iota", (), dims=(int(i.word("iota_dimension") or 0),))
        if kind == "concatenate":
            return make("concatenate", dims=i.numbers("dimensions"))
        if kind == "slice":
            return make("slice")
        if kind == "constant":
            return make("constant", (), value=_literal(i.operands[0], i.type.shape))
        if kind == "compare":
            return make("compare", direction=i.word("direction"))
        if kind in ELEMENTWISE and all(fits(v.shape, i.type.shape) for v in inputs):
            return make(kind)
        return make("other")

    def keep_names_only(self) -> None:
        """Of an optimised program: our names, once a place, and custom calls."""
        calls = [v for v in self.graph.values if v.kind == "custom_call"]
        marks = [v for v in self.graph.values if v.kind == "marker"]
        self.graph.values = marks + calls
        for (_, text), runs in self.names.items():
            signature, _, direction = text.rpartition(" ")
            self.graph.add("marker", (), "opaque", runs=runs, name=mark_name(signature, direction))
        if self.names:
            self.graph.remark(
                "an optimised program: equal calls made at one place are counted once"
            )
        if self.has_other_products:
            self.graph.remark(
                "an optimised program: attention that is written out is not read, its axes are merged; "
                "use the dump from before_optimizations"
            )


def _parameters(computation: Computation) -> list[Instruction]:
    found = [i for i in computation.instructions if i.opcode == "parameter"]
    return sorted(found, key=lambda i: int(i.operands[0]))


def _element(name: str, known: dict[str, Made]) -> Made:
    base, _, index = name.partition("#")
    made = known[base]
    return made[int(index)] if index else made  # type: ignore[index]


def _flat(made: Made) -> list[Value]:
    return [v for part in made for v in _flat(part)] if isinstance(made, list) else [made]


def _parameter_element(computation: Computation, name: str) -> int | None:
    """Which element of the one parameter ``name`` is."""
    base, _, index = name.partition("#")
    found = computation.instruction(base)
    if found is None:
        return None
    if found.opcode == "parameter":
        return int(index) if index else None
    if found.opcode == "copy":
        return _parameter_element(computation, found.operands[0])
    if found.opcode != "get-tuple-element":
        return None
    inner = computation.instruction(found.operands[0])
    return int(found.word("index")) if inner is not None and inner.opcode == "parameter" else None


def _kept(body: Computation) -> set[int]:
    """The elements of its tuple that a loop's body hands on unchanged."""
    root = body.instruction(body.root or body.instructions[-1].name)
    if root is None or root.opcode != "tuple":
        return set()
    return {n for n, name in enumerate(root.operands) if _parameter_element(body, name) == n}


def _literal(text: str, shape: tuple[int, ...]) -> Any:
    """The number or the array; None where the dump left elements out."""
    if not shape:
        return _number(text)
    if "..." in text:
        return None
    import numpy as np

    numbers = [_number(word) for word in re.findall(r"[^\s{},]+", text)]
    if len(numbers) != math.prod(shape) or None in numbers:
        return None
    return np.array(numbers).reshape(shape)


def _number(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text) if re.search(r"[.enai]", text) else int(text)
    except ValueError:
        return None
