"""An installed package in one file: an op of its own, with a kernel of its own."""

CODE = """
from dataclasses import dataclass

from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.ops.contract import Axis, Op, Output
from attn_tune.schema.signature import Field, FieldKind, Signature

FIELDS = (Field(name="t", kind=FieldKind.SCALABLE, is_int=True, doc="rows"),)


@dataclass(frozen=True)
class Problem:
    t: int

    @property
    def signature(self):
        return Signature.build("foreign", 1, FIELDS, {"t": self.t})

    @classmethod
    def from_signature(cls, signature):
        return cls(signature.values["t"])


@dataclass(frozen=True, kw_only=True)
class Config:
    halves: int = 1


def make_inputs(problem, direction, seed):
    import jax

    return {"x": jax.random.normal(jax.random.key(seed), (problem.t, 8))}


def reference(problem, direction, inputs):
    import jax.numpy as jnp

    return {"y": jnp.exp(inputs["x"])}


def call(problem, config, inputs):
    import jax.numpy as jnp

    return {"y": jnp.exp(inputs["x"] / config.halves) ** config.halves}


OP = Op(
    name="foreign",
    version=1,
    directions=("fwd",),
    fields=FIELDS,
    problem=Problem,
    outputs=lambda problem, direction: (Output(name="y"),),
    flops=lambda problem, direction: 8 * problem.t,
    bytes_moved=lambda problem, direction: 64 * problem.t,
    inputs="foreign_op:make_inputs",
    reference="foreign_op:reference",
    baseline="foreign_op:reference",
    features="foreign_op:features",
    axes=(Axis(field="t"),),
    summary="an op of another package",
)


def features(problem):
    return (Problem(1), Problem(7))


SPEC = KernelSpec(
    op="foreign",
    name="plain",
    backend="xla",
    searches={
        "fwd": Search(
            config=Config,
            heuristic=lambda problem, device: Config(),
            candidates={"": lambda problem, device: (Config(), Config(halves=2))},
            call="foreign_op:call",
        )
    },
    unsupported=lambda problem, direction, device: None,
)
"""
ENTRY_POINTS = """\
[attn_tune.ops]
foreign = foreign_op:OP

[attn_tune.kernels]
foreign.plain = foreign_op:SPEC
"""


def install(site, *, name="foreign", code=CODE, entry_points=ENTRY_POINTS):
    """Put the package into the folder ``site``."""
    (site / f"{name}_op.py").write_text(code)
    info = site / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(entry_points)
