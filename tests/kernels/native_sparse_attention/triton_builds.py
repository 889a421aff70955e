"""Compiles the Triton kernels without a GPU; prints a JSON line per launch. Not interpreted: a script."""

from attn_tune.kernels.native_sparse_attention.triton import SPEC
from attn_tune.ops.native_sparse_attention.op import OP
from tests.kernels.untuned_builds import print_launches

_PAPER = "native_sparse_attention/v1 b=1 t=8192 s=8192 n=64 k=4 h=128 v=128 top=16 dtype=bfloat16"
BUILDS = {
    "paper-90": (_PAPER, 90),
    "paper-80": (_PAPER, 80),
    "wide-90": (_PAPER.replace("h=128", "h=256").replace("v=128", "v=256"), 90),
    "small-90": (_PAPER.replace("n=64", "n=4").replace("dtype", "block=16 dtype") + " ragged=1", 90),
    "float32-90": (_PAPER.replace("bfloat16", "float32"), 90),
    "unequal-90": (_PAPER.replace("h=128", "h=192").replace("n=64", "n=48"), 90),
}


if __name__ == "__main__":
    print_launches(SPEC, OP, BUILDS)
