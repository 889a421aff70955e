"""Rows of splash attention as flags of MaxText."""

import pytest
import yaml

from attn_tune.integrations.conversion import Format, convert
from attn_tune.schema import NoDataError
from tests.integrations.packs import H200, LAYOUTS, LLAMA, SPLASH, V6E, pack, row

DQ = {"block_q": 512, "block_kv": 1024} | LAYOUTS
DKV = {"block_q": 256, "block_kv": 2048, "block_kv_compute": 256} | LAYOUTS


def splash(direction, config, *, fused=False, **more):
    kernel = "pallas_tpu_splash_fused" if fused else "pallas_tpu_splash"
    return row(kernel, direction, config, **{"device": V6E} | more)


def documents(made):
    return list(yaml.safe_load_all(made.text))


def test_a_forward_and_its_backward_become_the_flags_of_one_document():
    source = pack(splash("fwd", SPLASH), splash("bwd", {"dq": DQ, "dkv": DKV}))
    made = convert(source, Format.MAXTEXT)
    flags = {
        "attention": "flash",
        "use_tokamax_splash": False,
        "sa_block_q": 1024,
        "sa_block_kv": 2048,
        "sa_block_kv_compute": 512,
        "sa_use_fused_bwd_kernel": False,
        "sa_block_q_dq": 512,
        "sa_block_kv_dq": 1024,
        "sa_block_q_dkv": 256,
        "sa_block_kv_dkv": 2048,
        "sa_block_kv_dkv_compute": 256,
        "sa_q_layout": "HEAD_DIM_MINOR",
        "sa_k_layout": "HEAD_DIM_MINOR",
        "sa_v_layout": "SEQ_MINOR",
    }
    assert documents(made) == [flags]
    assert (len(made.written), made.left_out, made.remarks) == (2, (), ())
    assert source.digest in made.text
    assert f"flash_attention/v1 {LLAMA} (" in made.text
    assert "llama3-8b/4x4k" in made.text or "qwen3-8b/4x4k" in made.text
    (arguments,) = (line for line in made.text.splitlines() if line.startswith("# as arguments: "))
    given = dict(word.split("=") for word in arguments.removeprefix("# as arguments: ").split())
    assert given == {name: str(value) for name, value in flags.items()}
    assert convert(source, Format.MAXTEXT).text == made.text


def test_the_best_backward_decides_and_the_other_is_named():
    fused = splash("bwd", DKV, fused=True)
    split = splash("bwd", {"dq": DQ, "dkv": DKV}, rank=1)
    made = convert(pack(fused, split), Format.MAXTEXT)
    (flags,) = documents(made)
    assert flags["sa_use_fused_bwd_kernel"] is True
    assert "sa_block_q_dq" not in flags
    assert "sa_block_q" not in flags
    assert "fwd: no row" in made.text
    assert [(one.row.key, one.reason) for one in made.left_out] == [(split.key, "another row of the problem is better")]


def test_what_maxtext_has_no_flag_for_is_said():
    other = DKV | {"v_layout": "head_dim_minor", "vmem_limit_kib": 65536}
    made = convert(pack(splash("fwd", SPLASH), splash("bwd", other, fused=True)), Format.MAXTEXT)
    (flags,) = documents(made)
    assert not any(name.endswith("layout") for name in flags)
    assert len(made.remarks) == 2
    assert "layouts of their own" in made.text
    assert "--xla_tpu_scoped_vmem_limit_kib=65536" in made.text


def test_each_problem_is_a_document():
    longer = LLAMA.replace("4096", "8192")
    made = convert(pack(splash("fwd", SPLASH), splash("fwd", SPLASH, fields=longer)), Format.MAXTEXT)
    assert len(documents(made)) == 2


def test_a_predicted_row_says_so():
    predicted = splash("fwd", SPLASH, state="predicted", median_ns=None, error_ppm=None, features=None)
    assert "# fwd: pallas_tpu_splash, predicted, not timed" in convert(pack(predicted), Format.MAXTEXT).text


def test_a_pack_without_such_rows_is_no_data_and_says_what_it_has():
    with pytest.raises(
        NoDataError, match=r"no row of flash_attention/pallas_tpu_splash.*kernels are flash_attention/x"
    ):
        convert(pack(row("xla", "fwd", {})), Format.MAXTEXT)
    with pytest.raises(NoDataError, match="no row for nvidia-h200"):
        convert(pack(splash("fwd", SPLASH)), Format.MAXTEXT, H200)


def test_a_config_with_a_strange_knob_is_named_and_alone_is_no_data():
    strange = splash("fwd", SPLASH | {"block_z": 1})
    back = splash("bwd", DKV, fused=True)
    made = convert(pack(strange, back), Format.MAXTEXT)
    assert [one.row.key for one in made.left_out] == [strange.key]
    with pytest.raises(NoDataError, match="block_z"):
        convert(pack(strange), Format.MAXTEXT)
