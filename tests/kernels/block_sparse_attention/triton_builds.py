"""Compiles the Triton kernels without a GPU; prints a JSON line per launch. Not interpreted: a script."""

from attn_tune.kernels.block_sparse_attention.triton import SPEC
from attn_tune.ops.block_sparse_attention.op import OP
from tests.kernels.untuned_builds import print_launches

_LLAMA = "block_sparse_attention/v1 b=1 t=8192 s=8192 n=32 k=8 h=128 v=128 dtype=bfloat16 causal=1"
BUILDS = {
    "llama-90": (_LLAMA, 90),
    "llama-80": (_LLAMA, 80),
    "narrow-90": (_LLAMA.replace("=128", "=64") + " bq=64 bk=64", 90),
    "of-heads-90": (_LLAMA.replace(" causal=1", " bq=64 bk=64 blocks=1n seg=1 cap=1"), 90),
}


if __name__ == "__main__":
    print_launches(SPEC, OP, BUILDS)
