"""Compiles tokamax's splash attention for a TPU that is not here and keeps the schedules, for ``tpu_predictions.py``.

Usage, with tokamax and libtpu installed: python benchmarks/tpu_schedules.py tpu-v6e OUT.jsonl [HEAD_DIM...]

One line a config: what was compiled, and its schedule. Lines that are there are not made again. A schedule does not
depend on the length, so that one, 4096 tokens, stands for all whose blocks are whole.
"""

import itertools
import json
import os
import sys
from pathlib import Path

from attn_tune.tuner.predict.schedule import schedule_to_dict
from attn_tune.tuner.targets import find_target
from attn_tune.tuner.targets.tpu import (
    clear_dump,
    compiler_environment,
    dump_folder,
    dumped_schedules,
    seeming,
    target_device,
)

LENGTH, TOKENS, WIDTH = 4096, 16384, 2048
BLOCKS, COMPUTE = (1024, 2048), (512, 1024, 256)


def main(target: str, out: Path, head_dims: list[int]) -> None:
    """Compiles what is not in ``out`` yet."""
    folder = dump_folder()
    os.environ.update(compiler_environment(folder))
    lines = out.read_text().splitlines() if out.exists() else []
    done = {json.dumps(json.loads(line)["config"]) for line in lines}
    for head_dim, causal in itertools.product(head_dims, (True, False)):
        for compute, block_q, block_kv in itertools.product(COMPUTE, BLOCKS, BLOCKS):
            config = {
                "head_dim": head_dim,
                "causal": causal,
                "block_q": block_q,
                "block_kv": block_kv,
                "block_kv_compute": compute,
            }
            if json.dumps(config) in done:
                continue
            clear_dump(folder)
            compile_one(config, find_target(target).topology)
            schedules = [schedule_to_dict(s) for s in dumped_schedules(folder) if s.multiplies]
            with out.open("a") as file:
                file.write(json.dumps({"config": config, "schedules": schedules}) + "\n")


def compile_one(config: dict, topology: str) -> None:
    """One forward of 16384 tokens and heads of 2048 elements in all, as in the published table."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding
    from tokamax._src.ops.experimental.tpu.splash_attention import (
        splash_attention_kernel as splash,
        splash_attention_mask as masks,
    )

    # The winners of heads narrower than the lanes have the length innermost.
    layout = splash.QKVLayout.SEQ_MINOR if config["head_dim"] < 128 else splash.QKVLayout(1)
    mask = (masks.CausalMask if config["causal"] else masks.FullMask)((LENGTH, LENGTH))
    chosen = splash.SplashConfig(
        block_q=config["block_q"],
        block_kv=config["block_kv"],
        block_kv_compute=config["block_kv_compute"],
        q_layout=layout,
        k_layout=layout,
        v_layout=layout,
    )
    kernel = splash._make_splash_attention(mask, config=chosen, is_mqa=False, q_seq_shards=1)
    device = target_device(topology)
    shape = (TOKENS // LENGTH, WIDTH // config["head_dim"], LENGTH, config["head_dim"])
    array = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=SingleDeviceSharding(device))
    with seeming(device):
        traced = jax.jit(jax.vmap(kernel)).trace(array, array, array)
        traced.lower(lowering_platforms=("tpu",)).compile()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [int(d) for d in sys.argv[3:]] or [128, 64, 256])
