"""Tuning attention kernels for JAX, with proof. Every name here is loaded when it is first used."""

import importlib
from typing import Any

_PUBLIC = {
    # Ops.
    "flash_attention": "attn_tune.kernels.flash_attention.api",
    "create_shard_map_wrapper": "attn_tune.kernels.flash_attention.api",
    "attention": "attn_tune.kernels.attention.api",
    # What callers of the ops and authors of kernels use.
    "MaskInfo": "attn_tune.kernels.masks",
    "Mode": "attn_tune.kernels.modes",
    "mode_of": "attn_tune.kernels.modes",
    "repeat_kv_heads": "attn_tune.kernels.heads",
    "expand_heads": "attn_tune.kernels.heads",
    "causal_mask": "attn_tune.kernels.visibility",
    "split_mask": "attn_tune.kernels.visibility",
    "combine_masks": "attn_tune.kernels.visibility",
    "stable_spec": "attn_tune.kernels.partition",
    "KernelSpec": "attn_tune.kernels.spec",
    "Op": "attn_tune.kernels.spec",
    "Search": "attn_tune.kernels.spec",
    # The lookup.
    "choose": "attn_tune.kernels.dispatch",
    "lookup": "attn_tune.kernels.dispatch",
    "explain": "attn_tune.kernels.dispatch",
    "pin": "attn_tune.kernels.pinning",
    "freeze": "attn_tune.kernels.locked",
    "use_lockfile": "attn_tune.runtime.overlay",
    "use_pack": "attn_tune.runtime.overlay",
    "reload": "attn_tune.runtime.overlay",
    "read_pack": "attn_tune.runtime.packs",
    "stats": "attn_tune.runtime.counters",
    "reset_stats": "attn_tune.runtime.counters",
    "add_listener": "attn_tune.runtime.listeners",
    "set_miss_mode": "attn_tune.runtime.misses",
    "current_device": "attn_tune.runtime.devices",
    "current_environment": "attn_tune.runtime.environments",
    # Tuning.
    "sweep": "attn_tune.tuner.sweep",
    # Errors.
    "AttnTuneError": "attn_tune.schema.errors",
    "UsageError": "attn_tune.schema.errors",
    "UnsupportedError": "attn_tune.schema.errors",
    "NoDataError": "attn_tune.schema.errors",
    "LockfileError": "attn_tune.schema.errors",
    "DisagreementError": "attn_tune.schema.errors",
    "StorageError": "attn_tune.schema.errors",
    "IntegrityError": "attn_tune.schema.errors",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("attn-tune")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'attn_tune' has no attribute {name!r}")
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
