"""Finds ops and kernels: by walking the folders here, and through the ``attn_tune.kernels`` entry points.

There is no second list. A folder ``kernels/<op>/`` with an ``op.py`` that defines ``OP`` is an op; each folder in it
whose ``__init__.py`` defines ``SPEC`` is a kernel. An entry point names a ``KernelSpec``, or a function that returns
one or several.
"""

import functools
import importlib
import pkgutil
from collections.abc import Iterator

from attn_tune.kernels.installed import BrokenPackage, installed_kernels
from attn_tune.kernels.spec import KernelSpec, Op
from attn_tune.schema.errors import unknown_name, warn

# Folders beside the ops': device code that kernels of several ops share.
_NO_OPS = ("attn_tune.kernels.lang",)
# The packages that the last call of ``kernels`` left out.
_broken: tuple[BrokenPackage, ...] = ()


@functools.cache
def ops() -> dict[str, Op]:
    """Every op by name."""
    found = {}
    for package in _op_packages():
        op = importlib.import_module(f"{package}.op").OP
        found[op.name] = op
    return dict(sorted(found.items()))


@functools.cache
def kernels() -> dict[str, KernelSpec]:
    """Every kernel by id, ``"op/name"``.

    The kernels of a broken installed package are left out with one ``AttnTuneWarning``.
    """
    global _broken
    found = {spec.id: spec for spec in _folder_specs()}
    broken = []
    for one in installed_kernels(ops(), found):
        if isinstance(one, BrokenPackage):
            broken.append(one)
            warn(f"{one}; `attn-tune doctor` checks it again")
        else:
            found[one.id] = one
    _broken = tuple(broken)
    return dict(sorted(found.items()))


def broken_packages() -> tuple[BrokenPackage, ...]:
    """The installed packages whose kernels ``kernels`` leaves out."""
    kernels()
    return _broken


def get_op(name: str) -> Op:
    """The op called ``name``; an error that suggests near names otherwise."""
    try:
        return ops()[name]
    except KeyError:
        raise unknown_name("op", name, ops()) from None


def get_kernel(kernel_id: str) -> KernelSpec:
    """The kernel called ``"op/name"``; an error that suggests near names otherwise."""
    try:
        return kernels()[kernel_id]
    except KeyError:
        raise unknown_name("kernel", kernel_id, kernels()) from None


def kernels_of(op: str) -> tuple[KernelSpec, ...]:
    """The kernels of one op, by name."""
    return tuple(spec for spec in kernels().values() if spec.op == get_op(op).name)


def _op_packages() -> Iterator[str]:
    import attn_tune.kernels as package

    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if info.ispkg and info.name not in _NO_OPS:
            yield info.name


def _folder_specs() -> Iterator[KernelSpec]:
    for package_name in _op_packages():
        package = importlib.import_module(package_name)
        for info in pkgutil.iter_modules(package.__path__, package_name + "."):
            if info.ispkg and not info.name.rpartition(".")[2].startswith("_"):
                yield importlib.import_module(info.name).SPEC
