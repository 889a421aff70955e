"""Read a jaxpr into a ``Graph``: calls inlined, loops once, names shortened to those of StableHLO."""

from collections.abc import Sequence
from typing import Any

from attn_tune.ops.marker import find_mark
from attn_tune.ops.program_graph import ELEMENTWISE, Graph, Value, fits

_KINDS = {
    "add_any": "add", "convert_element_type": "convert", "cos": "cosine", "div": "divide",
    "eq": "compare", "ge": "compare", "gt": "compare", "integer_pow": "pow", "le": "compare",
    "lt": "compare", "mul": "multiply", "ne": "compare", "neg": "negate", "rem": "remainder",
    "reduce_precision": "copy", "sharding_constraint": "copy", "sin": "sine", "square": "pow",
    "stop_gradient": "copy", "sub": "subtract",
}  # fmt: skip
# One result for each operand, with its value.
_PASSING = frozenset((
    "copy_p", "mesh_cast", "name", "optimization_barrier", "pcast", "pvary", "reshard",
    "sharding_constraint",
))  # fmt: skip
_INNER = ("jaxpr", "call_jaxpr", "call", "fun_jaxpr")
_CALLS = frozenset((
    "checkpoint", "closed_call", "core_call", "core_closed_call", "custom_jvp_call",
    "custom_lin", "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_vmap_call", "jit", "pjit",
    "remat", "remat2", "xla_call",
))  # fmt: skip


def read_jaxpr(closed: Any) -> Graph:
    """Read a ``jax.extend.core.ClosedJaxpr``."""
    graph = Graph()
    reader = _Reader(graph)
    inputs = [reader.fresh(v.aval) for v in closed.jaxpr.invars]
    reader.run(closed, inputs, 1)
    return graph


class _Reader:
    def __init__(self, graph: Graph):
        self.graph = graph

    def fresh(
        self,
        aval: Any,
        kind: str = "parameter",
        inputs: Sequence[Value] = (),
        runs: int = 1,
        **attributes: Any,
    ) -> Value:
        shape = tuple(n if isinstance(n, int) else 1 for n in getattr(aval, "shape", ()))
        dtype = getattr(getattr(aval, "dtype", None), "name", "opaque")
        return self.graph.add(kind, shape, dtype, inputs, runs=runs, parts=_parts(aval), **attributes)

    def run(self, jaxpr: Any, inputs: Sequence[Value], runs: int) -> list[Value]:
        """Add the equations of an open or closed jaxpr and return its outputs."""
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        consts = getattr(jaxpr, "consts", ())
        known: dict[Any, Value] = {}
        for var, const in zip(inner.constvars, consts, strict=False):
            known[var] = self.fresh(var.aval, "constant", value=const)
        for var in inner.constvars[len(consts) :]:
            known[var] = self.fresh(var.aval)
        known.update(zip(inner.invars, inputs, strict=True))

        def read(atom: Any) -> Value:
            if hasattr(atom, "val"):
                return self.fresh(atom.aval, "constant", value=atom.val)
            return known[atom]

        for eqn in inner.eqns:
            outputs = self.equation(eqn, [read(a) for a in eqn.invars], runs)
            known.update(zip(eqn.outvars, outputs, strict=True))
        return [read(a) for a in inner.outvars]

    def equation(self, eqn: Any, inputs: list[Value], runs: int) -> list[Value]:
        name, params = eqn.primitive.name, eqn.params
        if name in _CALLS:
            mark = find_mark(str(params.get("name", "")))
            inner = next((params[key] for key in _INNER if hasattr(params.get(key), "eqns")), None)
            if mark is not None:
                return self.opaque(eqn, inputs, runs, "marker", name=params["name"])
            if inner is not None and len(_invars(inner)) == len(inputs):
                return self.run(inner, inputs, runs)
        elif name == "scan":
            return self.scan(eqn, inputs, runs)
        elif name == "while":
            return self.loop(eqn, inputs, runs)
        elif name == "cond":
            return self.branches(eqn, inputs, runs)
        elif name == "shard_map":
            inner = params["jaxpr"]
            # In here every shape is that of one device.
            local = [
                value if value.shape == var.aval.shape and value.parts is None else self.fresh(var.aval, runs=runs)
                for value, var in zip(inputs, _invars(inner), strict=True)
            ]
            self.run(inner, local, runs)
            return self.opaque(eqn, inputs, runs)
        if name in _PASSING and len(eqn.outvars) == len(inputs):
            return inputs
        if len(eqn.outvars) == 1:
            return [self.single(eqn, inputs, runs)]
        return self.opaque(eqn, inputs, runs)

    def opaque(
        self, eqn: Any, inputs: Sequence[Value], runs: int, kind: str = "other", **attributes: Any
    ) -> list[Value]:
        """One value of ``kind``, and its results."""
        first = self.graph.add(kind, (), "opaque", inputs, runs=runs, **attributes)
        return [self.fresh(v.aval, "other", (first,), runs) for v in eqn.outvars]

    def single(self, eqn: Any, inputs: list[Value], runs: int) -> Value:
        name, params = eqn.primitive.name, eqn.params
        aval = eqn.outvars[0].aval
        kind = _KINDS.get(name, name)

        def make(kind: str, inputs: Sequence[Value] = inputs, **attributes: Any) -> Value:
            return self.fresh(aval, kind, inputs, runs, **attributes)

        if name == "dot_general":
            contract, batch = params["dimension_numbers"]
            return make("dot", contract=_pairs(contract), batch=_pairs(batch))
        if name == "transpose":
            return make("transpose", dims=tuple(map(int, params["permutation"])))
        if name in ("reshape", "squeeze", "expand_dims"):
            return make("reshape", inputs[:1])
        if name == "broadcast_in_dim":
            return make("broadcast", inputs[:1], dims=tuple(map(int, params["broadcast_dimensions"])))
        if name in ("reduce_max", "reduce_sum"):
            return make(name, dims=tuple(map(int, params["axes"])))
        if name == "iota":
            return make("iota", (), dims=(int(params["dimension"]),))
        if name == "concatenate":
            return make("concatenate", dims=(int(params["dimension"]),))
        if name == "slice":
            return make("slice")
        if name == "split":
            return make("other")
        if name == "select_n":
            if len(inputs) != 3 or inputs[0].dtype != "bool":
                return make("other")
            which, off, on = inputs
            return make("select", (which, on, off))
        if kind == "compare":
            return make("compare", direction=name.upper())
        if name == "integer_pow":
            exponent = self.fresh(_Scalar(aval), "constant", value=params["y"])
            return make("pow", (*inputs, exponent))
        if name == "pallas_call":
            return make("custom_call", name=_pallas_name(params))
        if kind in ELEMENTWISE and all(fits(v.shape, tuple(aval.shape)) for v in inputs):
            return make(kind)
        return make("other")

    def scan(self, eqn: Any, inputs: list[Value], runs: int) -> list[Value]:
        """Read a scan. Values that it only reads are those outside; carried and sliced ones are unknown inside."""
        inner, length = eqn.params["jaxpr"], int(eqn.params["length"])
        wanted = _invars(inner)
        walked = 0
        for value, var in zip(reversed(inputs), reversed(wanted), strict=True):
            if value.shape != (length, *var.aval.shape):
                break
            walked += 1
        results = inner.jaxpr.outvars if hasattr(inner, "jaxpr") else inner.outvars
        carried = sum(
            tuple(out.aval.shape) == tuple(result.aval.shape) for out, result in zip(eqn.outvars, results, strict=True)
        )
        constants = max(0, len(inputs) - walked - carried)
        body = [
            value if i < constants else self.fresh(var.aval, runs=runs * length)
            for i, (value, var) in enumerate(zip(inputs, wanted, strict=True))
        ]
        self.run(inner, body, runs * length)
        return self.opaque(eqn, inputs, runs)

    def loop(self, eqn: Any, inputs: list[Value], runs: int) -> list[Value]:
        inner = eqn.params["body_jaxpr"]
        constants = eqn.params["body_nconsts"]
        before = eqn.params["cond_nconsts"]
        body = inputs[before : before + constants]
        body += [self.fresh(v.aval, runs=runs) for v in _invars(inner)[constants:]]
        first = len(self.graph.values)
        self.run(inner, body, runs)
        self.graph.remark_unknown_loop(first)
        return self.opaque(eqn, inputs, runs)

    def branches(self, eqn: Any, inputs: list[Value], runs: int) -> list[Value]:
        for branch in eqn.params["branches"]:
            self.run(branch, inputs[1:], runs)
        return self.opaque(eqn, inputs, runs)


class _Scalar:
    """A shapeless aval of another's dtype."""

    def __init__(self, aval: Any):
        self.shape, self.dtype = (), aval.dtype


def _invars(jaxpr: Any) -> list[Any]:
    return getattr(jaxpr, "jaxpr", jaxpr).invars


def _pairs(sides: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    left, right = sides
    return tuple(map(int, left)), tuple(map(int, right))


def _pallas_name(params: Any) -> str:
    info = params.get("name_and_src_info") or params.get("name") or "pallas_call"
    return f"pallas_call {getattr(info, 'name', info)}"


def _parts(aval: Any) -> tuple[int, ...] | None:
    """The number of shards along each axis, where shardings are part of types (explicit mesh axes)."""
    sharding = getattr(aval, "sharding", None)
    if sharding is None or not any(sharding.spec):
        return None
    own = sharding.shard_shape(aval.shape)
    return tuple(whole // part if part else 1 for whole, part in zip(aval.shape, own, strict=True))
