"""Problems that no pack was tuned for, drawn by a seed: the grid files of ``unseen_shapes.py``."""

import json
import math
import random
from collections.abc import Iterator, Mapping
from typing import Any

# Query heads, key heads, head dim: published configurations, Hugging Face name beside them.
MODELS: Mapping[str, tuple[int, int, int]] = {
    "openai-community/gpt2": (12, 12, 64),
    "google/vit-huge-patch14": (16, 16, 80),
    "openai/whisper-large-v3": (20, 20, 64),
    "Qwen/Qwen2.5-0.5B": (14, 2, 64),
    "HuggingFaceTB/SmolLM2-135M": (9, 3, 64),
    "meta-llama/Llama-3.2-1B": (32, 8, 64),
    "meta-llama/Llama-3.2-3B": (24, 8, 128),
    "Qwen/Qwen2.5-7B": (28, 4, 128),
    "Qwen/Qwen2.5-14B": (40, 8, 128),
    "microsoft/Phi-3-mini": (32, 32, 96),
    "meta-llama/Llama-2-7B": (32, 32, 128),
    "google/gemma-7b": (16, 16, 256),
    "google/gemma-2-2b": (8, 4, 256),
    "tiiuae/falcon-7b": (71, 1, 64),
    "mistralai/Mistral-Small-24B": (32, 8, 128),
}
# Drawn with equal chance; half of the problems have none.
FEATURES: Mapping[str, Mapping[str, int]] = {
    "window": {"left": 1023},
    "cap": {"cap": 1},
    "sinks": {"sinks": 1},
    "documents": {"seg": 1},
    "padding": {"seg": 1, "len": 1},
}
KINDS = ("train", "encode", "prefill", "decode")
# Tokens of one call, queries and keys: what fits the card with its gradients and references.
MOST_QUERIES, MOST_KEYS = 32_768, 262_144


def draw(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """``count`` layers of a grid file, all different: the kinds of call in turn, everything else by ``seed``."""
    chance, seen = random.Random(seed), set()
    while len(seen) < count:
        kind = KINDS[len(seen) % len(KINDS)]
        model = chance.choice(sorted(MODELS))
        n, k, h = MODELS[model]
        feature = chance.choice(sorted(FEATURES)) if chance.random() < 0.5 else ""
        t, s = _lengths(chance, kind)
        rows = MOST_KEYS // s if kind == "decode" else MOST_QUERIES // s
        batch = max(1, min(rows, 1 << chance.randrange(8)))
        layer = {"b": batch, "t": t, "s": s, "n": n, "k": k, "h": h, "v": h, "dtype": "bfloat16"}
        # With one query a causal mask hides nothing.
        if kind != "encode" and t > 1:
            layer["causal"] = 1
        layer |= FEATURES.get(feature, {})
        name = "-".join(filter(None, (model.rpartition("/")[2].lower(), kind, feature)))
        key = json.dumps(layer, sort_keys=True)
        if key in seen:
            continue
        seen.add(key)
        source = f"https://huggingface.co/{model}"
        name = f"{name}-{batch}x{t}x{s}".replace(".", "_")
        directions = ["fwd"] if kind == "decode" else ["fwd", "bwd"]
        yield {"name": name, "source": source, "directions": directions, **layer}


def _lengths(chance: random.Random, kind: str) -> tuple[int, int]:
    """Queries and keys, uniform in their logarithm."""

    def between(low: int, high: int) -> int:
        length = round(math.exp(chance.uniform(math.log(low), math.log(high))))
        # Some callers pad to a round number, most data does not come so.
        return -(-length // 128) * 128 if length > 128 and chance.random() < 0.4 else length

    if kind == "decode":
        return chance.choice((1, 1, 2, 4, 8)), between(64, 32_768)
    if kind == "prefill":
        keys = between(512, 32_768)
        return min(between(16, 2048), keys), keys
    length = between(32, 4096 if kind == "encode" else 32_768)
    return length, length


def to_toml(seed: int, count: int) -> str:
    """The grid file of ``draw``."""
    summary = f"{count} shapes that no pack was tuned for, drawn with seed {seed}"
    lines = [f'summary = "{summary}"', 'op = "flash_attention"', ""]
    for layer in draw(seed, count):
        lines += [
            "[[layer]]",
            *(f"{key} = {json.dumps(value)}" for key, value in layer.items()),
            "",
        ]
    return "\n".join(lines)
