"""Kernels of installed packages: loaded through entry points and checked; a broken package is left out."""

import functools
import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, Never

from attn_tune.kernels.spec import KernelSpec, Op, Search
from attn_tune.schema.errors import UnsupportedError, UsageError, short

GROUP = "attn_tune.kernels"
_MAX_ERROR = 500
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenPackage:
    """An installed package whose kernels are left out.

    Attributes:
      package: the name of the distribution.
      entry_point: the entry point that failed, as ``name = module:attribute``.
      error: the error as one line, with its type.
    """

    package: str
    entry_point: str
    error: str

    def __str__(self) -> str:
        return f"the kernels of package {self.package!r} ({self.entry_point}) are left out: {self.error}"


def installed_kernels(
    ops: Mapping[str, Op], taken: Mapping[str, KernelSpec]
) -> Iterator[KernelSpec | BrokenPackage]:
    """The kernels that installed packages offer for ``ops``; of each broken entry point the failure instead.

    An entry point is used whole or not at all. ``taken`` are the kernels whose ids cannot be used again. Loading runs
    the package's code, which may raise anything: a job must not end for a package that it does not use. Only
    ``KeyboardInterrupt`` passes.
    """
    used = set(taken)
    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            specs = tuple(_load(point, ops, used))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too
            yield BrokenPackage(
                package=point.dist.name if point.dist else point.value.partition(":")[0],
                entry_point=f"{point.name} = {point.value}",
                error=_one_line(error),
            )
        else:
            used.update(spec.id for spec in specs)
            yield from specs


def _load(
    point: importlib.metadata.EntryPoint, ops: Mapping[str, Op], used: set[str]
) -> Iterator[KernelSpec]:
    value = point.load()
    offered = value if isinstance(value, KernelSpec | tuple | list) else value()
    own: set[str] = set()
    for spec in (offered,) if isinstance(offered, KernelSpec) else offered:
        check_spec(spec, ops)
        if spec.id in used | own:
            raise UsageError(f"there is another kernel {spec.id!r}; rename this one")
        own.add(spec.id)
        yield replace(
            spec,
            entry_point=point.value,
            unsupported=_contained(spec.unsupported, "check of the problem", str),
            searches={way: _contained_search(search) for way, search in spec.searches.items()},
        )


def _contained_search(search: Search) -> Search:
    """``search`` of an installed kernel, whose functions end no job: a check's failure is its reason.

    What makes configs raises ``UnsupportedError`` and nothing else.
    """
    return replace(
        search,
        heuristic=_contained(search.heuristic, "heuristic", _refuse),
        candidates={
            part: _contained(_listed(make), "list of configs", _refuse)
            for part, make in search.candidates.items()
        },
        infeasible=_contained(search.infeasible, "check of a config", str),
        adapt=_contained(search.adapt, "adapt", _refuse),
    )


def _contained(
    function: Callable[..., Any], what: str, failed: Callable[[str], Any]
) -> Callable[..., Any]:
    """``function``, with the answer of ``failed`` to the reason in place of whatever it raises."""

    @functools.wraps(function)
    def answer(*args: Any) -> Any:
        try:
            return function(*args)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too
            return failed(f"its {what} failed: {_one_line(error)}")

    return answer


def _listed(make: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    # A generator would raise where it is read.
    return lambda *args: tuple(make(*args))


def _refuse(reason: str) -> Never:
    raise UnsupportedError(reason)


def _one_line(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # the package's own exception may not even have a text
        text = type(error).__name__
    return " ".join(short(text, _MAX_ERROR).split())


def check_spec(spec: object, ops: Mapping[str, Op]) -> None:
    """Refuses a spec that a lookup or a sweep could not use.

    Raises:
      UsageError: it is no ``KernelSpec``, of an unknown op, or a field of it cannot be used.
    """
    if not isinstance(spec, KernelSpec):
        raise UsageError(f"it offers a {type(spec).__name__}, not a KernelSpec")
    if spec.op not in ops:
        known = ", ".join(ops)
        raise UsageError(f"kernel {spec.id!r} is of an unknown op {spec.op!r}; known: {known}")
    if not isinstance(spec.name, str) or not _NAME.fullmatch(spec.name):
        raise UsageError(f"a kernel's name is letters, digits and _.+-, not {spec.name!r}")
    where = f"kernel {spec.id!r}"
    if not isinstance(spec.searches, Mapping) or not spec.searches:
        raise UsageError(f"{where}: searches must name a Search for each direction")
    for direction, search in spec.searches.items():
        if direction not in ops[spec.op].directions:
            known = ", ".join(ops[spec.op].directions)
            raise UsageError(f"{where}: {spec.op} has no direction {direction!r}; known: {known}")
        if not isinstance(search, Search) or not _is_complete(search):
            raise UsageError(f"{where}: the search of {direction} is not a complete Search")
    if not callable(spec.unsupported):
        raise UsageError(f"{where}: unsupported must be a function")
    if not isinstance(spec.priority, Mapping):
        raise UsageError(f"{where}: priority must be a table by platform")
    for name in ("modules", "requires", "libraries"):
        value = getattr(spec, name)
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"{where}: {name} must be a tuple of texts")
    for module in spec.modules:
        found = importlib.util.find_spec(module)
        if found is None or found.origin is None:
            raise UsageError(f"{where}: its source module {module!r} was not found")


def _is_complete(search: Search) -> bool:
    return (
        is_dataclass(search.config)
        and callable(search.heuristic)
        and callable(search.infeasible)
        and isinstance(search.candidates, Mapping)
        and len(search.candidates) > 0
        and all(callable(make) for make in search.candidates.values())
        and isinstance(search.call, str)
        and ":" in search.call
        and isinstance(search.outputs, Mapping)
    )
