"""Grids: the presets say what the models say, and a malformed file is named down to its key."""

import os
from pathlib import Path

import pytest

from attn_tune.ops.registry import get_op
from attn_tune.runtime.lookup.dispatch import explain
from attn_tune.schema import StorageError, UsageError
from attn_tune.tuner.plan.case import merge_points
from attn_tune.tuner.plan.grid import ALL, grid_names, grid_point, load_grid
from attn_tune.tuner.plan.grid_file import write_grid
from attn_tune.tuner.plan.lengths import Lengths, parse_length

# Figures of the public configurations, retyped here apart from the TOML: (query heads, key/value heads, head dim).
FIGURES = {
    "llama3-8b": (32, 8, 128),
    "llama3-70b": (64, 8, 128),
    "qwen3-0.6b": (16, 8, 128),
    "qwen3-8b": (32, 8, 128),
    "qwen3-32b": (64, 8, 128),
    "qwen3-30b-a3b": (32, 4, 128),
    "mistral-7b": (32, 8, 128),
    "gemma2-9b": (16, 8, 256),
    "gemma2-27b": (32, 16, 128),
    "gemma3-4b": (8, 4, 256),
    "gemma3-12b": (16, 8, 256),
    "gemma3-27b": (32, 16, 128),
    "gpt-oss-20b": (64, 8, 64),
    "gpt-oss-120b": (64, 8, 64),
}
# Of latent attention: query heads, the latent (kv_lora_rank) and the rotary part of a key (qk_rope_head_dim).
LATENTS = {"deepseek-v3": (128, 512, 64), "kimi-k2": (64, 512, 64)}
# What is visible to the left in a local layer: the published window counts the token itself.
WINDOWS = {"mistral": 4096, "gemma2": 4096, "gemma3": 1024, "gpt-oss": 128}
LATENT = [name for name in grid_names() if name.endswith(("-mla-serving", "-mla-ragged"))]
SERVING = [name for name in grid_names() if name.endswith("-serving") and name not in LATENT]
RAGGED = [name for name in grid_names() if name.endswith("-ragged") and name not in LATENT]
APPEND = [name for name in grid_names() if name.endswith("-append")]
CASCADE = ("llama3-8b-merge", "llama3-8b-prefix")
BLOCKS, NATIVE = "llama3-8b-blocks", "nsa-64k"
# Query heads, key heads and head dim of the layers of training on packed documents.
PACKED = {"packed.llama3-8b": (32, 8, 128), "packed.llama3.2-1b": (32, 8, 64)}
# Value heads, key heads and widths of whole layers, by how the names of layers begin.
LINEARS = {
    "qwen3-next-linear": {"wide": (64, 16, 128, 128), "": (32, 16, 128, 128)},
    "kimi-linear": {"": (32, 32, 128, 128)},
    "minimax-01-linear": {"": (64, 64, 128, 128)},
    "gla-1.3b": {"wide": (96, 96, 128, 128), "": (4, 4, 256, 512)},
    "mamba2": {
        "mamba2-2.7b": (80, 1, 128, 64),
        "nemotron-h-8b": (128, 8, 128, 64),
        **dict.fromkeys(("prompts", "pool", "mixed-pool"), (128, 8, 128, 64)),
        "simple-gla": (96, 96, 128, 128),
        **dict.fromkeys(("prompt", "long-prompt", "packed"), (80, 1, 128, 64)),
    },
}
LINEAR = [name for name in grid_names() if name.removesuffix("-steps") in LINEARS]
# Of sparse attention: query heads, and heads of the indexer.
SPARSE_HEADS = {"deepseek-v3.2": (128, 64), "glm-5": (64, 32)}
SPARSE = [name for name in grid_names() if name.endswith(("-sparse", "-indexer"))]
_SMOKE = ("cpu-smoke", "decode", "gpu-smoke", "peers", "short-query", ALL)
_OTHERS = (*_SMOKE, "packed", *LATENT, *SERVING, *RAGGED, *APPEND, *CASCADE, *LINEAR, BLOCKS, NATIVE, *SPARSE)
MODELS = [name for name in grid_names() if name not in _OTHERS]


@pytest.mark.parametrize("name", MODELS)
def test_preset_states_the_published_figures(name):
    grid = load_grid(name)
    assert grid.source.startswith("https://")
    for point in grid.points:
        values = point.signature.values
        assert (values["n"], values["k"], values["h"]) == FIGURES[name]
        assert values["v"] == values["h"]
        assert values["causal"] == 1
        assert values["t"] == values["s"]
        assert values["b"] * values["t"] == 16384, "training points hold 16k tokens"
        assert values.get("cap", 0) == int(name.startswith("gemma2"))
        assert values.get("sinks", 0) == int(name.startswith("gpt-oss"))


def test_packed_training_has_one_row_of_documents_given_by_their_offsets():
    for point in load_grid("packed", lengths=("all",)).points:
        values = point.signature.values
        assert (values["n"], values["k"], values["h"]) == PACKED[point.name.rpartition("/")[0]]
        assert [values[name] for name in ("b", "causal", "seg", "ids")] == [1, 1, 1, 0]
        assert values["t"] == values["s"]


@pytest.mark.parametrize("name", LINEAR)
def test_linear_preset_states_the_published_figures_or_those_of_a_shard(name):
    published = LINEARS[name.removesuffix("-steps")]
    points = load_grid(name, lengths=("all",)).points
    for point in points:
        values = point.signature.values
        layer = next(found for found in published if f".{found}" in point.name or not found)
        heads, key_heads, *widths = published[layer]
        assert values["n"] * key_heads == values["k"] * heads
        assert heads % values["n"] == 0
        assert [values["h"], values["v"]] == widths
        states = 4 * values["b"] * values["n"] * values["h"] * values["v"]
        sequences = 1 if values.get("ragged") else values["b"]
        assert states + 4 * sequences * values["t"] * values["n"] * values["v"] < 2**33
    if not name.endswith("-steps"):
        kinds = {(v.get("state", "none"), v.get("ragged", 0)) for v in (point.signature.values for point in points)}
        assert kinds == {("none", 0), ("out", 0), ("none", 1)}, "training, prompts, packed training"
    assert max(point.signature.values["n"] for point in points) in [heads for heads, *_ in published.values()]


@pytest.mark.parametrize("name", SERVING + RAGGED)
def test_serving_preset_states_the_published_figures_and_fits_a_gpu(name):
    model = name.rpartition("-")[0].removesuffix("-tpu")
    for point in load_grid(name, lengths=("all",)).points:
        values = point.signature.values
        # Beside whole layers there are the heads of one of two GPUs, or of eight, some of which have the same key head.
        assert (values["n"], values["k"], values["h"]) in [
            (n // gpus, max(1, k // gpus), h) for n, k, h in [FIGURES[model]] for gpus in (1, 2, 8)
        ]
        window = next((w for prefix, w in WINDOWS.items() if model.startswith(prefix)), 0)
        assert values.get("left") in (None, window - 1)
        size = 1 if values.get("kv") else 2
        assert values["b"] * values["s"] * values["k"] * (values["h"] + values["v"]) * size <= 2**33 * 1.01


@pytest.mark.parametrize("name", LATENT)
def test_latent_preset_states_the_published_figures_and_fits_a_gpu(name):
    heads, latent, rope = LATENTS[name.partition("-mla-")[0]]
    for point in load_grid(name, lengths=("all",)).points:
        values = point.signature.values
        assert (values["layout"], values["k"], values["h"], values["v"]) == ("latent", 1, latent + rope, latent)
        # Beside whole layers there are the query heads of one of two, four or eight GPUs, which all hold the latents.
        assert values["n"] in [heads // gpus for gpus in (1, 2, 4, 8)]
        size = 1 if values.get("kv") else 2
        assert values["b"] * values["s"] * values["h"] * size <= 2**33 * 1.01


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_preset_states_the_published_figures_and_fits_a_gpu(name):
    model, _, op = name.rpartition("-")
    heads, index_heads = SPARSE_HEADS[model]
    for point in load_grid(name, lengths=("all",)).points:
        values = point.signature.values
        if op == "indexer":
            assert (values["n"], values["h"]) == (index_heads, 128)
            assert 4 * values["b"] * values["t"] * values["s"] < 2**33
        else:
            assert values["n"] in (heads, heads // 8)
            assert (values["h"], values["v"], values["top"]) == (576, 512, 2048)
            assert 2 * values["b"] * values["s"] * values["h"] <= 2**33


@pytest.mark.parametrize("name", APPEND)
def test_append_preset_states_the_published_figures(name):
    _, heads, width = FIGURES[name.removesuffix("-append")]
    for point in load_grid(name, lengths=("all",)).points:
        values = point.signature.values
        assert (values["k"], values["h"], values["v"]) in [(heads // gpus, width, width) for gpus in (1, 2, 8)]


@pytest.mark.parametrize("name", CASCADE)
def test_cascade_preset_has_the_published_heads_of_whole_sequences(name):
    heads, kv_heads, width = FIGURES["llama3-8b"]
    for point in load_grid(name, lengths=("all",)).points:
        values = point.signature.values
        assert values["v"] == width
        if "k" in values:
            # The heads of all sequences that share a prefix are heads of one.
            assert (values["n"] % heads, values["k"], values["h"]) == (0, kv_heads, width)
        else:
            assert values["n"] in (heads, heads // 2)


def test_grid_of_blocks_has_the_published_heads_or_half_of_them():
    heads, kv_heads, width = FIGURES["llama3-8b"]
    points = load_grid(BLOCKS, lengths=("all",)).points
    for point in points:
        values = point.signature.values
        share = heads // values["n"]
        assert share in (1, 2)
        assert (values["k"], values["h"], values["v"]) == (kv_heads // share, width, width)
        assert values["t"] == values["s"]
    assert {p.signature.values.get("workload") for p in points} == {None, "documents", "local"}


def test_native_sparse_preset_has_the_heads_and_blocks_of_the_paper():
    points = load_grid(NATIVE, lengths=("all",)).points
    for point in points:
        values = point.signature.values
        assert (values["n"], values["k"], values["v"], values["top"]) == (64, 4, 128, 16)
        assert values["t"] == values["s"]
    assert {p.signature.values["h"] for p in points} == {128, 192}


@pytest.mark.parametrize("name", MODELS)
def test_local_layers_have_the_published_window(name):
    window = next((w for prefix, w in WINDOWS.items() if name.startswith(prefix)), None)
    lefts: dict[bool, set] = {True: set(), False: set()}
    for point in load_grid(name).points:
        values = point.signature.values
        # A window that no length exceeds hides nothing.
        lefts[window is not None and values["s"] > window].add(values.get("left"))
    assert lefts[False] <= {None}
    if window is not None:
        every_layer = name.startswith("mistral")
        assert lefts[True] == ({window - 1} if every_layer else {window - 1, None})


@pytest.mark.parametrize("name", grid_names())
def test_points_are_distinct_possible_and_read_back(name):
    points = load_grid(name).points
    assert points
    assert len({point.signature for point in points}) == len(points)
    for point in points:
        op = get_op(point.op)
        assert op.parse_signature(point.signature.text) == point.signature
        assert op.to_signature(op.from_signature(point.signature)) == point.signature


def test_equal_shapes_of_two_models_are_one_point_with_both_names():
    points = merge_points((*load_grid("llama3-8b").points, *load_grid("qwen3-8b").points))
    assert len(points) == len(load_grid("llama3-8b").points)
    assert points[0].name == "llama3-8b/8x2k+qwen3-8b/8x2k"
    assert points[0].source.count("https://") == 2


def test_all_holds_every_model_once():
    points = load_grid(ALL).points
    names = {part.split("/")[0].split(".local")[0].split(".global")[0] for p in points for part in p.name.split("+")}
    assert names == {*MODELS, *PACKED}
    assert len(points) < sum(len(load_grid(name).points) for name in MODELS)


def test_lengths_choose_by_group_length_and_text():
    def lengths(*words):
        points = load_grid("llama3-8b", lengths=words).points
        return [(p.signature.values["b"], p.signature.values["t"]) for p in points]

    assert lengths() == [(8, 2048), (4, 4096), (2, 8192)]
    assert lengths("4k") == [(4, 4096), (1, 4096)]
    assert lengths("4x4k") == [(4, 4096)]
    assert lengths("4x4096") == [(4, 4096)]
    assert lengths("prefill")[-1] == (1, 131072)
    assert lengths("prefill", "1k") == lengths("prefill")
    with pytest.raises(UsageError, match=r"llama3-8b\.toml: no lengths match 3k; groups: train, prefill"):
        lengths("3k")


def test_included_grids_keep_their_names():
    names = [point.name for point in load_grid("gpu-smoke").points]
    assert names[0] == "llama3-8b/4x4k"
    assert "gpt-oss-20b.local/4x4k" in names
    assert len(names) == 6


def test_a_signature_is_a_grid_of_one_point():
    text = "flash_attention/v1 b=1 t=7 s=9 n=4 k=2 h=64 v=64 dtype=float32 causal=1"
    (point,) = load_grid(text).points
    assert point.signature.text == point.name == text
    with pytest.raises(UsageError, match=r"n=3 \(num_q_heads\) must be a multiple of k=2"):
        load_grid("flash_attention/v1 b=1 t=7 s=9 n=3 k=2 h=64 v=64 dtype=float32")


@pytest.mark.parametrize("word", ["causal", "sinks", "cap", "drop", "seg", "len", "pos"])
def test_a_flag_of_a_signature_is_one_or_zero(word):
    text = f"flash_attention/v1 b=1 t=7 s=9 n=4 k=2 h=64 v=64 dtype=float32 {word}=2"
    with pytest.raises(UsageError, match=f"{word}=2 must be 0 or 1"):
        load_grid(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [("4x4k", (4, 4096, 4096)), ("1x1x32k", (1, 1, 32768)), ("2x300", (2, 300, 300))],
)
def test_lengths_are_read(text, values):
    axes = get_op("flash_attention").axes
    assert tuple(Lengths.parse(text).values(axes).values()) == values


@pytest.mark.parametrize("text", ["4k", "0x4k", "4x", "4x4K", "axb", "1x1x1x1", "4x-1"])
def test_malformed_lengths_are_refused(text):
    with pytest.raises(UsageError):
        Lengths.parse(text).values(get_op("flash_attention").axes)
    with pytest.raises(UsageError):
        parse_length("-" + text)


LAYER = "op = 'flash_attention'\nn = 4\nk = 2\nh = 64\nv = 64\ndtype = 'float32'\n"
GOOD = f"summary = 's'\n[lengths]\nx = ['1x64']\n[[layer]]\n{LAYER}"


def test_users_own_file_has_the_same_format(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + f"[[layer]]\nname = 'decode'\nb = 3\nt = 1\ns = 99\n{LAYER}")
    points = load_grid(str(path)).points
    assert [p.name for p in points] == ["mine/1x64", "mine.decode"]
    assert points[1].signature.values["s"] == 99


def test_a_byte_order_mark_before_a_file_is_no_fault(tmp_path: Path):
    path = tmp_path / "mine.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert [p.name for p in load_grid(str(path)).points] == ["mine/1x64"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("summary = ", "not valid TOML"),
        (f"a = {'[' * 5000}{']' * 5000}", "nested too deeply"),
        (GOOD + f"[[layer]]\n{LAYER.replace('h = 64', 'h = 32')}", "two problems are named broken/1x64"),
        ("[lengths]\n", "key 'summary' is missing"),
        (GOOD + "heads = 4\n", r"\[\[layer\]\] 1: unknown key 'heads'"),
        (
            GOOD.replace("n = 4", "n = 3"),
            r"\[\[layer\]\] 1: n=3 \(num_q_heads\) must be a multiple of k=2",
        ),
        (GOOD.replace("n = 4", "n = '4'"), r"\[\[layer\]\] 1: signature field n='4'"),
        (GOOD.replace("n = 4\n", ""), r"\[\[layer\]\] 1: .*needs the field 'n'"),
        (
            GOOD.replace("'float32'", "'float31'"),
            r"\[\[layer\]\] 1: dtype='float31' must be one of .* did you mean 'float32'",
        ),
        (
            GOOD.replace("'flash_attention'", "'flash_atention'"),
            r"\[\[layer\]\] 1: .*did you mean 'flash_attention'",
        ),
        (GOOD.replace("1x64", "64"), r"\[\[layer\]\] 1: lengths '64' must be BxTxS"),
        (GOOD.replace("['1x64']", "'1x64'"), r"\[lengths\]: key 'x' must be a list"),
        (GOOD + "name = 3\n", r"\[\[layer\]\] 1: key 'name' must be a text"),
        ("summary = 's'\nlayer = [1]\n", r"\[\[layer\]\] 1 must be a table"),
        ("sumary = 's'\n" + GOOD, "unknown key 'sumary'; did you mean 'summary'"),
        ("run = ['y']\n" + GOOD, "key 'run': no group 'y'"),
        ("summary = 's'\n", r"needs at least one \[\[layer\]\]"),
        (f"summary = 's'\n[[layer]]\n{LAYER}", r"give \[lengths\]"),
        (GOOD + "b = 4\n", r"\[\[layer\]\] 1: it gives b but not t, s; give them all, or none"),
        (GOOD.replace("op = 'flash_attention'\n", ""), r"\[\[layer\]\] 1: key 'op' is missing"),
        (GOOD + "directions = ['step']\n", "unknown direction of flash_attention 'step'"),
        (GOOD + "workload = 'eq'\n", r"\[\[layer\]\] 1: unknown key 'workload'"),
        (GOOD + "workloads = ['eq']\n", r"\[\[layer\]\] 1: .* has no workloads: take the key 'workloads' out"),
        (
            "summary = 's'\ninclude = ['lama3-8b']\n",
            "key 'include': unknown grid 'lama3-8b'; did you mean",
        ),
        ("summary = 's'\ninclude = ['llama3-8b']\n[lengths]\n", "'lengths' cannot stand beside"),
    ],
)
def test_a_malformed_file_is_named_with_table_and_key(tmp_path: Path, text, message):
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=message) as info:
        load_grid(str(path))
    assert str(info.value).startswith(f"grid {path}: ")
    assert "\n" not in str(info.value)


def test_a_near_name_is_suggested():
    with pytest.raises(UsageError, match="unknown grid 'lama3-8b'; did you mean 'llama3-8b'"):
        load_grid("lama3-8b")


def test_a_grid_points_signature_goes_where_python_asks_for_a_problem():
    name = "llama3-8b/4x4k"
    signature = grid_point(name).signature
    assert explain("flash_attention", signature).signature == signature.text
    with pytest.raises(UsageError, match=rf"attn_tune\.grid_point\('{name}'\)\.signature"):
        explain("flash_attention", name)


@pytest.mark.parametrize("kind", ["FIFO", "folder"])
def test_a_grid_that_is_no_regular_file_is_refused(tmp_path: Path, kind):
    path = tmp_path / "grid.toml"
    os.mkfifo(path) if kind == "FIFO" else path.mkdir()
    with pytest.raises(UsageError, match=f"grid.toml is a {kind}, not a regular file"):
        load_grid(str(path))


def test_a_grid_of_gigabytes_is_refused_before_it_is_read(tmp_path: Path):
    path = tmp_path / "grid.toml"
    with path.open("wb") as file:
        file.truncate(64 << 30)  # sparse: it takes no room
    with pytest.raises(UsageError, match="larger than 4194304 bytes"):
        load_grid(str(path))


def test_a_grid_is_not_written_over_a_special_file(tmp_path: Path):
    path = tmp_path / "grid.toml"
    os.mkfifo(path)
    with pytest.raises(StorageError, match="is a FIFO"):
        write_grid(load_grid("cpu-smoke"), path, overwrite=True)
    assert path.is_fifo()


def test_a_signature_without_one_of_the_lengths_is_refused_also_beside_another_grid():
    text = "flash_attention/v1 b=1 t=300 s=300 n=2 k=2 h=64 v=64 dtype=float32"
    assert load_grid(text, lengths=["300"]).points[0].name == text
    with pytest.raises(UsageError, match="no lengths match train"):
        load_grid(text, lengths=["train"])
