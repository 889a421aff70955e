"""Tables as tokamax writes them."""

import json

ARGUMENTS = {
    "q": "bf16[4,4096,32,128]",
    "k": "bf16[4,4096,8,128]",
    "v": "bf16[4,4096,8,128]",
    "precision": [["DEFAULT", "DEFAULT"], ["DEFAULT", "DEFAULT"]],
    "logits_dtype": "float32",
    "logits_scale": 0.08838834764831843,
    "bias": None,
    "logits_soft_cap": None,
    "mask": {"bool_mask": None, "causal_mask": {"offset": 0, "window_size": None}},
    "dropout_mask": None,
    "dropout_rate": 0.0,
    "paging_info": None,
    "normalize_output": True,
    "return_residuals": False,
}
CONFIG = {"block_q": 64, "block_k": 32, "num_warps": 4, "num_stages": 2, "block_d": None, "split_k": 1}


def timed(config, *times):
    return {json.dumps(config): {"compile_time_ms": 1.0, "evaluation_times_ms": list(times), "metadata": {}}}


def table(tmp_path, arguments=ARGUMENTS, configs=None, name="pallas_triton_flash_attention"):
    """A file of tokamax's own tables."""
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps({json.dumps(arguments): timed(CONFIG, 1.0) if configs is None else configs}))
    return path
