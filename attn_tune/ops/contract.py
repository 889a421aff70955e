"""The contract of an op: `Op`, its outputs by kind, its operands, workloads and axes. Importing it loads no jax.

An op says *what* is computed; kernels (``attn_tune.kernels.spec``) say how. Everything that runs on arrays is named by
a ``"module:function"`` path and imported on first use.
"""

import enum
import functools
import importlib
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from attn_tune.schema.direction import is_direction
from attn_tune.schema.errors import UsageError, unknown_name
from attn_tune.schema.signature import Field, FieldKind, Signature

type Outputs = Mapping[str, Any]

WORKLOAD = "workload"
# Attributes of an op that are one path each.
_PATHS = (
    "inputs",
    "reference",
    "baseline",
    "features",
    "samples",
    "coarser",
    "walk",
    "recognise",
    "untuned",
)
_NAME = re.compile(r"[a-z][a-z0-9_]*")

# Triton's modules import one another in circles: two threads that import it first at one time see half of it.
_importing = threading.RLock()


@functools.cache
def load(path: str) -> Callable[..., Any]:
    """Import ``"package.module:name"``. Threads that import at one time wait for one another."""
    module, _, name = path.partition(":")
    with _importing:
        return getattr(importlib.import_module(module), name)


@runtime_checkable
class Problem(Protocol):
    """One call without its arrays: a frozen, hashable and picklable value, in practice a frozen dataclass.

    Kernels read their own op's attributes, so a function of an op or of a kernel names its own problem type.
    """

    __hash__: ClassVar[Callable[[Any], int]]

    @property
    def signature(self) -> Signature:
        """The key of the problem. What changes no measurement is not in it."""
        ...

    @classmethod
    def from_signature(cls, signature: Signature) -> Self:
        """A problem with this signature; what the signature leaves out has a fixed canonical value."""
        ...


class OutputKind(enum.StrEnum):
    """The kind of an output; it decides the rule of proof (``attn_tune.ops.tolerance``).

    Attributes:
      VALUE: a result in the working dtype. Integers and booleans must be equal.
      GRADIENT: the derivative with respect to an operand (``Output.of``).
      LOGSUMEXP: a natural logarithm, compared by its absolute error.
      STATE: a state carried over the steps of a sequence; rows are judged beside the other rows of their matrix.
      INDEX: integers that select: compared as sets, in order, or by the scores that they select.
      SCALAR: numbers that stand each for themselves, such as a loss.
      QUANTISED: codes that mean something only together with their scales; compared after dequantisation.
    """

    VALUE = "value"
    GRADIENT = "gradient"
    LOGSUMEXP = "logsumexp"
    STATE = "state"
    INDEX = "index"
    SCALAR = "scalar"
    QUANTISED = "quantised"


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """One output of a direction.

    Attributes:
      name: the key in the mappings that kernels, reference and baseline return.
      kind: decides the rule of proof.
      of: the operand whose gradient it is; for ``gradient`` alone, and needed there.
      cumulative: for ``gradient``: its rows are sums over the axis before the last, so that each has the errors of
        others. They are judged beside the typical row of their matrix (last two axes), as those of a ``state``.
      cancels: its sums cancel, or have decays that are products over many tokens, as those of a recurrence: a right
        kernel rounds them in another order. In float32 four times as many roundings are right then, and a row of a
        ``value`` is judged beside the typical row of its matrix.
      optional: a kernel may leave it out. It is compared where it is made, and a release does not ask for it.
      updates: the operand whose buffer it takes over. Rows (last axis; of a ``scalar``, entries) that the reference
        leaves as they were must keep their bits.
      working_dtype: the dtype in which the contract lets it be computed, where that is coarser than its own: a float32
        loss of bfloat16 logits.
      scores: for ``index``: the key of the reference's scores ``[..., candidates]``, by which the selected entries are
        compared. Empty: as sets, each row (last axis) by itself.
      ordered: for ``index``: the position of each entry counts too.
      scale: for ``quantised``: the output that holds the scales, which multiply the codes (broadcast). Empty: the
        reference has codes too, before they are rounded.

    Raises:
      UsageError: an attribute that the kind does not have, or one that it lacks.
    """

    name: str
    kind: OutputKind = OutputKind.VALUE
    of: str = ""
    cumulative: bool = False
    cancels: bool = False
    optional: bool = False
    updates: str = ""
    working_dtype: str = ""
    scores: str = ""
    ordered: bool = False
    scale: str = ""

    def __post_init__(self):
        object.__setattr__(self, "kind", OutputKind(self.kind))
        own = {
            "of": (OutputKind.GRADIENT,),
            "cumulative": (OutputKind.GRADIENT,),
            "cancels": (OutputKind.VALUE, OutputKind.GRADIENT, OutputKind.STATE),
            "scores": (OutputKind.INDEX,),
            "ordered": (OutputKind.INDEX,),
            "scale": (OutputKind.QUANTISED,),
            "updates": (OutputKind.VALUE, OutputKind.STATE, OutputKind.SCALAR, OutputKind.QUANTISED),
        }
        for attribute, kinds in own.items():
            if getattr(self, attribute) and self.kind not in kinds:
                raise UsageError(f"output {self.name!r} is of kind {self.kind}, without {attribute!r}")
        if self.kind is OutputKind.GRADIENT and not self.of:
            raise UsageError(f"output {self.name!r} is a gradient; `of` must name its operand")
        if self.scores and self.ordered:
            raise UsageError(f"output {self.name!r}: give `scores` or `ordered`, not both")


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """One array that a call takes.

    Attributes:
      name: the name of its leaf in the inputs (the last key or attribute of the leaf's path).
      shape: its sizes for one problem; None where they are not known from the problem.
      dtype: its dtype's name; empty where it is not known from the problem.
      differentiable: gradients with respect to it are part of the op.
      in_place: calls update it. Its buffer is donated, when a call is timed as when it is compared, and an output takes
        it over (``Output.updates``).
      partition: for an op of several devices: for each axis the name of the mesh axis that it is split along, or None.
    """

    name: str
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    differentiable: bool = False
    in_place: bool = False
    partition: tuple[str | None, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A named profile of the data that shapes do not say.

    Attributes:
      name: its word in signatures and grids.
      summary: one line for listings.
    """

    name: str
    summary: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """One number of a grid's lengths: ``4x4k`` is one number an axis, in the order of ``Op.axes``.

    Attributes:
      field: the signature's field that it gives.
      same_as: the field of another axis whose number it takes where the text has too few; such axes come last.
      is_length: ``--lengths 4k`` means this axis too. A batch is none.
    """

    field: str
    same_as: str = ""
    is_length: bool = True


def workload_field(workloads: Iterable[Workload]) -> Field:
    """The field of a signature that says the workload; the first one is the default, and is left out."""
    first, *rest = workloads
    words = ", ".join(f"`{w.name}`" for w in (first, *rest))
    return Field(
        name=WORKLOAD,
        kind=FieldKind.CATEGORICAL,
        is_int=False,
        default=first.name,
        doc=f"profile of the data: {words}",
    )


def one_device(problem: Any) -> Mapping[str, int]:
    """The mesh of an op whose problems need one device."""
    return {}


def no_operands(problem: Any, direction: str) -> tuple[Operand, ...]:
    """The operands of an op that updates none in place and says nothing else of them."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Op:
    """One op with its contract.

    A path is ``"module:function"``; one that begins with ``.`` lies in ``package``.

    Attributes:
      name: the op's folder, or the name of its entry point.
      version: the contract's version; raised when old results stop being comparable.
      directions: names of its own, in order: ``("fwd", "bwd")``, ``("fwd",)``, ``("prefill", "step")``.
      fields: the signature's fields, in the order of its text.
      problem: the type of its problems (see ``Problem``).
      outputs: ``(problem, direction) -> outputs``, every output that the direction has for this problem. Without any
        the problem has no such direction.
      operands: ``(problem, direction) -> operands``. Those updated in place must be there.
      flops: ``(problem, direction) -> int``, floating-point operations of the plain algorithm on the actual workload.
      bytes_moved: ``(problem, direction) -> int``, the fewest bytes to and from device memory, likewise.
      package: the package that holds its modules: ``__package__`` of the module that makes the op.
      inputs: path of ``(problem, direction, seed) -> inputs``; a pytree of arrays for one call, of the problem's
        workload. For a derivative it holds the residuals and the cotangents too. Called under ``jit``, with a traced
        int32 seed.
      reference: path of ``(problem, direction, inputs) -> {output: array}`` in high precision, sharing no code with
        any kernel. Called under ``jit``, as the baseline is.
      baseline: path of the same in the working dtype, done plainly: what the dtype itself can do.
      features: path of ``(problem) -> tuple[problem, ...]``, small hard variants of a problem (odd lengths, fully
        masked rows, extreme gates) on which a winner must also be right. Empty: none, and nothing counts as proven.
      samples: path of ``() -> {name: problem}``, tiny problems, each feature alone; ``attn-tune validate`` runs them.
      coarser: path of ``(problem) -> iterable of problems``, variants of a small problem from the least changed to the
        most, for kernels that cannot take its odd sizes. A kernel is proven on the first one that it takes.
      workloads: the profiles that ``inputs`` knows, the default first. ``fields`` then has their ``workload_field``.
      axes: the fields that a grid's ``[lengths]`` give.
      mesh: ``(problem) -> {axis name: size}``: the devices that a problem needs; empty is one device.
      walk: path of a ``ops.cost_walk.CostWalk``, for predicted times; without one there are none.
      recognise: path of ``(graph) -> findings`` (``ops.program_graph``), which finds the op's problems in a program.
      untuned: path of ``(kernel, problem, direction, device) -> place``, the order of untuned kernels, highest first;
        None for a kernel that it does not know, whose own ``priority`` counts.
      functions: paths of the op's public functions, ``"module:name"``; each is ``attn_tune.<name>``.
      summary: one line for listings.

    Raises:
      UsageError: a declaration that cannot be used; the message names it.
    """

    name: str
    version: int
    directions: tuple[str, ...]
    fields: tuple[Field, ...]
    problem: type[Any]
    outputs: Callable[[Any, str], tuple[Output, ...]]
    flops: Callable[[Any, str], int]
    bytes_moved: Callable[[Any, str], int]
    operands: Callable[[Any, str], tuple[Operand, ...]] = no_operands
    package: str | None = ""
    inputs: str = ".inputs:make_inputs"
    reference: str = ".reference:reference"
    baseline: str = ".reference:baseline"
    features: str = ""
    samples: str = ""
    coarser: str = ""
    workloads: tuple[Workload, ...] = ()
    axes: tuple[Axis, ...] = ()
    mesh: Callable[[Any], Mapping[str, int]] = one_device
    walk: str = ""
    recognise: str = ""
    untuned: str = ""
    functions: tuple[str, ...] = ()
    summary: str = ""

    def __post_init__(self):
        where = f"op {self.name!r}"
        if not _NAME.fullmatch(self.name):
            raise UsageError(f"{where}: a name is lower-case letters, digits and _")
        if not self.directions or not all(map(is_direction, self.directions)):
            raise UsageError(f"{where}: directions are words such as 'fwd', not {self.directions!r}")
        known = [field.name for field in self.fields]
        for axis in self.axes:
            for field in filter(None, (axis.field, axis.same_as)):
                if field not in known:
                    raise UsageError(f"{where}: {unknown_name('field of an axis', field, known)}")
        if self.workloads and workload_field(self.workloads).default != next(
            (field.default for field in self.fields if field.name == WORKLOAD), None
        ):
            raise UsageError(f"{where}: fields must hold workload_field(workloads)")
        for name in _PATHS:
            path = getattr(self, name)
            if path.startswith("."):
                object.__setattr__(self, name, f"{self.package}{path}")

    def to_signature(self, problem: Any) -> Signature:
        """The signature of ``problem``."""
        return problem.signature

    def from_signature(self, signature: Signature) -> Any:
        """The problem with this signature.

        Raises:
          UsageError: its workload is none of the op's, or no such problem can be.
        """
        word = signature.values.get(WORKLOAD)
        if self.workloads and word and word not in (known := [w.name for w in self.workloads]):
            raise unknown_name(f"workload of {self.name}", str(word), known)
        return self.problem.from_signature(signature)

    def problem_signature(self, text: str) -> Signature:
        """The signature for looking up the problem that ``text`` describes: what changes nothing is left out.

        Raises:
          UsageError: as ``parse_signature``; or no such problem can be.
        """
        return self.to_signature(self.from_signature(self.parse_signature(text)))

    def parse_signature(self, text: str) -> Signature:
        """Reads a signature of this op, as it is.

        Raises:
          UsageError: the text is malformed or of another op or contract version.
        """
        head = text.split(maxsplit=1)[0] if "=" in text else ""
        own = f"{self.name}/v{self.version}"
        if "/v" in head and head != own:
            raise UsageError(f"signature {text!r} is not of {own}")
        if "=" in head:
            raise UsageError(f"signature {text!r} must start with {own}")
        return Signature.parse(text, self.fields)

    def place(self, spec: Any, problem: Any, direction: str, device: Any) -> int:
        """The place of the kernel ``spec`` among those that can do an untuned problem, highest first."""
        found = load(self.untuned)(spec.name, problem, direction, device) if self.untuned else None
        return spec.priority_for(problem, direction, device) if found is None else found

    def directions_of(self, problem: Any) -> tuple[str, ...]:
        """The directions that ``problem`` has."""
        return tuple(d for d in self.directions if self.outputs(problem, d))

    def in_place(self, problem: Any, direction: str) -> tuple[str, ...]:
        """The names of the operands that calls update in place."""
        return tuple(o.name for o in self.operands(problem, direction) if o.in_place)

    def device_count(self, problem: Any) -> int:
        """The number of devices that ``problem`` needs."""
        count = 1
        for size in self.mesh(problem).values():
            count *= size
        return count
