"""The lookup runtime: packs in, answers out. Standard library only; jax when a trace is asked for.

``layers`` puts packs and overrides in force (``use_pack``, ``use_overrides``, ``reload``), ``ladder`` finds the row
that answers, ``overrides`` holds entries that go before all packs, ``ranks`` compares the processes of a job,
``counters``, ``misses`` and ``listeners`` report on it.
``attn_tune.kernels.dispatch`` is the way in. Every name here is loaded when it is first used.
"""

import importlib
from typing import Any

_PUBLIC = {
    "use_pack": "layers",
    "use_overrides": "layers",
    "reload": "layers",
    "stats": "counters",
    "reset_stats": "counters",
    "set_miss_mode": "misses",
    "add_listener": "listeners",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'attn_tune.runtime' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"attn_tune.runtime.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
