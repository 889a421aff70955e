"""Tuning attention kernels for JAX, with proof. Every name here is loaded when it is first used.

The public functions of ops come from the ops' declarations (``Op.functions``), those of installed packages included.
"""

import importlib
from typing import TYPE_CHECKING, Any

# The names that belong to no op. They win over an op's function of the same name.
_PUBLIC = {
    # Other libraries' functions, over the ops.
    "dot_product_attention": "attn_tune.api.dot_product",
    # Compositions of ops.
    "SharedPrefix": "attn_tune.api.serving.cascade_attention",
    "cascade_attention": "attn_tune.api.serving.cascade_attention",
    "ring_attention": "attn_tune.api.context_parallel.ring_attention",
    "merge_over_axis": "attn_tune.api.context_parallel.merge_over_axis",
    "local_positions": "attn_tune.api.context_parallel.layouts",
    "striped_shard": "attn_tune.api.context_parallel.layouts",
    "striped_unshard": "attn_tune.api.context_parallel.layouts",
    "zigzag_shard": "attn_tune.api.context_parallel.layouts",
    "zigzag_unshard": "attn_tune.api.context_parallel.layouts",
    # What callers of the ops and authors of kernels use.
    "MaskInfo": "attn_tune.ops.masks.mask_info",
    "Mode": "attn_tune.api.modes",
    "mode_of": "attn_tune.api.modes",
    "repeat_kv_heads": "attn_tune.ops.fields.heads",
    "expand_heads": "attn_tune.ops.fields.heads",
    "causal_mask": "attn_tune.ops.masks.visibility",
    "split_mask": "attn_tune.ops.masks.visibility",
    "combine_masks": "attn_tune.ops.masks.visibility",
    "stable_spec": "attn_tune.api.meshes.partition_specs",
    "KernelSpec": "attn_tune.kernels.spec",
    "Op": "attn_tune.ops.contract",
    "Search": "attn_tune.kernels.spec",
    # The lookup.
    "choose": "attn_tune.runtime.lookup.dispatch",
    "lookup": "attn_tune.runtime.lookup.dispatch",
    "explain": "attn_tune.runtime.lookup.dispatch",
    "use_config": "attn_tune.runtime.overrides.entries",
    "use_overrides": "attn_tune.runtime.active.layers",
    "use_pack": "attn_tune.runtime.active.layers",
    "freeze": "attn_tune.runtime.overrides.freeze",
    "reload": "attn_tune.runtime.active.layers",
    "read_pack": "attn_tune.packs.reader",
    "stats": "attn_tune.runtime.lookup_counters",
    "reset_stats": "attn_tune.runtime.lookup_counters",
    "add_listener": "attn_tune.runtime.answer_listeners",
    "set_miss_mode": "attn_tune.runtime.misses",
    "set_rank_deadline": "attn_tune.runtime.rank_agreement",
    "current_device": "attn_tune.devices.identity",
    "current_environment": "attn_tune.devices.environments",
    # Tuning.
    "grid_point": "attn_tune.tuner.plan.grid",
    "sweep": "attn_tune.tuner.run.sweep",
    # Errors and the warning.
    "AttnTuneWarning": "attn_tune.schema.errors",
    "AttnTuneError": "attn_tune.schema.errors",
    "UsageError": "attn_tune.schema.errors",
    "UnsupportedError": "attn_tune.schema.errors",
    "NoDataError": "attn_tune.schema.errors",
    "LockfileError": "attn_tune.schema.errors",
    "DisagreementError": "attn_tune.schema.errors",
    "StorageError": "attn_tune.schema.errors",
    "IntegrityError": "attn_tune.schema.errors",
}

if TYPE_CHECKING:
    # The same names once more (a test compares), and those of this package's ops, for what reads types and runs
    # nothing: type checkers and editors.
    from attn_tune.api.attention import attention as attention
    from attn_tune.api.block_sparse_attention import block_sparse_attention as block_sparse_attention
    from attn_tune.api.context_parallel.layouts import (
        local_positions as local_positions,
        striped_shard as striped_shard,
        striped_unshard as striped_unshard,
        zigzag_shard as zigzag_shard,
        zigzag_unshard as zigzag_unshard,
    )
    from attn_tune.api.context_parallel.merge_over_axis import merge_over_axis as merge_over_axis
    from attn_tune.api.context_parallel.ring_attention import ring_attention as ring_attention
    from attn_tune.api.dot_product import dot_product_attention as dot_product_attention
    from attn_tune.api.flash_attention import (
        create_shard_map_wrapper as create_shard_map_wrapper,
        flash_attention as flash_attention,
    )
    from attn_tune.api.linear.gated_delta_rule import gated_delta_rule as gated_delta_rule
    from attn_tune.api.linear.gla import gla as gla
    from attn_tune.api.linear.kda import kda as kda
    from attn_tune.api.linear.linear_attention import linear_attention as linear_attention
    from attn_tune.api.meshes.partition_specs import stable_spec as stable_spec
    from attn_tune.api.modes import (
        Mode as Mode,
        mode_of as mode_of,
    )
    from attn_tune.api.serving.cascade_attention import (
        SharedPrefix as SharedPrefix,
        cascade_attention as cascade_attention,
    )
    from attn_tune.api.serving.latents import pack_latents as pack_latents
    from attn_tune.api.serving.merge_attention import merge_attention as merge_attention
    from attn_tune.api.serving.mla_decode import mla_decode as mla_decode
    from attn_tune.api.serving.mla_ragged import mla_ragged as mla_ragged
    from attn_tune.api.serving.paged_append import paged_append as paged_append
    from attn_tune.api.serving.paged_decode import paged_decode as paged_decode
    from attn_tune.api.serving.ragged_paged import ragged_paged as ragged_paged
    from attn_tune.api.sparse.compressed import (
        compressed_attention as compressed_attention,
        mean_pooling as mean_pooling,
    )
    from attn_tune.api.sparse.indexer import indexer as indexer
    from attn_tune.api.sparse.indexer_topk import indexer_topk as indexer_topk
    from attn_tune.api.sparse.native_sparse_attention import native_sparse_attention as native_sparse_attention
    from attn_tune.api.sparse.select_blocks import select_blocks as select_blocks
    from attn_tune.api.sparse.sparse_mla import sparse_mla as sparse_mla
    from attn_tune.devices.environments import current_environment as current_environment
    from attn_tune.devices.identity import current_device as current_device
    from attn_tune.kernels.spec import KernelSpec as KernelSpec, Search as Search
    from attn_tune.ops.contract import Op as Op
    from attn_tune.ops.fields.heads import (
        expand_heads as expand_heads,
        repeat_kv_heads as repeat_kv_heads,
    )
    from attn_tune.ops.masks.mask_info import MaskInfo as MaskInfo
    from attn_tune.ops.masks.visibility import (
        causal_mask as causal_mask,
        combine_masks as combine_masks,
        split_mask as split_mask,
    )
    from attn_tune.packs.reader import read_pack as read_pack
    from attn_tune.runtime.active.layers import (
        reload as reload,
        use_overrides as use_overrides,
        use_pack as use_pack,
    )
    from attn_tune.runtime.answer_listeners import add_listener as add_listener
    from attn_tune.runtime.lookup.dispatch import (
        choose as choose,
        explain as explain,
        lookup as lookup,
    )
    from attn_tune.runtime.lookup_counters import (
        reset_stats as reset_stats,
        stats as stats,
    )
    from attn_tune.runtime.misses import set_miss_mode as set_miss_mode
    from attn_tune.runtime.overrides.entries import use_config as use_config
    from attn_tune.runtime.overrides.freeze import freeze as freeze
    from attn_tune.runtime.rank_agreement import set_rank_deadline as set_rank_deadline
    from attn_tune.schema.errors import (
        AttnTuneError as AttnTuneError,
        AttnTuneWarning as AttnTuneWarning,
        DisagreementError as DisagreementError,
        IntegrityError as IntegrityError,
        LockfileError as LockfileError,
        NoDataError as NoDataError,
        StorageError as StorageError,
        UnsupportedError as UnsupportedError,
        UsageError as UsageError,
    )
    from attn_tune.tuner.plan.grid import grid_point as grid_point
    from attn_tune.tuner.run.sweep import sweep as sweep

    __version__: str
else:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            from importlib.metadata import version

            return version("attn-tune")
        if name == "__all__":
            return sorted({*_PUBLIC, *_functions_of_ops()})
        module = _PUBLIC.get(name)
        if module is None and not name.startswith("_"):
            module = _module_of(name)
        if module is None:
            raise AttributeError(f"module 'attn_tune' has no attribute {name!r}")
        value = getattr(importlib.import_module(module), name)
        globals()[name] = value
        return value


def _functions_of_ops() -> dict[str, str]:
    """The modules of the ops' public functions, by the function's name."""
    from attn_tune.ops.registry import ops

    return {name: module for op in ops().values() for name, module in _functions_of(op).items()}


def _functions_of(op: Any) -> dict[str, str]:
    paths = (path.partition(":") for path in op.functions)
    return {name: module for module, _, name in paths}


def _module_of(function: str) -> str | None:
    """The module of an op's public function. Most are called like their op, which alone is loaded then."""
    from attn_tune.ops.registry import get_op
    from attn_tune.schema.errors import UsageError

    try:
        found = _functions_of(get_op(function)).get(function)
    except UsageError:
        found = None
    return found or _functions_of_ops().get(function)


def __dir__() -> list[str]:
    return sorted({*_PUBLIC, *_functions_of_ops(), "__version__"})
