"""Hints read from packs and from tables of tokamax, of which tokamax itself is not needed."""

import json

import pytest

from attn_tune.integrations.hints import read_hints
from attn_tune.schema import IntegrityError, StorageError
from tests.integrations.packs import LLAMA, V6E, row, written
from tests.integrations.tables import ARGUMENTS, CONFIG, table, timed

OPS = "tokamax._src.ops.attention"


def result(tmp_path, version="0.0.17", arguments=ARGUMENTS, kind="pallas_triton.PallasTritonFlashAttention"):
    """The JSON of an ``AutotuningResult``."""
    call = {"op": {"__type": f"{OPS}.{kind}"}, "arguments": arguments}
    path = tmp_path / "result.json"
    data = {"device_kind": "NVIDIA H100", "data": [[call, timed(CONFIG, 1.0)]], "tokamax_version": version}
    path.write_text(json.dumps(data))
    return path


def only(path):
    read = read_hints(path)
    assert not read.skipped
    (proposal,) = read.proposals
    return proposal


@pytest.mark.parametrize("made", [table, result])
def test_both_forms_of_a_table_are_the_same_hint(tmp_path, made):
    hint = only(made(tmp_path))
    assert (hint.kernel, hint.direction) == ("flash_attention/tokamax_triton", "fwd")
    assert hint.signature.text == f"flash_attention/v1 {LLAMA}"
    assert (hint.config.block_q, hint.config.block_k, hint.config.block_d) == (64, 32, None)


def test_a_folder_of_tables_is_read_whole_and_other_ops_are_counted(tmp_path):
    table(tmp_path)
    table(tmp_path, name="pallas_mosaic_gpu_ragged_dot")
    launches = {"block_q_dq": 64, "block_kv_dq": 128, "block_q_dkv": 128, "block_kv_dkv": 64}
    back = timed(launches | {"num_stages": 2, "compute_wgs": 1}, 1.0)
    table(tmp_path, configs=back, name="pallas_mosaic_gpu_flash_attention_vjp")
    read = read_hints(tmp_path)
    assert dict(read.skipped) == {"no kernel here is tokamax's PallasMosaicGpuRaggedDot": 1}
    back, front = sorted(read.proposals, key=lambda one: one.direction)
    assert (back.direction, front.direction) == ("bwd", "fwd")
    assert (back.config.dq.block_q, back.config.dq.block_kv, back.config.dq.compute_warpgroups) == (64, 128, 1)
    assert (back.config.dkv.block_q, back.config.dkv.block_kv, back.config.dkv.num_stages) == (128, 64, 2)


def test_only_the_fastest_config_of_an_entry_is_a_hint(tmp_path):
    configs = timed(CONFIG, 9.0, 1.0, 9.0) | timed(CONFIG | {"num_warps": 8}, 2.0, 2.0, 2.0)
    assert only(table(tmp_path, configs=configs)).config.num_warps == 8


@pytest.mark.parametrize(
    ("changes", "fields"),
    [
        ({"mask": {"causal_mask": {"offset": 0, "window_size": 1024}}}, f"{LLAMA} left=1023"),
        (
            {"mask": {"causal_mask": {"offset": 3, "window_size": 103}}},
            "b=4 t=4096 s=4096 n=32 k=8 h=128 v=128 dtype=bfloat16 left=99 right=3",
        ),
        ({"mask": {"bool_mask": "bool[4,1,1,4096]"}}, LLAMA.replace("causal=1", "mask=b11s")),
        ({"bias": "f32[32,4096,4096]", "mask": None}, LLAMA.replace("causal=1", "bias=1nts")),
        ({"logits_soft_cap": 50.0}, f"{LLAMA} cap=1"),
        (
            {"q": "f32[2,3,64,4,32]", "k": "f32[2,3,96,4,32]", "v": "f32[2,3,96,4,48]", "mask": None,
             "bias": "f32[1,1,4,64,96]", "precision": [["HIGHEST", "HIGHEST"]] * 2},
            "b=6 t=64 s=96 n=4 k=4 h=32 v=48 dtype=float32 bias=1nts prec=highest",
        ),
    ],
)  # fmt: skip
def test_the_call_of_an_entry_is_a_problem_of_the_op(tmp_path, changes, fields):
    assert only(table(tmp_path, ARGUMENTS | changes)).signature.text == f"flash_attention/v1 {fields}"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"q": {"qvalue": "i8[4,4096,32,128]"}}, "another kind than bfloat16"),
        ({"q": "bf16[4,128,32,128]"}, "top left"),
        ({"mask": {"k_end": "i32[4,1,1]"}}, "mask of ranges"),
        ({"dropout_mask": "bool[4,32,4096,4096]"}, "dropout"),
        ({"paging_info": {}}, "pages"),
        ({"normalize_output": False}, "not normalised"),
        ({"bias": "f32[3,1,1,1]"}, "does not broadcast"),
        ({"mask": 7}, "not as tokamax writes it"),
        ({"k": "bf16[4,4096,5,128]"}, "n=32"),
    ],
)
def test_an_entry_that_is_no_problem_here_is_skipped_with_its_reason(tmp_path, changes, reason):
    read = read_hints(table(tmp_path, ARGUMENTS | changes))
    assert not read.proposals
    ((said, count),) = read.skipped.items()
    assert (reason in said, count) == (True, 1), said


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({}, "found no config"),
        (timed(CONFIG | {"block_k": 48}, 1.0), "block_k must be a power of two"),
        (timed(CONFIG | {"collective": True}, 1.0), "no knob 'collective'"),
        (timed([1], 1.0), "is no object"),
        ({"{": {"evaluation_times_ms": [1.0]}}, "not JSON"),
        ({"{}": {}}, "evaluation_times_ms"),
    ],
)
def test_a_config_that_the_kernel_cannot_have_is_skipped_with_its_reason(tmp_path, configs, reason):
    read = read_hints(table(tmp_path, configs=configs))
    assert not read.proposals
    ((said, count),) = read.skipped.items()
    assert (reason in said, count) == (True, 1), said


@pytest.mark.parametrize("text", ["{", "[]", '{"a": {}}', '{"[]": 3}', '{"device_kind": "x"}', "7", '{"{}": [1]}'])
def test_a_damaged_table_is_an_error_that_names_it(tmp_path, text):
    path = tmp_path / "pallas_triton_flash_attention.json"
    path.write_text(text)
    with pytest.raises(IntegrityError, match=path.name):
        read_hints(path)


@pytest.mark.parametrize("version", ["0.1.0", "0.0.3", "abc"])
def test_a_table_of_another_version_is_refused_with_the_known_ones(tmp_path, version):
    with pytest.raises(IntegrityError, match=rf"another version: tokamax {version} is not known, 0\.0\.17 and later"):
        read_hints(result(tmp_path, version))


def test_nothing_there_is_an_error(tmp_path):
    with pytest.raises(StorageError, match=r"nowhere\.json"):
        read_hints(tmp_path / "nowhere.json")
    with pytest.raises(IntegrityError, match="no JSON file"):
        read_hints(tmp_path)


def test_a_pack_of_another_device_is_a_source_of_hints(tmp_path):
    good = row("xla", "fwd", {"chunk_q": 512, "chunk_k": 512}, device=V6E)
    strange = row("xla", "bwd", {"chunk_z": 512}, device=V6E)
    gone = row("no_such_kernel", "fwd", {}, device=V6E, rank=1)
    read = read_hints(written(tmp_path / "v6e.atpack", good, strange, gone))
    assert [(one.kernel, one.direction) for one in read.proposals] == [("flash_attention/xla", "fwd")]
    assert sorted(read.skipped.values()) == [1, 1]
    assert any("no_such_kernel" in reason for reason in read.skipped)
    assert any("no knob 'chunk_z'" in reason for reason in read.skipped)
