"""``Launch``: one launch of one Triton kernel without its arrays, and the checks of a call."""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attn_tune.schema.errors import UsageError

# Limits of cuLaunchKernel, the same for every capability since 3.0.
MAX_GRID = (2**31 - 1, 2**16 - 1, 2**16 - 1)
# The largest that every GPU with clusters has.
MAX_CLUSTER = 8


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """Options of the compiler: warps and stages of the pipeline, blocks of a cluster, registers a thread."""

    num_warps: int = 4
    num_stages: int = 3
    num_ctas: int = 1
    maxnreg: int | None = None


@dataclass(frozen=True)
class ArrayType:
    """Shape and dtype name of one operand or output."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A kernel with everything that is known at trace time; hashable, so that jax can cache by it.

    Attributes:
      kernel: what ``triton.jit`` returned.
      present: for each operand, whether it is an array; the others are the constant None.
      constexprs: name and value of every compile-time argument, in the order of the kernel's parameters.
      spelling: the values' spelling, which tells 1 from True and from 1.0 where equality does not.
      zeroed: for each output, whether it starts at zero; the others start uninitialised.
      aliases: ``(operand, output)`` pairs that are one buffer; an operand's number counts those that are present.
      cluster: neighbours on the grid's first axis that run at once and can wait for one another.
    """

    kernel: Any
    present: tuple[bool, ...]
    out_types: tuple[ArrayType, ...]
    grid: tuple[int, int, int]
    constexprs: tuple[tuple[str, Any], ...]
    spelling: str
    options: CompileOptions
    name: str
    zeroed: tuple[bool, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    cluster: int = 1

    @property
    def pointer_names(self) -> tuple[str, ...]:
        """The parameters that are pointers at run time: present operands, then outputs."""
        names = self.kernel.arg_names
        operands = [name for name, here in zip(names, self.present, strict=False) if here]
        outputs = names[len(self.present) : len(self.present) + len(self.out_types)]
        return (*operands, *outputs)

    @property
    def constants(self) -> dict[str, Any]:
        """Every compile-time argument by name, absent operands among them."""
        absent = {name: None for name, here in zip(self.kernel.arg_names, self.present, strict=False) if not here}
        return {**absent, **dict(self.constexprs)}


def bind_launch(
    kernel: Any,
    present: Sequence[bool],
    out_types: Sequence[Any],
    *,
    grid: Sequence[int],
    constexprs: Mapping[str, Any],
    options: CompileOptions,
    name: str | None = None,
    zeroed: Sequence[bool] = (),
    aliases: Mapping[int, int] | None = None,
    cluster: int = 1,
) -> Launch:
    """Checks a call against the kernel's parameters.

    Args:
      zeroed: as ``Launch.zeroed``; empty if no output starts at zero.
      aliases: the output that is made in place of each of these operands, by their numbers among all.
      cluster: as ``Launch.cluster``.

    Raises:
      UsageError: the parameters are not the operands, then the outputs, then the constexprs; the grid is impossible, or
        no multiple of the cluster; or ``zeroed`` or ``aliases`` do not fit the outputs.
    """
    if not hasattr(kernel, "arg_names"):
        raise UsageError(f"{kernel!r} is not a Triton kernel; decorate it with triton.jit")
    bound = _bind_constexprs(kernel, len(present) + len(out_types), constexprs)
    called = f"kernel {(name or kernel.__name__)!r}"
    flags = tuple(bool(zero) for zero in zeroed) or (False,) * len(out_types)
    if len(flags) != len(out_types):
        raise UsageError(f"{called} has {len(out_types)} outputs, but zeroed={zeroed!r}")
    sizes = _check_grid(kernel, grid)
    if not 1 <= cluster <= MAX_CLUSTER or sizes[0] % cluster or (cluster > 1 and options.num_ctas > 1):
        raise UsageError(
            f"{called} cannot have cluster={cluster} on a grid of {sizes[0]} with num_ctas={options.num_ctas}: "
            f"give 1 to {MAX_CLUSTER}, a divisor of the grid's first axis, and num_ctas=1"
        )
    return Launch(
        kernel=kernel,
        present=tuple(present),
        out_types=tuple(ArrayType(tuple(out.shape), str(out.dtype)) for out in out_types),
        grid=sizes,
        constexprs=tuple(bound.items()),
        spelling=repr(list(bound.values())),
        options=options,
        name=name or kernel.__name__,
        zeroed=flags,
        aliases=_check_aliases(called, present, flags, aliases or {}),
        cluster=cluster,
    )


def _bind_constexprs(kernel: Any, pointers: int, given: Mapping[str, Any]) -> dict[str, Any]:
    called = f"kernel {kernel.__name__!r}"
    parameters = list(inspect.signature(kernel.fn).parameters.values())
    marked = [p.name for p in parameters if _is_constexpr(p)]
    unmarked = [p.name for p in parameters if not _is_constexpr(p)]
    if len(unmarked) != pointers:
        raise UsageError(
            f"{called} has {len(unmarked)} pointer parameters ({', '.join(unmarked)}) but was given {pointers} "
            "operands and outputs; parameters that are not pointers must be marked tl.constexpr"
        )
    if [p.name for p in parameters] != unmarked + marked:
        raise UsageError(
            f"{called} must take its operands, then its outputs, then its constexprs; "
            f"{marked[0]!r} stands before a pointer"
        )
    if unknown := [name for name in given if name not in marked]:
        raise UsageError(f"{called} has no constexpr {unknown[0]!r}; it has: {', '.join(marked)}")
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    if missing := [name for name in marked if name not in given and name not in defaults]:
        raise UsageError(f"{called} needs the constexpr {missing[0]!r}, which has no default")
    return {name: _plain(called, name, {**defaults, **given}[name]) for name in marked}


def _is_constexpr(parameter: inspect.Parameter) -> bool:
    return "constexpr" in str(parameter.annotation)


def _plain(called: str, name: str, value: Any) -> Any:
    """``value`` as something whose text is the same in every process, because caches are keyed by it."""
    if isinstance(value, tuple):
        return tuple(_plain(called, name, item) for item in value)
    if value is None or isinstance(value, bool | str):
        return value
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    if type(value).__module__.partition(".")[0] == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    if type(value).__module__.partition(".")[0] == "triton":
        return value
    if dataclasses.is_dataclass(value) and type(value).__hash__ is not None:
        for item in dataclasses.fields(value):
            _plain(called, f"{name}.{item.name}", getattr(value, item.name))
        return value
    raise UsageError(
        f"constexpr {name!r} of {called} is a {type(value).__name__}; "
        "give an int, float, bool, str, None, a Triton dtype or function, or a tuple or frozen dataclass of these"
    )


def _check_aliases(
    called: str, present: Sequence[bool], zeroed: Sequence[bool], aliases: Mapping[int, int]
) -> tuple[tuple[int, int], ...]:
    """The pairs by numbers among the operands that are present."""
    for operand, output in aliases.items():
        if not (0 <= operand < len(present) and present[operand]):
            raise UsageError(f"{called} has no operand {operand} to update in place; give an operand that is an array")
        if not 0 <= output < len(zeroed):
            raise UsageError(f"{called} has {len(zeroed)} outputs, and none with number {output}")
        if zeroed[output]:
            raise UsageError(f"{called} cannot start output {output} at zero: it holds operand {operand}")
    if len(set(aliases.values())) < len(aliases):
        raise UsageError(f"{called} cannot have one output in place of two operands: {aliases!r}")
    return tuple(sorted((sum(present[:operand]), output) for operand, output in aliases.items()))


def _check_grid(kernel: Any, grid: Sequence[int]) -> tuple[int, int, int]:
    sizes = tuple(int(size) for size in grid)
    if not 1 <= len(sizes) <= 3:
        raise UsageError(f"kernel {kernel.__name__!r}: a grid has 1 to 3 axes, not {len(sizes)}")
    x, y, z = sizes + (1,) * (3 - len(sizes))
    for axis, size, most in zip("xyz", (x, y, z), MAX_GRID, strict=True):
        if not 1 <= size <= most:
            raise UsageError(
                f"kernel {kernel.__name__!r}: grid axis {axis} is {size}, outside 1 to {most}; "
                "skip empty work, and put the axis that can be long first"
            )
    return x, y, z
