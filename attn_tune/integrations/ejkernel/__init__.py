"""ejkernel's functions over our ops: switch by importing them from here instead of ``ejkernel.modules``.

Names, order, kinds and defaults of arguments are those of ejkernel 0.0.80.3, which need not be installed. An argument
that an op cannot honour is refused by name, with the way out; one that only tunes ejkernel's own kernels is left out
with one ``AttnTuneWarning``. ``platform`` is ``"xla"``, ``"triton"`` or ``"auto"``; of
other names the lookup chooses. ``docs/names-of-others.md`` has the table of names.
"""

from attn_tune.integrations.ejkernel.delta_rule import (
    gated_delta_rule,
    gdr_attention,
    kda_attention,
    kernel_delta_attention,
    ragged_gated_delta_rule,
)
from attn_tune.integrations.ejkernel.dense import (
    attention,
    flash_attention,
    flash_mla,
    ragged_decode_attention,
    scaled_dot_product_attention,
)
from attn_tune.integrations.ejkernel.linear import (
    gla_attention,
    lightning_attention,
    mean_pooling,
    recurrent_attention,
)
from attn_tune.integrations.ejkernel.native_sparse import native_sparse_attention
from attn_tune.integrations.ejkernel.packed_cache import (
    multi_latent_ragged_page_attention,
    multi_latent_ragged_page_attention_v2,
    ragged_page_attention_v3,
)
from attn_tune.integrations.ejkernel.paged import (
    chunked_prefill_paged_decode,
    decode_attention,
    page_attention,
    prefill_page_attention,
    ragged_page_attention,
    ragged_page_attention_v2,
    unified_attention,
)
from attn_tune.integrations.ejkernel.sparse import blocksparse_attention, deepseek_attn, ring_attention

__all__ = [
    "attention",
    "blocksparse_attention",
    "chunked_prefill_paged_decode",
    "decode_attention",
    "deepseek_attn",
    "flash_attention",
    "flash_mla",
    "gated_delta_rule",
    "gdr_attention",
    "gla_attention",
    "kda_attention",
    "kernel_delta_attention",
    "lightning_attention",
    "mean_pooling",
    "multi_latent_ragged_page_attention",
    "multi_latent_ragged_page_attention_v2",
    "native_sparse_attention",
    "page_attention",
    "prefill_page_attention",
    "ragged_decode_attention",
    "ragged_gated_delta_rule",
    "ragged_page_attention",
    "ragged_page_attention_v2",
    "ragged_page_attention_v3",
    "recurrent_attention",
    "ring_attention",
    "scaled_dot_product_attention",
    "unified_attention",
]
