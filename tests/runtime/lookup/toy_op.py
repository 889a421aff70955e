"""A toy op with three kernels, and packs of its rows."""

import dataclasses
from dataclasses import dataclass

from attn_tune.devices.environments import current_environment
from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.ops.contract import Op, Output
from attn_tune.packs.reader import pack_from_files
from attn_tune.schema import Signature
from tests.runtime.packbuilder import FIELDS, OP, pack_files


@dataclass(frozen=True, kw_only=True)
class Config:
    block: int = 8


@dataclass(frozen=True, kw_only=True)
class OtherConfig:
    block: int = 4


def kernel(name, config=Config, directions=("fwd", "bwd"), **more):
    search = Search(
        config=config,
        heuristic=lambda problem, device: config(),
        candidates={"": lambda problem, device: [config()]},
        infeasible=lambda problem, device, c: f"block {c.block} does not fit" if c.block > 1000 else None,
        call=f"{__name__}:kernel",
    )
    return KernelSpec(
        op=OP,
        name=name,
        backend="xla",
        searches=dict.fromkeys(directions, search),
        **{"unsupported": lambda problem, direction, device: None, **more},
    )


def no_float16(problem, direction, device):
    return "it has no float16" if problem["dtype"] == "float16" else None


class Problem(dict):
    """A problem that can be asked about twice: hashable by its items."""

    def __hash__(self):
        return hash(tuple(sorted(self.items(), key=str)))

    @property
    def signature(self):
        return Signature.build(OP, 1, FIELDS, self)

    @classmethod
    def from_signature(cls, signature):
        return cls(signature.values)


TOY = Op(
    name=OP,
    version=1,
    directions=("fwd", "bwd"),
    fields=FIELDS,
    problem=Problem,
    outputs=lambda p, d: (Output(name="out"),),
    flops=lambda p, d: 1,
    bytes_moved=lambda p, d: 1,
    inputs="",
    reference="",
    baseline="",
)


KERNELS = (
    kernel("alpha", unsupported=no_float16, priority={"cuda": 1}),
    kernel("beta", OtherConfig, directions=("fwd",)),
    kernel("absent", requires=("no_such_module_anywhere",), priority={"cuda": 9, "cpu": 9}),
)


HERE = dataclasses.replace(current_environment(), source_hash=KERNELS[0].environment(current_environment()).source_hash)


def pack(*rows, name="lab"):
    return pack_from_files(pack_files([{**r, "env": HERE} for r in rows], name=name))


def problem(text):
    return Problem(Signature.parse(text, FIELDS).values)
