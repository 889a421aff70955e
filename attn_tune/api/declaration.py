"""The declaration of an op that the call path runs by: its arrays, its parallel dimensions, its gradients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
from jaxtyping import Array

from attn_tune.ops.registry import get_op
from attn_tune.schema.errors import AttnTuneError, UsageError

type Problem = Any
type Operands = Any
type Types = dict[str, jax.ShapeDtypeStruct]

NONE: Mapping[str, str] = MappingProxyType({})


class OutputsError(AttnTuneError, TypeError):
    """A kernel returned other outputs than its op declares."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Call:
    """One op as the call path sees it. An op makes one of these, at import.

    Operands are a named tuple of arrays, or None where an optional one is absent. The inputs of the backward are a
    named tuple whose field ``operands`` holds them. Every array has letters, one a dimension; arrays that share a
    letter share its size.

    Attributes:
      op: the op's name in the registry.
      forward, backward: the op's directions that this call runs.
      letters: the letters of every array, by the name of its field: operands, outputs, inputs of the backward.
      main: the operands whose sharding decides how a call is cut, the most important first, with their public names.
      outputs: ``(problem, operands) -> {name: type}``: the outputs of the forward. It reads shapes and dtypes only.
      with_shapes: ``(problem, operands) -> problem`` with the sizes that the operands have here. A shard and a folded
        batch are looked up as what it returns.
      parallel: letters along which a shard computes its own part. ``vmap`` folds into the first one.
      groups: a parallel letter whose entries come in equal groups, and the letter of the groups. Shards may share a
        group; each of them reads its own only.
      words: what messages call a letter.
      remedies: what a message advises where a letter is sharded that is not parallel.
      broadcast: operands with a dimension of size 1 wherever they broadcast.
      unfolded: operands that say more of a batch of one; a batch that ``vmap`` folded goes without them.
      unfoldable: operands with which ``vmap`` runs element by element.
      sums: outputs of the forward that are sums over the parallel letters which they lack; of a cut call, the sums of
        all shards.
      indivisible: operands with which a call is not cut: its kernel runs as XLA partitions it.
      place: ``(operands, first) -> operands`` of one shard; ``first`` maps a parallel letter to the index of the
        shard's first entry.
      gradients: operands whose gradient the backward's kernels make; the op says which output it is (``Output.of``).
        Empty, with no ``more_gradients``: the op has a forward alone.
      residuals: outputs of the forward that its backward reads; ``<op>_<name>`` for ``jax.checkpoint`` policies.
      with_residuals: ``problem -> problem`` whose forward gives all residuals.
      backward_inputs: ``(operands, residuals, cotangents) -> inputs`` of the backward; both dicts are by output, and
        a cotangent is absent where the output is.
      more_gradients: ``inputs of the backward -> {operand: gradient}``, those that no kernel makes.
      plain_derivative: derivatives that no kernel has are those of the op's ``baseline``; otherwise they are refused.
      alternative: a sentence for the error of a refused derivative.
    """

    op: str
    forward: str = "fwd"
    backward: str = "bwd"
    letters: Mapping[str, str]
    main: Mapping[str, str]
    outputs: Callable[[Problem, Operands], Types]
    with_shapes: Callable[[Problem, Operands], Problem]
    parallel: tuple[str, ...] = ()
    groups: Mapping[str, str] = field(default_factory=lambda: NONE)
    words: Mapping[str, str] = field(default_factory=lambda: NONE)
    remedies: Mapping[str, str] = field(default_factory=lambda: NONE)
    broadcast: tuple[str, ...] = ()
    unfolded: tuple[str, ...] = ()
    unfoldable: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    indivisible: tuple[str, ...] = ()
    place: Callable[[Operands, dict[str, Array]], Operands] | None = None
    gradients: tuple[str, ...] = ()
    residuals: tuple[str, ...] = ()
    with_residuals: Callable[[Problem], Problem] = lambda problem: problem
    backward_inputs: Callable[[Operands, dict, dict], Any] | None = None
    more_gradients: Callable[[Any], dict[str, Array]] = lambda inputs: {}
    plain_derivative: bool = False
    alternative: str = ""

    @property
    def cut_letters(self) -> tuple[str, ...]:
        """The letters that a mesh may cut: the parallel ones, and those of their groups."""
        return (*self.parallel, *self.groups.values())

    def word(self, letter: str) -> str:
        """The word of messages for a letter."""
        return self.words.get(letter, f"dimension {letter!r}")

    def present(self, names: tuple[str, ...], operands: Operands) -> list[str]:
        """Those of ``names`` that are operands of this call."""
        return [name for name in names if getattr(operands, name) is not None]

    def sizes(self, operands: Operands) -> dict[str, int]:
        """The size of every letter of the main operands."""
        found: dict[str, int] = {}
        for name in self.main:
            for letter, size in zip(self.letters[name], getattr(operands, name).shape, strict=True):
                found[letter] = max(size, found.get(letter, 1))
        return found

    def output_types(self, problem: Problem, inputs: Any) -> Types:
        """The types of a launch's outputs: those of the forward by name, or the gradients by operand."""
        operands = operands_of(inputs)
        if operands is inputs:
            return self.outputs(problem, operands)
        like = {name: getattr(operands, name) for name in self.gradients}
        return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in like.items() if x is not None}

    def wanted(self, problem: Problem, inputs: Any, made: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs of a launch, named as in ``output_types``, among those that the baseline made.

        Raises:
          UsageError: the op declares no output as the gradient of an operand that is in ``gradients``.
        """
        names = self._names_of_kernels(problem, inputs, self.output_types(problem, inputs))
        return {name: made[of_kernel] for name, of_kernel in names.items()}

    def checked(self, kernel: str, problem: Problem, inputs: Any, made: Any) -> dict[str, Array]:
        """The same of what ``kernel`` returned, once it is found to be what the op declares; it may be more.

        Raises:
          OutputsError: it is no mapping, or an output is missing, no array, or of another shape or dtype.
        """
        if not isinstance(made, Mapping):
            raise OutputsError(f"{kernel} must return a dict of outputs by name, not a {type(made).__name__}")
        types = self.output_types(problem, inputs)
        names, outputs = self._names_of_kernels(problem, inputs, types), {}
        for name, like in types.items():
            found = made.get(of_kernel := names[name])
            if (getattr(found, "shape", None), getattr(found, "dtype", None)) != (like.shape, like.dtype):
                was = f"{found.dtype}{list(found.shape)}" if isinstance(found, jax.Array) else type(found).__name__
                said = f"is {was}" if of_kernel in made else "is missing"
                raise OutputsError(f"{kernel}: the output {of_kernel!r} {said}, must be {like.dtype}{list(like.shape)}")
            outputs[name] = found
        return outputs

    def _names_of_kernels(self, problem: Problem, inputs: Any, types: Types) -> dict[str, str]:
        """The names by which kernels return the outputs that have these ``types``."""
        if operands_of(inputs) is inputs:
            return {name: name for name in types}
        names = {output.of: output.name for output in get_op(self.op).outputs(problem, self.backward) if output.of}
        for name in types:
            if name not in names:
                raise UsageError(f"op {self.op!r} has no output of {self.backward!r} that is the gradient of {name!r}")
        return {name: names[name] for name in types}


def operands_of(inputs: Any) -> Operands:
    """The operands among the inputs of a launch: the inputs of the backward hold them as a field."""
    return getattr(inputs, "operands", inputs)
