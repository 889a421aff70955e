"""Sweep one shape, export the winners as a pack, and call attention with the pack.

python examples/tune_and_use.py [FOLDER]

FOLDER gets the grid, the lab database and the pack; by default a temporary one.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

import attn_tune

GRID = """
summary = "my model"
op = "flash_attention"

[lengths]
train = ["2x128"]

[[layer]]
name = "my-layer"
source = "my-model/config.json"
n = 4
k = 2
h = 32
v = 32
dtype = "float32"
causal = 1
"""


def attn_tune_command(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "attn_tune", *map(str, words)], check=True)


folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
grid, database, pack = folder / "my-model.toml", folder / "lab.db", folder / "my-pack"
grid.write_text(GRID)

# Only the forward of the XLA kernel, so that this example runs anywhere; leave -k and -d out for all that there is.
attn_tune_command("sweep", "--grid", grid, "--db", database, "-k", "xla", "-d", "fwd", "--max-trials", "2")
# The gate refuses rows measured on a busy host. A release would sweep again in quiet instead.
attn_tune_command("export", pack, "--db", database, "--no-gate", "an example")

query = jax.random.normal(jax.random.key(0), (2, 128, 4, 32), jnp.float32)
key = jax.random.normal(jax.random.key(1), (2, 128, 2, 32), jnp.float32)
with attn_tune.use_pack(pack):
    out = jax.jit(lambda q, k: attn_tune.flash_attention(q, k, k, causal=True))(query, key)
    signature = "flash_attention/v1 b=2 t=128 s=128 n=4 k=2 h=32 v=32 dtype=float32 causal=1"
    print(attn_tune.explain("flash_attention", signature))
print("out", out.shape)
