"""Pieces that the probe ops share: sizes as a problem, and kernels in plain JAX with one knob."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from attn_tune.kernels.spec import KernelSpec, Search
from attn_tune.schema.errors import UsageError
from attn_tune.schema.signature import Field, FieldKind, Signature


def size(name, doc):
    return Field(name=name, kind=FieldKind.SCALABLE, is_int=True, doc=doc)


def exact(name, doc, is_int=True):
    return Field(name=name, kind=FieldKind.CATEGORICAL, is_int=is_int, doc=doc)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """A problem whose attributes are the fields of its signature. A probe op sets NAME and FIELDS."""

    NAME: ClassVar[str]
    FIELDS: ClassVar[tuple[Field, ...]]

    def __post_init__(self):
        for field in self.FIELDS:
            value = getattr(self, field.name)
            if field.is_int and value < 1:
                raise UsageError(f"{field.name}={value!r} must be positive")

    @property
    def signature(self) -> Signature:
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in self.FIELDS}
        return Signature.build(self.NAME, 1, self.FIELDS, values)

    @classmethod
    def from_signature(cls, signature):
        values = {field.name: field.default for field in cls.FIELDS} | signature.values
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class Config:
    """``step`` changes the code and no result; a ``defect`` is planted."""

    step: int = 1
    defect: str = ""


def kernel(op, module, name, searches, defects=()):
    """A kernel of one knob, without ``defects``, or one whose configs all have one of them.

    ``searches`` are ``{direction: function of module}``.
    """
    configs = tuple(Config(defect=d) for d in defects) or tuple(Config(step=n) for n in (1, 2))
    return KernelSpec(
        op=op,
        name=name,
        backend="xla",
        searches={
            direction: Search(
                config=Config,
                heuristic=lambda problem, device: configs[0],
                candidates={"": lambda problem, device: configs},
                call=f"{module}:{function}",
            )
            for direction, function in searches.items()
        },
        unsupported=lambda problem, direction, device: None,
        summary="a probe",
    )


def small(problem, **sizes):
    return dataclasses.replace(problem, **sizes)
