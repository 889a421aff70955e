"""Two ops that are not attention, for tests of the call path: ``pair_sums``, a forward alone, and ``scale_rows``."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attn_tune.api.call import run
from attn_tune.api.declaration import Call
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.ops.contract import Op, Output, OutputKind
from attn_tune.schema.signature import Field, FieldKind, Signature
from tests.ops.known import more_kernels

FIELDS = tuple(Field(name=name, kind=FieldKind.SCALABLE, is_int=True) for name in ("rows", "columns"))
HERE = "tests.api.probe_ops"


@dataclass(frozen=True, kw_only=True)
class Config:
    block: int = 8


@dataclass(frozen=True, kw_only=True)
class Problem:
    op: str
    rows: int = 1
    columns: int = 1

    @property
    def signature(self):
        return Signature.build(self.op, 1, FIELDS, {"rows": self.rows, "columns": self.columns})

    @classmethod
    def from_signature(cls, signature):
        return cls(op=signature.op, **signature.values)

    def __post_init__(self):
        assert self.rows > 0


def outputs(problem, direction):
    if direction == "fwd":
        return (Output(name="out"),)
    return (
        Output(name="x_bar", kind=OutputKind.GRADIENT, of="x"),
        Output(name="slope", kind=OutputKind.GRADIENT, of="weight"),
    )


def op_and_kernel(name, directions):
    op = Op(
        name=name,
        version=1,
        directions=directions,
        fields=FIELDS,
        problem=Problem,
        outputs=outputs,
        flops=lambda problem, direction: 1,
        bytes_moved=lambda problem, direction: 1,
        inputs="",
        reference="",
        baseline=f"{HERE}:{name}_baseline",
        functions=(f"{HERE}:{name}",),
    )
    searches = {
        direction: Search(
            config=Config,
            heuristic=lambda problem, device: Config(),
            candidates={"": lambda problem, device: [Config()]},
            call=f"{HERE}:{name}_{direction}",
        )
        for direction in directions
    }
    kernel = KernelSpec(
        op=name,
        name="plain",
        backend="xla",
        searches=searches,
        unsupported=lambda problem, direction, device: None,
    )
    return op, kernel


# The op ``pair_sums``: ``sum(x * y)`` of each row. Its kernels have no gradient.
class Pair(NamedTuple):
    x: jax.Array
    y: jax.Array


PAIR_SUMS = Call(
    op="pair_sums",
    letters={"x": "rc", "y": "rc", "sums": "r"},
    main={"x": "left", "y": "right"},
    outputs=lambda problem, o: {"sums": jax.ShapeDtypeStruct(o.x.shape[:1], o.x.dtype)},
    with_shapes=lambda problem, o: replace(problem, rows=o.x.shape[0], columns=o.x.shape[1]),
    parallel=("r",),
)
PLAIN_PAIR_SUMS = replace(PAIR_SUMS, plain_derivative=True)
# With a scalar, the sum over all rows.
TOTAL = replace(
    PAIR_SUMS,
    letters={**PAIR_SUMS.letters, "total": ""},
    outputs=lambda problem, o: {"total": jax.ShapeDtypeStruct((), o.x.dtype)},
    sums=("total",),
)


def pair_sums(x, y, call=PAIR_SUMS, **how):
    """The sum of the products of each row of two arrays."""
    return run(call, Problem(op="pair_sums"), Pair(x, y), **how)["sums"]


def pair_total(x, y, call=TOTAL, **how):
    """The sum of the products of two arrays."""
    return run(call, Problem(op="pair_sums"), Pair(x, y), **how)["total"]


def pair_sums_fwd(problem, config, pair):
    LAUNCHES.append(("pair_sums", problem.rows, config.block))
    sums = jax.lax.stop_gradient(jnp.sum(pair.x * pair.y, axis=1))
    return {"sums": sums, "total": jnp.sum(sums)}


def pair_sums_baseline(problem, direction, pair):
    return {"sums": jnp.sum(pair.x * pair.y, axis=1)}


# The op ``scale_rows``: every row of ``x`` times ``weight``, which all rows share; both have gradients, under names
# that do not follow from those of the operands.
class Rows(NamedTuple):
    x: jax.Array
    weight: jax.Array


class RowsBackward(NamedTuple):
    operands: Rows
    dout: jax.Array


SCALE_ROWS = Call(
    op="scale_rows",
    letters={"x": "rc", "weight": "c", "out": "rc", "dout": "rc"},
    main={"x": "x"},
    outputs=lambda problem, o: {"out": jax.ShapeDtypeStruct(o.x.shape, o.x.dtype)},
    with_shapes=lambda problem, o: replace(problem, rows=o.x.shape[0], columns=o.x.shape[1]),
    parallel=("r",),
    gradients=("x", "weight"),
    backward_inputs=lambda o, residuals, cotangents: RowsBackward(o, cotangents["out"]),
)


def scale_rows(x, weight, call=SCALE_ROWS, **how):
    """Every row of ``x`` times ``weight``."""
    return run(call, Problem(op="scale_rows"), Rows(x, weight), **how)["out"]


def scale_rows_fwd(problem, config, o):
    LAUNCHES.append(("fwd", problem.rows, config.block))
    return {"out": o.x * o.weight}


def scale_rows_bwd(problem, config, inputs):
    LAUNCHES.append(("bwd", problem.rows, config.block))
    o, dout = inputs
    for part in PARTS:
        part(o.x, dout)
    return {"x_bar": dout * o.weight, "slope": jnp.sum(dout * o.x, axis=0)}


# Every trace of a kernel: its direction, the rows of its problem, the knob of its config.
LAUNCHES: list = []
# Calls of other ops that the backward of ``scale_rows`` is made of, by its operands and the cotangent.
PARTS: list = []
PROBES = (op_and_kernel("pair_sums", ("fwd",)), op_and_kernel("scale_rows", ("fwd", "bwd")))


def register(patch):
    """Put the ops into the registry for a while; ``patch`` is pytest's monkeypatch, or has its ``setattr``."""
    more_kernels(patch, *(kernel for _, kernel in PROBES), ops=[op for op, _ in PROBES])
