"""The registry of kernels: folders here, and the entry points ``attn_tune.kernels``. It loads one op's at a time.

There is no second list. Each folder in ``kernels/<op>/`` whose ``__init__.py`` defines ``SPEC`` is a kernel. One that
is asked for by name is imported alone. An entry point names a ``KernelSpec``, or a function that returns one or
several. One called ``OP.anything`` is imported when the kernels of that op are asked for; others with every op's.
"""

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Iterable

from attn_tune.kernels.installed import installed_kernels
from attn_tune.kernels.spec import KernelSpec
from attn_tune.ops.installed import BrokenPackage
from attn_tune.ops.registry import (
    broken_ops,
    clear as clear_ops,
    find_op,
    get_op,
    op_names,
)
from attn_tune.schema.errors import unknown_name, warn

FOLDERS = "attn_tune.kernels"

_broken: dict[str, BrokenPackage] = {}


@functools.cache
def kernels() -> dict[str, KernelSpec]:
    """Every kernel by id, ``"op/name"``; imports those of all ops.

    The kernels of a broken installed package are left out with one ``AttnTuneWarning``.
    """
    return {spec.id: spec for op in op_names() for spec in specs_of(op)}


@functools.cache
def specs_of(op: str) -> tuple[KernelSpec, ...]:
    """The kernels of the op called ``op``, by name. Imports no other op's but those of unnamed entry points."""
    if find_op(op) is None:
        return ()
    found = [_folder_kernel(op, name) for name in folder_kernels(op)]
    found += [spec for spec in _unnamed() if spec.op == op]
    found += _kept(installed_kernels(op, [spec.id for spec in found]))
    return tuple(sorted(found, key=lambda spec: spec.name))


def kernels_of(op: str) -> tuple[KernelSpec, ...]:
    """The kernels of one op, by name.

    Raises:
      UsageError: there is no such op, or its package is broken.
    """
    return specs_of(get_op(op).name)


def find_kernel(kernel_id: str) -> KernelSpec | None:
    """The kernel called ``"op/name"``, None if there is none here. One of this package is imported alone."""
    op, _, name = kernel_id.partition("/")
    if find_op(op) is None:
        return None
    if name in folder_kernels(op):
        return _folder_kernel(op, name)
    return next((spec for spec in specs_of(op) if spec.id == kernel_id), None)


def get_kernel(kernel_id: str) -> KernelSpec:
    """The kernel called ``"op/name"``; an error that suggests near names otherwise."""
    if (spec := find_kernel(kernel_id)) is None:
        raise unknown_name("kernel", kernel_id, kernels())
    return spec


def broken_packages() -> tuple[BrokenPackage, ...]:
    """The installed packages whose ops or kernels are left out; imports everything."""
    kernels()
    return (*broken_ops(), *_broken.values())


def clear() -> None:
    """Forgets everything, so that packages installed since are found."""
    for function in (kernels, specs_of, folder_kernels, _unnamed):
        function.cache_clear()
    _broken.clear()
    clear_ops()


@functools.cache
def folder_kernels(op: str) -> tuple[str, ...]:
    """The names of the folders of an op's own kernels; imports none of them."""
    spec = importlib.util.find_spec(f"{FOLDERS}.{op}")
    infos = pkgutil.iter_modules(spec.submodule_search_locations if spec else ())
    return tuple(info.name for info in infos if info.ispkg and not info.name.startswith("_"))


def _folder_kernel(op: str, name: str) -> KernelSpec:
    return importlib.import_module(f"{FOLDERS}.{op}.{name}").SPEC


@functools.cache
def _unnamed() -> tuple[KernelSpec, ...]:
    """The kernels of the entry points whose names do not say an op."""
    taken = [f"{op}/{name}" for op in op_names() for name in folder_kernels(op)]
    return tuple(_kept(installed_kernels("", taken)))


def _kept(found: Iterable[KernelSpec | BrokenPackage]) -> list[KernelSpec]:
    """The kernels among ``found``; warns of the packages that are broken."""
    kept = []
    for one in found:
        if isinstance(one, BrokenPackage):
            _broken[one.entry_point] = one
            warn(f"{one}; `attn-tune doctor` checks it again")
        else:
            kept.append(one)
    return kept
