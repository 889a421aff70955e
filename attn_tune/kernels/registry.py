"""Finds ops and kernels: by walking the folders here, and through the ``attn_tune.kernels`` entry points.

There is no second list. A folder ``kernels/<op>/`` with an ``op.py`` that defines ``OP`` is an op; each folder in it
whose ``__init__.py`` defines ``SPEC`` is a kernel. An entry point names a ``KernelSpec``, or a function that returns
one or several.
"""

import functools
import importlib
import importlib.metadata
import pkgutil
from collections.abc import Iterator

from attn_tune.kernels.spec import KernelSpec, Op
from attn_tune.schema.errors import UsageError, unknown_name

GROUP = "attn_tune.kernels"


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

    Raises:
      UsageError: an entry point is broken, or two kernels share an id.
    """
    found: dict[str, KernelSpec] = {}
    for spec in (*_folder_specs(), *_entry_point_specs()):
        if spec.id in found:
            raise UsageError(
                f"two kernels are called {spec.id!r}; rename the one from {spec.entry_point!r}"
            )
        if spec.op not in ops():
            raise UsageError(
                f"kernel {spec.id!r} is of an unknown op {spec.op!r}; known: {', '.join(ops())}"
            )
        found[spec.id] = spec
    return dict(sorted(found.items()))


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
        if info.ispkg and not info.name.rpartition(".")[2].startswith("_"):
            yield info.name


def _folder_specs() -> Iterator[KernelSpec]:
    for package_name in _op_packages():
        package = importlib.import_module(package_name)
        for info in pkgutil.iter_modules(package.__path__, package_name + "."):
            if info.ispkg and not info.name.rpartition(".")[2].startswith("_"):
                yield importlib.import_module(info.name).SPEC


def _entry_point_specs() -> Iterator[KernelSpec]:
    import dataclasses

    for point in importlib.metadata.entry_points(group=GROUP):
        try:
            value = point.load()
        except Exception as error:
            raise UsageError(
                f"entry point {point.name!r} = {point.value!r} of group {GROUP!r} does not load: {error!r}"
            ) from error
        specs = value if isinstance(value, KernelSpec | tuple | list) else value()
        for spec in (specs,) if isinstance(specs, KernelSpec) else specs:
            yield dataclasses.replace(spec, entry_point=point.value)
