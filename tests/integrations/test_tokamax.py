"""Rows of packs as tokamax's autotuning results: tokamax itself, given the file, picks the config of the row."""

import functools
from importlib.metadata import version

import pytest

pytest.importorskip("tokamax", reason="tokamax is not installed (the extra 'tokamax')")

import jax
import jax.numpy as jnp
import tokamax
from tokamax import config as tokamax_config
from tokamax._src import gpu_utils
from tokamax._src.ops import op as library
from tokamax._src.ops.attention import (
    pallas_mosaic_gpu,
    pallas_mosaic_gpu_vjp,
    pallas_triton,
    pallas_triton_vjp,
)

from attn_tune.integrations.conversion import Format, convert
from attn_tune.integrations.hints import read_hints
from attn_tune.schema import NoDataError
from tests.integrations.packs import H200, LLAMA, V6E, pack, row

TRITON = {"block_q": 128, "block_k": 32, "num_warps": 8, "num_stages": 3, "split_k": 1, "pack_mask": False}
TRITON_BACK = {"block_m1": 32, "block_n1": 128, "block_m2": 128, "block_n2": 32, "num_warps": 8, "num_stages": 3}
MOSAIC = {
    "block_q": 64,
    "block_kv": 192,
    "num_stages": 3,
    "persistent": True,
    "split_k": 1,
    "fold_q_sequence_heads": False,
}
LAUNCH = {"block_q": 128, "block_kv": 64, "num_stages": 3, "compute_warpgroups": 1}
MOSAIC_BACK = {"dq": LAUNCH, "dkv": LAUNCH | {"block_kv": 192}}


@pytest.fixture(autouse=True)
def on_an_h200(monkeypatch):
    """Tracing as for an H200: tokamax asks the arguments, and then the default device, what they are on."""
    monkeypatch.setattr(gpu_utils, "_compute_capability", lambda device=None: 9.0)
    monkeypatch.setattr(library, "infer_device_kind", lambda arguments: "NVIDIA H200")
    with tokamax_config.cross_compile(True):
        yield


class _Seen(Exception):
    """The config that a kernel was called with."""


def picked(monkeypatch, op, f, *shapes):
    """The config with which tokamax calls the class ``op`` when ``f`` is traced on arrays of ``shapes``."""

    def seen(self, *args, config, **kwargs):
        raise _Seen(config)

    monkeypatch.setattr(op, "_fwd", functools.wraps(op._fwd)(seen))
    with pytest.raises(_Seen) as info:
        jax.eval_shape(f, *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes))
    return info.value.args[0]


def attention(implementation, **more):
    def f(q, k, v):
        return tokamax.dot_product_attention(q, k, v, implementation=implementation, **more).astype(jnp.float32).sum()

    return f


SHAPES = ((4, 4096, 32, 128), (4, 4096, 8, 128), (4, 4096, 8, 128))


def test_tokamax_picks_the_rows_config_in_a_forward_and_in_one_that_is_differentiated(monkeypatch):
    made = convert(pack(row("tokamax_triton", "fwd", TRITON)), Format.TOKAMAX)
    f = attention("triton", is_causal=True)
    op = pallas_triton.PallasTritonFlashAttention
    untuned = picked(monkeypatch, op, f, *SHAPES)
    expected = pallas_triton.Config(**TRITON)
    assert untuned != expected
    with tokamax.AutotuningResult.loads(made.text):
        assert picked(monkeypatch, op, f, *SHAPES) == expected
        assert picked(monkeypatch, op, jax.grad(f, (0, 1, 2)), *SHAPES) == expected
        # Another length is another key.
        assert picked(monkeypatch, op, f, *((4, 2048, *shape[2:]) for shape in SHAPES)) == untuned


@pytest.mark.parametrize("scale", [None, 128**-0.5, 1 / 128**0.5])
def test_the_default_scale_is_found_in_every_spelling(monkeypatch, scale):
    made = convert(pack(row("tokamax_triton", "fwd", TRITON)), Format.TOKAMAX)
    f = attention("triton", is_causal=True, scale=scale)
    with tokamax.AutotuningResult.loads(made.text):
        config = picked(monkeypatch, pallas_triton.PallasTritonFlashAttention, f, *SHAPES)
    assert config == pallas_triton.Config(**TRITON)


def test_tokamax_picks_the_rows_config_in_a_backward(monkeypatch):
    made = convert(pack(row("tokamax_triton", "bwd", TRITON_BACK)), Format.TOKAMAX)
    found = backward_config(monkeypatch, made.text, "triton", pallas_triton, pallas_triton_vjp)
    assert found == pallas_triton_vjp.Config(**TRITON_BACK)


def test_tokamax_picks_the_configs_of_mosaic(monkeypatch):
    window = f"{LLAMA} left=1023"
    rows = (
        row("tokamax_mosaic", "fwd", MOSAIC),
        row("tokamax_mosaic", "fwd", MOSAIC | {"block_q": 128}, window),
        row("tokamax_mosaic", "bwd", MOSAIC_BACK),
    )
    text = convert(pack(*rows), Format.TOKAMAX).text
    op = pallas_mosaic_gpu.PallasMosaicGpuFlashAttention
    monkeypatch.setattr("tokamax._src.ops.attention.api.backend", _Backend)
    with tokamax.AutotuningResult.loads(text):
        plain = picked(monkeypatch, op, attention("mosaic", is_causal=True), *SHAPES)
        local = picked(monkeypatch, op, attention("mosaic", is_causal=True, local_window_size=(1023, 0)), *SHAPES)
    assert plain == pallas_mosaic_gpu.ConfigSM90(**MOSAIC)
    assert local == pallas_mosaic_gpu.ConfigSM90(**MOSAIC | {"block_q": 128})
    found = backward_config(monkeypatch, text, "mosaic", pallas_mosaic_gpu, pallas_mosaic_gpu_vjp)
    assert (found.block_q_dq, found.block_kv_dq, found.block_q_dkv, found.block_kv_dkv) == (128, 64, 128, 192)
    assert (found.num_stages, found.compute_wgs) == (3, 1)


class _Backend:
    """The backend that ``implementation="mosaic"`` asks for the kind of GPU."""

    @staticmethod
    def get_default_device():
        return type("Device", (), {"device_kind": "NVIDIA H200", "core_count": 132, "platform": "gpu"})()


def backward_config(monkeypatch, text, implementation, forward, backward):
    """The config of the backward's class, behind a forward that computes nothing."""
    classes = {
        "triton": (pallas_triton.PallasTritonFlashAttention, pallas_triton_vjp.PallasTritonFlashAttentionVjp),
        "mosaic": (
            pallas_mosaic_gpu.PallasMosaicGpuFlashAttention,
            pallas_mosaic_gpu_vjp.PallasMosaicGpuFlashAttentionVjp,
        ),
    }
    first, second = classes[implementation]

    def nothing(self, q, k, v, *, config, **kwargs):
        rows = jnp.zeros((q.shape[0], q.shape[2], q.shape[1]), jnp.float32)
        return jnp.zeros((*q.shape[:3], v.shape[3]), q.dtype), (rows, rows)

    with monkeypatch.context() as patch:
        patch.setattr(first, "_fwd", functools.wraps(first._fwd)(nothing))
        f = jax.grad(attention(implementation, is_causal=True), (0, 1, 2))
        with tokamax.AutotuningResult.loads(text):
            return picked(patch, second, f, *SHAPES)


def test_a_dense_mask_and_a_bias_are_part_of_the_key(monkeypatch):
    fields = "b=2 t=256 s=512 n=4 k=4 h=64 v=64 dtype=bfloat16 mask=b11s bias=1nts"
    made = convert(pack(row("tokamax_triton", "fwd", TRITON, fields)), Format.TOKAMAX)

    def f(q, k, v, bias):
        mask = jnp.ones((2, 1, 1, 512), bool)
        return tokamax.dot_product_attention(q, k, v, bias, mask, implementation="triton")

    shapes = ((2, 256, 4, 64), (2, 512, 4, 64), (2, 512, 4, 64), (1, 4, 256, 512))
    with tokamax.AutotuningResult.loads(made.text):
        found = picked(monkeypatch, pallas_triton.PallasTritonFlashAttention, f, *shapes)
    assert found == pallas_triton.Config(**TRITON)


@pytest.mark.parametrize(
    ("kernel", "direction", "config", "fields", "more", "reason"),
    [
        ("tokamax_triton", "fwd", TRITON, f"{LLAMA} sinks=1", {}, "no sinks"),
        ("tokamax_triton", "fwd", TRITON, f"{LLAMA} cap=1", {}, "number of the soft cap"),
        ("tokamax_triton", "fwd", TRITON, f"{LLAMA} left=1023", {}, "dense mask"),
        ("tokamax_triton", "fwd", TRITON, LLAMA.replace("t=4096", "t=128", 1), {}, "top left"),
        ("tokamax_mosaic", "bwd", {"dq": LAUNCH, "dkv": LAUNCH | {"num_stages": 2}}, LLAMA, {}, "one for both"),
        ("tokamax_triton", "fwd", TRITON, LLAMA, {"median_ns": None}, "not timed"),
        ("tokamax_triton", "fwd", TRITON, LLAMA, {"features": 0}, "unproven"),
        ("tokamax_triton", "fwd", TRITON, LLAMA, {"repeatable": False}, "bits differ"),
        ("tokamax_triton", "fwd", TRITON | {"block_x": 1}, LLAMA, {}, "no knob 'block_x'"),
        ("triton", "fwd", {"block_q": 128}, LLAMA, {}, "no kernel flash_attention/triton"),
    ],
)
def test_a_row_that_cannot_be_expressed_is_named_and_alone_is_no_data(kernel, direction, config, fields, more, reason):
    bad = row(kernel, direction, config, fields, **more)
    good = row("tokamax_mosaic", "fwd", MOSAIC, rank=1)
    made = convert(pack(good, bad), Format.TOKAMAX)
    assert [one.key for one in made.written] == [good.key]
    ((refused, said),) = ((one.row, one.reason) for one in made.left_out)
    assert refused.key == bad.key
    assert reason in said
    with pytest.raises(NoDataError, match="tokamax"):
        convert(pack(bad), Format.TOKAMAX)


def test_a_config_in_quarantine_is_not_given_away():
    never = {"kernel": "tokamax_triton", "reason": "hangs", "config": {"num_warps": 8}}
    listed = {"format": 1, "never": [never]}
    rows = (row("tokamax_triton", "fwd", TRITON), row("tokamax_mosaic", "fwd", MOSAIC, rank=1))
    made = convert(pack(*rows, quarantine=listed), Format.TOKAMAX)
    assert [(one.row.kernel, one.reason) for one in made.left_out] == [
        ("tokamax_triton", "its config is in quarantine: hangs")
    ]


def test_the_file_says_where_it_comes_from_and_reads_back_as_hints(tmp_path):
    rows = (
        row("tokamax_triton", "fwd", TRITON),
        row("tokamax_triton", "bwd", TRITON_BACK),
        row("tokamax_mosaic", "bwd", MOSAIC_BACK, rank=1),
        row("tokamax_triton", "fwd", TRITON, device=V6E),
    )
    made = pack(*rows)
    converted = convert(made, Format.TOKAMAX, H200)
    result = tokamax.AutotuningResult.loads(converted.text)
    assert (result.device_kind, result.tokamax_version) == ("NVIDIA H200", version("tokamax"))
    (data,) = {entry.metadata["attn_tune_pack"] for _, configs in result.data for entry in configs.values()}
    assert data == made.digest
    assert {entry.evaluation_times_ms for _, configs in result.data for entry in configs.values()} == {(1.5,)}
    path = tmp_path / "table.json"
    path.write_text(converted.text)
    read = read_hints(path)
    assert not read.skipped
    # The packs of these tests name a source that there never was.
    assert {remark.partition(": ")[2] for remark in converted.remarks} == {
        "it was measured with another version of tokamax or of its adapter here"
    }
    assert {(one.kernel, one.direction, one.signature.text) for one in read.proposals} == {
        (f"flash_attention/{one.kernel}", one.direction, one.signature) for one in converted.written
    }
    assert convert(made, Format.TOKAMAX, H200).text == converted.text
