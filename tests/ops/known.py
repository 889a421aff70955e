"""Puts ops and kernels of a test in place of the registry's."""

from attn_tune.kernels import registry as kernels_registry
from attn_tune.ops import registry as ops_registry

# Loaded in the middle of a lookup; what is loaded while names are replaced would keep the replacements.
from attn_tune.runtime.overrides import check as check


def known_ops(monkeypatch, *ops):
    by_name = {op.name: op for op in ops}
    monkeypatch.setattr(ops_registry, "ops", lambda: by_name)
    for module in (ops_registry, kernels_registry):
        monkeypatch.setattr(module, "op_names", lambda: tuple(by_name))
        monkeypatch.setattr(module, "find_op", by_name.get)


def known_kernels(monkeypatch, kernels):
    """``kernels`` by id; what a test changes in the mapping later counts too."""
    monkeypatch.setattr(kernels_registry, "folder_kernels", lambda op: ())
    monkeypatch.setattr(kernels_registry, "specs_of", lambda op: tuple(k for k in kernels.values() if k.op == op))
    monkeypatch.setattr(kernels_registry, "kernels", lambda: kernels)


def more_kernels(monkeypatch, *added, ops=()):
    """``added`` kernels, of ``ops`` that are new, beside the registry's own."""
    own = {op.name: op for op in ops_registry.ops().values()} | {op.name: op for op in ops}
    kernels = kernels_registry.kernels() | {kernel.id: kernel for kernel in added}
    known_ops(monkeypatch, *own.values())
    known_kernels(monkeypatch, kernels)
