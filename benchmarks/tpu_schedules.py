"""Compiles tokamax's splash attention for an absent TPU and keeps the schedules, for ``tpu_predictions.py``.

Usage, with tokamax and libtpu installed: python benchmarks/tpu_schedules.py tpu-v6e OUT.jsonl [HEAD_DIM...]

One line a config: what was compiled, and its schedule. Lines that are there are not made again. A schedule does not
depend on how many blocks there are, but on whether there is more than one: ``length`` is 4096 tokens, which stands for
all that have several, or that of the only block. The configs are those of
tokamax's own search at 1024 tokens and more, with one or two of its eight layouts.
"""

import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from attn_tune.tuner.offline.compilers.launches import launches_of
from attn_tune.tuner.offline.compilers.tpu import (
    compile_launch,
    compiler_environment,
    seeming,
    target_device,
)
from attn_tune.tuner.offline.predict.schedule import schedule_to_dict
from attn_tune.tuner.offline.target import find_target
from attn_tune.tuner.run.temporary_folder import TemporaryFolder, in_memory

LENGTH, TOKENS, WIDTH = 4096, 16384, 2048
BLOCKS, COMPUTE = (1024, 2048), (512, 1024, 256)
# As tokamax numbers them: 1 has the head dim innermost, 2 the length; of queries, keys, values.
PLAIN = (1, 1, 1)
TURNED = {"tpu-v6e": {64: (2, 2, 2)}, "tpu-v5p": {64: (1, 2, 2), 128: (1, 2, 1), 256: (1, 2, 1)}}
USUAL = (2, 1, 1)


def main(target: str, out: Path, head_dims: list[int]) -> None:
    """Compiles what is not in ``out`` yet."""
    lines = out.read_text().splitlines() if out.exists() else []
    done = {json.dumps(json.loads(line)["config"]) for line in lines}
    with TemporaryFolder("attn-tune-target-", in_memory()) as scratch:
        os.environ.update(compiler_environment(scratch.path))
        for config in configs(target, head_dims):
            if json.dumps(config) in done:
                continue
            found = compile_one(config, find_target(target).topology, scratch.path)
            with out.open("a") as file:
                file.write(json.dumps({"config": config} | found) + "\n")


def configs(target: str, head_dims: list[int]) -> Iterator[dict]:
    """Small blocks first. Plain layouts only with the smallest: layouts cost the same share of all blocks."""
    least = min(BLOCKS)
    sizes = sorted(itertools.product(BLOCKS, BLOCKS), key=lambda pair: pair[0] * pair[1])
    masks = tuple(itertools.product(head_dims, (True, False)))
    classes = [(LENGTH, q, kv) for q, kv in sizes]
    classes.insert(1, (least, least, least))
    for (length, block_q, block_kv), (head_dim, causal) in itertools.product(classes, masks):
        layouts = [TURNED.get(target, {}).get(head_dim, USUAL)]
        if block_q == block_kv == least and PLAIN not in layouts:
            layouts.append(PLAIN)
        for layout, scheduler, compute in itertools.product(layouts, (True, False), COMPUTE):
            yield {
                "length": length,
                "head_dim": head_dim,
                "causal": causal,
                "block_q": block_q,
                "block_kv": block_kv,
                "block_kv_compute": compute,
                "layouts": list(layout),
                "scheduler": scheduler,
            }


def compile_one(config: dict, topology: str, folder: str) -> dict:
    """The schedule of the forward's launch, or the compiler's error."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import SingleDeviceSharding
    from tokamax._src.ops.experimental.tpu.splash_attention import (
        splash_attention_kernel as splash,
        splash_attention_mask as masks,
    )

    length, head_dim = config["length"], config["head_dim"]
    mask = (masks.CausalMask if config["causal"] else masks.FullMask)((length, length))
    q_layout, k_layout, v_layout = map(splash.QKVLayout, config["layouts"])
    chosen = splash.SplashConfig(
        block_q=config["block_q"],
        block_kv=config["block_kv"],
        block_kv_compute=config["block_kv_compute"],
        q_layout=q_layout,
        k_layout=k_layout,
        v_layout=v_layout,
        use_experimental_scheduler=config["scheduler"],
    )
    kernel = splash._make_splash_attention(mask, config=chosen, is_mqa=False, q_seq_shards=1)
    device = target_device(topology)
    shape = (TOKENS // length * WIDTH // head_dim, length, head_dim)
    array = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=SingleDeviceSharding(device))
    with seeming(device):
        (launch,) = launches_of(jax.jit(kernel).trace(array, array, array).jaxpr.jaxpr) or ()
        try:
            schedule = compile_launch(launch, topology, folder)
        except jax.errors.JaxRuntimeError as error:
            return {"error": str(error)[:200]}
    return {"schedules": [schedule_to_dict(schedule)]}


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), [int(d) for d in sys.argv[3:]] or [128, 64, 256])
