"""Problems on which every op and kernel of the registry is tried, and the devices that kernels are asked about."""

import dataclasses
import importlib.metadata

from attn_tune.devices.identity import device_from_kind
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema import Device

_FLASH = "flash_attention/v1 b={b} t={t} s={s} n={n} k={k} h=16 v={v} dtype={dtype}"
_DENSE = "attention/v1 b=2 t=45 s=19 n=4 k=2 h=16 v=16 dtype={dtype}"

# Small enough to be computed here. Among them rows that see nothing, groups of heads, and every kind of output.
SIGNATURES = (
    _FLASH.format(b=1, t=200, s=130, n=2, k=2, v=16, dtype="bfloat16") + " causal=1",
    _FLASH.format(b=2, t=33, s=47, n=4, k=2, v=24, dtype="float16") + " bias=bnts cap=1",
    _FLASH.format(b=2, t=40, s=40, n=4, k=2, v=16, dtype="float32") + " seg=1 sinks=1 drop=1",
    _DENSE.format(dtype="float32") + " causal=1 cap=1",
    _DENSE.format(dtype="bfloat16") + " mask=b1ts bias=1nts sinks=1 drop=1",
    "block_sparse_attention/v1 b=2 t=60 s=75 n=4 k=2 h=16 v=24 dtype=float32 causal=1 bq=16 bk=32 blocks=bn cap=1",
    "paged_decode/v1 b=3 t=2 s=40 n=4 k=2 h=16 v=16 page=8 dtype=bfloat16 kv=float8_e4m3fn kvscale=token left=9"
    " workload=uni",
    "paged_decode/v1 b=3 t=2 s=40 n=4 k=1 h=48 v=32 page=8 layout=latent dtype=bfloat16 kv=int8 kvscale=token",
    "merge_attention/v1 r=30 n=3 v=24 parts=3 dtype=float32 out=bfloat16",
    "paged_append/v1 b=3 t=12 k=2 h=16 v=24 page=8 dtype=bfloat16 kv=float8_e4m3fn kvscale=token ragged=1",
    "ragged_paged/v1 b=5 t=30 s=40 n=4 k=2 h=16 v=16 page=8 dtype=bfloat16 kv=float8_e4m3fn kvscale=token left=9"
    " sinks=1 workload=mix",
    "gated_delta_rule/v1 b=2 t=37 n=4 k=2 h=16 v=24 dtype=float32 state=both",
    "gated_delta_rule/v1 b=5 t=50 n=3 k=1 h=16 v=16 dtype=bfloat16 gate=none state=out ragged=1 workload=mix",
    "linear_attention/v1 b=2 t=37 n=4 k=2 h=16 v=24 dtype=bfloat16 gate=constant state=both",
    "gla/v1 b=2 t=21 n=4 k=2 h=16 v=24 dtype=float32 state=both",
    "kda/v1 b=5 t=30 n=3 k=1 h=16 v=16 dtype=float32 state=out ragged=1 workload=mix",
    "sparse_mla/v1 b=2 t=5 s=40 n=4 h=48 v=32 top=12 dtype=bfloat16 sinks=1",
    "native_sparse_attention/v1 b=2 t=30 s=40 n=4 k=2 h=16 v=24 top=3 block=16 dtype=bfloat16",
    "native_sparse_attention/v1 b=3 t=40 s=40 n=4 k=2 h=16 v=16 top=2 block=16 dtype=float32 ragged=1 workload=random",
    "indexer/v1 b=2 t=9 s=40 n=4 h=16 dtype=float32",
    "foreign/v1 t=64",
    "probe_paged/v1 b=3 s=64 n=2 h=16 page=8 dtype=float32 workload=uni",
    "probe_recurrent/v1 b=2 t=32 n=2 k=8 v=16 dtype=float32 workload=reset",
    "probe_loss/v1 t=64 h=16 w=128 top=4 dtype=float32",
)
# The last of each op.
OF_EACH_OP = tuple({text.partition("/")[0]: text for text in SIGNATURES}.values())


def flash(T=4096, S=None, H=128, V=None, N=16, K=None, B=2, **flags) -> Problem:
    return Problem(
        batch=B, q_len=T, kv_len=S or T, num_q_heads=N, num_kv_heads=K or N, head_dim=H, v_head_dim=V or H,
        scale=H**-0.5, **flags,
    )  # fmt: skip


def cuda(capability=90, **more) -> Device:
    return Device(platform="cuda", family=f"sm_{capability}", variant="nvidia-test", **more)


TILED = {
    "plain": flash(),
    "h64": flash(H=64),
    "h256": flash(H=256),
    "h80": flash(H=80),
    "mla": flash(H=192, V=128),
    "float32": flash(dtype="float32"),
    "float32-h256": flash(dtype="float32", H=256),
    "one-row": flash(T=1, S=3000),
    "short": flash(T=100, S=70),
    "bias-and-mask": flash(bias_dims="bnts", mask_dims="b1ts"),
    "narrow-h64": flash(H=64, causal=True, window=(127, None)),
    "narrow": flash(causal=True, window=(1023, None)),
}
# Few queries and many keys.
SHORT = {
    "plain": flash(T=64, S=32768, N=32, K=8, B=1),
    "one-row": flash(T=1, S=65536, N=64, K=8, H=64, B=4),
    "wide": flash(T=128, S=8192, N=16, K=8, H=256, B=1),
    "odd": flash(T=77, S=5001, N=6, K=2, H=80, B=2),
    "window": flash(T=16, S=65536, N=32, K=8, B=1, causal=True, window=(1000, None)),
    "float32": flash(T=16, S=8192, N=8, B=1, dtype="float32"),
    "few-keys": flash(T=33, S=70, N=4, K=2, H=32),
}
ON_HOPPER = {
    "plain": flash(B=4, N=16, K=16),
    "causal": flash(causal=True, N=32, K=8),
    "h64": flash(H=64, N=32, K=32),
    "h256": flash(H=256, N=8, K=1, causal=True),
    "long": flash(B=1, T=16384),
    "narrow": flash(B=16, T=1024, causal=True, window=(127, None)),
    "one": flash(B=1, T=1, S=1, N=1, K=1, H=64),
    "odd": flash(B=3, T=17, S=4097, N=5, K=1, causal=True),
    "more-queries": flash(B=2, T=700, S=300, N=6, K=3, causal=True),
}
_SMALL = flash(T=512, N=4, K=2)
_LLAMA = flash(T=8192, N=32, K=8, B=8, causal=True)
LIBRARIES = {
    "full": _SMALL,
    "causal": dataclasses.replace(_SMALL, causal=True),
    "float16": dataclasses.replace(_SMALL, dtype="float16"),
    "longer-keys": dataclasses.replace(_SMALL, q_len=128, kv_len=1024),
    "sinks": dataclasses.replace(_SMALL, has_sinks=True),
    "narrow": flash(T=512, N=4, K=2, H=64, causal=True),
    "wide": flash(T=512, N=4, K=2, H=256),
    "lse-gradient": dataclasses.replace(_SMALL, has_lse_gradient=True),
    "llama": _LLAMA,
    "llama-h64": dataclasses.replace(_LLAMA, head_dim=64, v_head_dim=64),
    "llama-h256": dataclasses.replace(_LLAMA, head_dim=256, v_head_dim=256),
    "one-query": dataclasses.replace(_LLAMA, batch=1, q_len=1, kv_len=4096),
    "odd": dataclasses.replace(_SMALL, q_len=389, kv_len=197, head_dim=80, v_head_dim=72),
    "mask": dataclasses.replace(_SMALL, mask_dims="b1ts"),
    "bias": dataclasses.replace(_SMALL, bias_dims="1nts"),
    "float32": dataclasses.replace(_SMALL, dtype="float32"),
}
ON_TPU = {
    "llama": _LLAMA,
    "one-query": dataclasses.replace(_LLAMA, q_len=1, kv_len=300),
    "float32-wide": dataclasses.replace(_LLAMA, dtype="float32", head_dim=256, v_head_dim=256),
    "long": dataclasses.replace(_LLAMA, batch=1, q_len=131072, kv_len=131072),
}
LENGTHS = {str(n): flash(T=n, B=1, N=8, causal=True) for n in (1, 100, 4096, 131072)}

H200 = device_from_kind("nvidia-h200")
CUDA = tuple(cuda(c) for c in (80, 86, 89, 90, 100, 120))
TPUS = tuple(device_from_kind(f"tpu-{name}") for name in ("v4", "v5e", "v5p", "v6e", "v7x"))
CPU = Device(platform="cpu", family="x86_64", variant="cpu-x86_64")


def with_libraries(patch) -> None:
    """As if the known versions of other projects' kernels were here, whether or not they are."""
    version, known = (
        importlib.metadata.version,
        {"tokamax": "0.0.17", "fa4-jax": "0.1.0", "nvidia-cutlass-dsl": "4.8.1"},
    )
    patch.setattr(importlib.metadata, "version", lambda n: known.get(n) or version(n))
