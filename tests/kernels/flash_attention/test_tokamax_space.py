"""The spaces of tokamax's kernels, which are known without tokamax: limits, candidates, configs."""

import dataclasses
import importlib.metadata

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.flash_attention.tokamax_mosaic import SPEC as MOSAIC
from attn_tune.kernels.flash_attention.tokamax_mosaic.config import ForwardConfig
from attn_tune.kernels.flash_attention.tokamax_triton import SPEC as TRITON
from attn_tune.kernels.flash_attention.tokamax_triton.config import (
    BackwardConfig as TritonBackward,
    ForwardConfig as TritonForward,
)
from attn_tune.kernels.lang.libraries import versions
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.runtime.lookup import question
from attn_tune.schema.errors import UsageError

H200, A100 = (device_from_kind(f"nvidia-{name}") for name in ("h200", "a100-sxm4-80gb"))
V100 = dataclasses.replace(A100, family="sm_70", variant="nvidia-v100")
SPECS = (MOSAIC, TRITON)
FULL = Problem(
    batch=2, q_len=512, kv_len=512, num_q_heads=4, num_kv_heads=2, head_dim=128, v_head_dim=128,
    scale=128**-0.5,
)  # fmt: skip
LLAMA = dataclasses.replace(FULL, batch=8, q_len=8192, kv_len=8192, num_q_heads=32, num_kv_heads=8, causal=True)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """As if the known version were here, whether or not it is."""
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.17")
    versions.wrong_version.cache_clear()
    yield
    versions.wrong_version.cache_clear()


@pytest.mark.parametrize(
    ("changes", "spec", "directions", "word"),
    [
        ({}, MOSAIC, "", ""),
        ({}, TRITON, "", ""),
        ({"causal": True, "q_len": 300, "has_sinks": True}, MOSAIC, "", ""),
        ({"window": (9, 5)}, MOSAIC, "", ""),
        ({"mask_dims": "b11s"}, MOSAIC, "", ""),
        ({"bias_dims": "1nts"}, TRITON, "", ""),
        ({"soft_cap": 30.0}, MOSAIC, "", ""),
        ({"soft_cap": 30.0}, TRITON, "bwd", "cap"),
        ({"dtype": "float32"}, MOSAIC, "fwd bwd", "bfloat16"),
        ({"dtype": "float32"}, TRITON, "", ""),
        ({"head_dim": 512}, MOSAIC, "fwd bwd", "head_dim=512"),
        ({"v_head_dim": 512}, TRITON, "fwd bwd", "v_head_dim=512"),
        ({"window": (9, None)}, TRITON, "bwd", "windows"),
        ({"causal": True, "q_len": 300}, TRITON, "bwd", "lengths that differ"),
        ({"bias_dims": "1nts", "soft_cap": 30.0}, MOSAIC, "fwd bwd", "after it adds the bias"),
        ({"has_segments": True}, MOSAIC, "fwd bwd", "segment"),
        ({"has_positions": True}, TRITON, "fwd bwd", "positions"),
        ({"dropout_rate": 0.1}, TRITON, "fwd bwd", "dropout"),
        ({"logits_dtype": "bfloat16"}, MOSAIC, "fwd bwd", "logits"),
        ({"scale": 0.0}, MOSAIC, "fwd bwd", "scale=0.0"),
    ],
)
def test_limits_are_reasons_in_words(changes, spec, directions, word):
    problem = dataclasses.replace(FULL, **changes)
    for direction in ("fwd", "bwd"):
        reason = spec.unsupported(problem, direction, H200)
        if direction in directions.split():
            assert reason is not None
            assert word in reason
        else:
            assert reason is None


def test_unsupported_devices_of_tokamax_are_named():
    assert "sm_90" in MOSAIC.unsupported(FULL, "fwd", A100)
    assert TRITON.unsupported(FULL, "fwd", A100) is None
    assert "sm_80 to sm_90" in TRITON.unsupported(FULL, "fwd", V100)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_a_missing_tokamax_is_a_reason_that_names_its_extra(monkeypatch, spec):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    monkeypatch.setattr(question, "is_installed", lambda module: False)
    remedy = "pip install 'attn-tune[tokamax]'"
    assert remedy in spec.unsupported(FULL, "fwd", H200)
    assert remedy in question.unsupported(spec, FULL, "fwd", H200)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize(
    ("found", "known"),
    [("0.0.16", False), ("0.0.17", True), ("0.0.21.dev3", True), ("0.1.0", False)],
)
def test_versions_with_another_interface_are_refused(monkeypatch, spec, found, known):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    reason = spec.unsupported(FULL, "fwd", H200)
    assert (reason is None) is known
    if not known:
        assert found in reason


def test_another_version_of_the_library_is_another_source(monkeypatch):
    from attn_tune.kernels.source import source_hash

    hashes = set()
    for number in ("0.0.17", "0.0.18"):
        monkeypatch.setattr(importlib.metadata, "version", lambda name, number=number: number)
        source_hash.cache_clear()
        hashes.add(MOSAIC.source_hash)
    source_hash.cache_clear()
    assert len(hashes) == 2


@pytest.mark.parametrize(
    ("problem", "config", "word"),
    [
        (
            dataclasses.replace(FULL, mask_dims="b1ts"),
            ForwardConfig(block_q=64, block_kv=64, num_stages=4),
            "19 named barriers; there are 16",
        ),
        (FULL, ForwardConfig(block_q=128, block_kv=256, num_stages=2), "shared memory"),
        (
            LLAMA,
            ForwardConfig(block_q=64, block_kv=64, num_stages=2, split_k=2),
            "split_k needs keys that are all visible",
        ),
        (FULL, ForwardConfig(block_q=64, block_kv=192, num_stages=2, split_k=2), "split_k=2"),
        (
            dataclasses.replace(FULL, bias_dims="1nts"),
            ForwardConfig(block_q=64, block_kv=64, num_stages=2, fold_q_sequence_heads=True),
            "folded",
        ),
    ],
)
def test_mosaic_configs_that_cannot_run_are_refused(problem, config, word):
    assert word in MOSAIC.searches["fwd"].infeasible(problem, H200, config)


@pytest.mark.parametrize(
    ("problem", "changes", "word"),
    [
        (LLAMA, {"split_k": 2}, "all visible"),
        (dataclasses.replace(FULL, kv_len=509), {"split_k": 2}, "509"),
        (FULL, {"pack_mask": True}, "pack_mask"),
        (dataclasses.replace(FULL, head_dim=96), {"block_d": 32}, "powers of two"),
        (FULL, {"block_d_out": 256}, "does not divide"),
    ],
)
def test_triton_configs_that_cannot_run_are_refused(problem, changes, word):
    config = TritonForward(block_q=64, block_k=64, num_warps=4, num_stages=2, **changes)
    assert word in TRITON.searches["fwd"].infeasible(problem, H200, config)


def test_tiles_that_would_miss_pairs_under_a_causal_mask_are_refused():
    infeasible = TRITON.searches["bwd"].infeasible

    def config(m1, n1, m2, n2):
        return TritonBackward(block_m1=m1, block_n1=n1, block_m2=m2, block_n2=n2, num_warps=4, num_stages=2)

    causal = dataclasses.replace(FULL, causal=True)
    assert infeasible(causal, H200, config(32, 64, 64, 32)) is None
    assert "block_m1=128 must divide block_n1=64" in infeasible(causal, H200, config(128, 64, 64, 32))
    assert "block_n2=128 must divide block_m2=64" in infeasible(causal, H200, config(32, 64, 64, 128))
    assert "in halves" in infeasible(causal, H200, config(16, 64, 64, 32))
    assert infeasible(FULL, H200, config(128, 64, 64, 128)) is None


@pytest.mark.parametrize("knobs", [{"block_q": 48}, {"num_warps": 3}, {"num_stages": 0}, {"split_k": 100}])
def test_impossible_knobs_are_refused(knobs):
    good = {"block_q": 64, "block_k": 64, "num_warps": 4, "num_stages": 2}
    with pytest.raises(UsageError, match=next(iter(knobs))):
        TritonForward(**(good | knobs))
