"""Kernels of installed packages: loaded through entry points and checked; a broken package is left out."""

import functools
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from importlib.metadata import EntryPoint
from itertools import islice
from types import NoneType
from typing import Any, NamedTuple, Never

from attn_tune.kernels.spec import PLATFORMS, KernelSpec, Search
from attn_tune.ops.installed import (
    BrokenPackage,
    entry_points,
    load_entry_points,
    one_line,
)
from attn_tune.ops.registry import get_op, op_names
from attn_tune.schema.direction import WHOLE
from attn_tune.schema.errors import UnsupportedError, UsageError, shown
from attn_tune.schema.signals import is_of_handler

GROUP = "attn_tune.kernels"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_BACKEND = re.compile(r"[a-z][a-z0-9_]*")


def op_of_entry_point(point: EntryPoint) -> str:
    """The op that the name of an entry point begins with: ``OP`` of ``OP.anything``; empty if that is no op."""
    op = point.name.partition(".")[0]
    return op if op in op_names() else ""


def installed_kernels(op: str, taken: Iterable[str]) -> Iterator[KernelSpec | BrokenPackage]:
    """The kernels of the entry points whose names say ``op``, ``""``: no op; of each broken one the failure.

    An entry point is used whole or not at all. ``taken`` are the ids that cannot be used again.
    """
    used = set(taken)

    def read(point: EntryPoint) -> list[KernelSpec]:
        specs = list(_read(point, used, op))
        used.update(spec.id for spec in specs)
        return specs

    points = [point for point in entry_points(GROUP) if op_of_entry_point(point) == op]
    yield from load_entry_points(points, read, "kernels")


def _read(point: EntryPoint, used: set[str], op: str) -> Iterator[KernelSpec]:
    value = point.load()
    offered = value if isinstance(value, KernelSpec | tuple | list) else value()
    own: set[str] = set()
    for spec in (offered,) if isinstance(offered, KernelSpec) else offered:
        check_spec(spec)
        if op and spec.op != op:
            raise UsageError(f"kernel {spec.id!r} is not of {op!r}, as its entry point's name says")
        if spec.id in used | own:
            raise UsageError(f"there is another kernel {spec.id!r}; rename this one")
        own.add(spec.id)
        yield replace(
            spec,
            entry_point=point.value,
            unsupported=_contained(spec.unsupported, "check of the problem", str, _REASON),
            priority={platform: _contained_place(place) for platform, place in spec.priority.items()},
            searches={way: _contained_search(search) for way, search in spec.searches.items()},
        )


def _contained_place(place: Any) -> Any:
    """``place`` of ``priority``; a function that fails puts its kernel where those without a place are."""
    return _contained(place, "priority", lambda reason: 0, _PLACE) if callable(place) else place


def _contained_search(search: Search) -> Search:
    """``search`` of an installed kernel, whose functions end no job: a check's failure is its reason.

    What makes configs raises ``UnsupportedError`` and nothing else.
    """
    config = _Kind(lambda found: isinstance(found, search.config), f"a {search.config.__name__}")
    adapted = _Kind(lambda found: found is None or config.includes(found), f"{config.words} or None")
    listed = _Kind(lambda found: all(map(_is_config, found)), "configs, which are dataclasses")
    return replace(
        search,
        heuristic=_contained(_plain(search.heuristic), "heuristic", _refuse, config),
        candidates={
            part: _contained(_listed(make), "list of configs", _refuse, listed)
            for part, make in search.candidates.items()
        },
        infeasible=_contained(search.infeasible, "check of a config", str, _REASON),
        adapt=_contained(_plain(search.adapt), "adapt", _refuse, adapted),
    )


class _Kind(NamedTuple):
    """Values that a function may return: a test of them, and words for them."""

    includes: Callable[[Any], bool]
    words: str


_PLACE = _Kind(lambda found: type(found) is int, "an integer")
_REASON = _Kind(lambda found: found is None or (isinstance(found, str) and found != ""), "a reason or None")


# More than any space has that can be searched: a generator without an end would fill the memory.
_MOST_CONFIGS = 100_000


def _is_config(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _check_knobs(config: Any) -> None:
    """Raises ValueError for a knob that the JSON of trials and packs cannot hold."""
    for field in fields(config) if _is_config(config) else ():
        value = getattr(config, field.name)
        if _is_config(value):
            _check_knobs(value)
        elif not isinstance(value, (int, float, str, NoneType)):
            raise ValueError(f"the knob {field.name!r} must be a number, a text, a truth value or None, got {value!r}")


def _plain(make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any) -> Any:
        found = make(*args)
        _check_knobs(found)
        return found

    return made


def _contained(
    function: Callable[..., Any], what: str, failed: Callable[[str], Any], kind: _Kind
) -> Callable[..., Any]:
    """``function``, with the answer of ``failed`` to the reason in place of what it raises or returns wrongly."""

    @functools.wraps(function)
    def answer(*args: Any) -> Any:
        try:
            found = function(*args)
            if kind.includes(found):
                return found
            reason = f"its {what} must return {kind.words}, got {shown(found)}"
        except BaseException as error:  # SystemExit too
            if isinstance(error, KeyboardInterrupt) or is_of_handler(error):
                raise
            reason = f"its {what} failed: {one_line(error)}"
        return failed(reason)

    return answer


def _listed(make: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
    # A generator would raise where it is read.
    def made(*args: Any) -> tuple[Any, ...]:
        found = tuple(islice(make(*args), _MOST_CONFIGS + 1))
        if len(found) > _MOST_CONFIGS:
            raise ValueError(f"it makes more than {_MOST_CONFIGS:,} configs, or has no end")
        for config in found:
            _check_knobs(config)
        return found

    return made


def _refuse(reason: str) -> Never:
    raise UnsupportedError(reason)


def check_spec(spec: object) -> None:
    """Refuses a spec that a lookup or a sweep could not use.

    Raises:
      UsageError: it is no ``KernelSpec``, of an unknown op, or a field of it cannot be used.
    """
    if not isinstance(spec, KernelSpec):
        raise UsageError(f"it offers a {type(spec).__name__}, not a KernelSpec")
    if spec.op not in op_names():
        known = ", ".join(op_names())
        raise UsageError(f"kernel {spec.id!r} is of an unknown op {spec.op!r}; known: {known}")
    if not isinstance(spec.name, str) or not _NAME.fullmatch(spec.name):
        raise UsageError(f"a kernel's name is letters, digits and _.+-, not {spec.name!r}")
    where = f"kernel {spec.id!r}"
    if not isinstance(spec.backend, str) or not _BACKEND.fullmatch(spec.backend):
        known = ", ".join((*PLATFORMS, "xla"))
        raise UsageError(
            f"{where}: backend must be {known} or another word in small letters, got {shown(spec.backend)}"
        )
    directions = get_op(spec.op).directions
    if not isinstance(spec.searches, Mapping) or not spec.searches:
        raise UsageError(f"{where}: searches must name a Search for each direction")
    for direction, search in spec.searches.items():
        if direction not in directions:
            known = ", ".join(directions)
            raise UsageError(f"{where}: {spec.op} has no direction {direction!r}; known: {known}")
        if not isinstance(search, Search):
            raise UsageError(f"{where}: the search of {direction} must be a Search, not a {type(search).__name__}")
        if wrong := _wrong_field(search):
            raise UsageError(f"{where}: the search of {direction}: {wrong}")
    if not callable(spec.unsupported):
        raise UsageError(f"{where}: unsupported must be a function")
    places = spec.priority.values() if isinstance(spec.priority, Mapping) else [None]
    if not all(type(place) is int or callable(place) for place in places):
        wanted = "a table of integers, or of functions that return one, by platform"
        raise UsageError(f"{where}: priority must be {wanted}, got {shown(spec.priority)}")
    for name in ("requires", "libraries"):
        value = getattr(spec, name)
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise UsageError(f"{where}: {name} must be a tuple of texts")
    for search in spec.searches.values():
        module = search.call.partition(":")[0]
        if importlib.util.find_spec(module) is None:
            raise UsageError(f"{where}: the module {module!r} of its call was not found")


def _wrong_field(search: Search) -> str:
    """The first field of ``search`` that cannot be used, and what it must be; ``""`` if all can."""
    candidates = search.candidates if isinstance(search.candidates, Mapping) else {}
    checks = (
        ("config", is_dataclass(search.config), "a dataclass of knobs"),
        ("heuristic", callable(search.heuristic), "a function"),
        ("infeasible", callable(search.infeasible), "a function"),
        ("candidates", candidates and all(map(callable, candidates.values())), "a table of functions by part"),
        ("candidates", _are_parts(candidates, search.config), f"of the part {WHOLE!r} alone, or of fields of config"),
        ("call", isinstance(search.call, str) and ":" in search.call, "the text MODULE:FUNCTION"),
        (
            "outputs",
            _names_outputs(search.outputs, candidates),
            "a table with a tuple of names of outputs for each part",
        ),
    )
    wrong = next(((name, wanted) for name, is_right, wanted in checks if not is_right), None)
    return f"{wrong[0]} must be {wrong[1]}, got {shown(getattr(search, wrong[0]))}" if wrong else ""


def _are_parts(names: Iterable[str], config: Any) -> bool:
    names = set(names)
    known = {field.name for field in fields(config)} if is_dataclass(config) else names
    return names == {WHOLE} or names <= known


def _names_outputs(named: Any, parts: Iterable[str]) -> bool:
    """Whether each part of a direction made of several launches has outputs."""
    if not isinstance(named, Mapping):
        return False
    outputs = (named.get(part) for part in parts if part != WHOLE)
    return all(isinstance(t, tuple) and t and all(isinstance(name, str) for name in t) for t in outputs)
