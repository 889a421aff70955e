"""The spaces of FlashAttention-4's kernels, which are known without the package: limits, candidates, configs."""

import dataclasses
import importlib.metadata

import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.flash_attention._fa4 import space
from attn_tune.kernels.flash_attention._fa4.config import BackwardConfig, ForwardConfig
from attn_tune.kernels.flash_attention.fa4 import SPEC as FA4
from attn_tune.kernels.flash_attention.fa4_deterministic import SPEC as DETERMINISTIC
from attn_tune.kernels.lang.libraries.versions import wrong_version
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.registry import get_op
from attn_tune.runtime.determinism import Determinism
from attn_tune.runtime.lookup import question
from attn_tune.schema.errors import UsageError
from tests.ops.cases import with_libraries

H200, A100, B200 = (device_from_kind(f"nvidia-{name}") for name in ("h200", "a100-sxm4-80gb", "b200"))
FULL = Problem(
    batch=2, q_len=512, kv_len=512, num_q_heads=8, num_kv_heads=2, head_dim=128, v_head_dim=128,
    scale=128**-0.5,
)  # fmt: skip
CAUSAL = dataclasses.replace(FULL, causal=True)
PLAIN = dataclasses.replace(FULL, num_kv_heads=8)


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """As if the known versions were here, whether or not they are."""
    with_libraries(monkeypatch)
    wrong_version.cache_clear()
    yield
    wrong_version.cache_clear()


def of_dims(head_dim, v_head_dim=0, base=PLAIN):
    return dataclasses.replace(base, head_dim=head_dim, v_head_dim=v_head_dim or head_dim)


@pytest.mark.parametrize(
    ("changes", "directions", "word"),
    [
        ({}, "", ""),
        ({"causal": True, "q_len": 300, "has_sinks": True}, "", ""),
        ({"window": (9, 5)}, "", ""),
        ({"soft_cap": 30.0}, "", ""),
        ({"has_segments": True, "has_positions": True}, "", ""),
        ({"causal": True, "kv_len": 300}, "fwd bwd", "see no key"),
        ({"dtype": "float32"}, "fwd bwd", "bfloat16"),
        ({"head_dim": 264}, "fwd bwd", "head_dim=264"),
        ({"v_head_dim": 100}, "fwd bwd", "v_head_dim=100"),
        ({"v_head_dim": 64}, "", ""),
        ({"num_kv_heads": 2}, "", ""),
        ({"v_head_dim": 64, "num_kv_heads": 2}, "bwd", "head_dim == v_head_dim"),
        ({"head_dim": 224, "v_head_dim": 224}, "bwd", "multiples of 64"),
        ({"mask_dims": "b11s"}, "fwd bwd", "dense mask"),
        ({"bias_dims": "1nts"}, "fwd bwd", "bias"),
        ({"dropout_rate": 0.1}, "fwd bwd", "dropout"),
        ({"logits_dtype": "bfloat16"}, "fwd bwd", "logits"),
    ],
)
def test_limits_of_fa4_are_reasons_in_words(changes, directions, word):
    problem = dataclasses.replace(PLAIN, **changes)
    for spec in (FA4, DETERMINISTIC):
        for direction in spec.searches:
            reason = spec.unsupported(problem, direction, H200)
            assert (reason is not None) == (direction in directions.split()), reason
            assert word in (reason or word)


def test_fa4_is_for_hopper_alone():
    for device in (A100, B200):
        assert "sm_90" in FA4.unsupported(FULL, "fwd", device)


def test_a_missing_fa4_is_a_reason_that_names_its_extra(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    monkeypatch.setattr(question, "is_installed", lambda module: False)
    remedy = "pip install 'attn-tune[fa4]'"
    assert remedy in FA4.unsupported(FULL, "fwd", H200)
    assert remedy in question.unsupported(FA4, FULL, "fwd", H200)


@pytest.mark.parametrize(
    ("library", "found", "known"),
    [
        ("fa4-jax", "0.1.0", True),
        ("fa4-jax", "0.1.7.dev1", True),
        ("fa4-jax", "0.2.0", False),
        ("nvidia-cutlass-dsl", "4.7.9", False),
        ("nvidia-cutlass-dsl", "4.9.0", True),
        ("nvidia-cutlass-dsl", "5.0.0", False),
    ],
)
def test_versions_of_fa4_with_another_interface_are_refused(monkeypatch, library, found, known):
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found if name == library else version(name))
    reason = FA4.unsupported(FULL, "fwd", H200)
    assert (reason is None) is known
    assert known or f"{library} {found} is not known" in reason


@pytest.mark.parametrize("library", ["fa4-jax", "nvidia-cutlass-dsl"])
def test_rows_of_fa4_are_of_one_version_of_each_library(monkeypatch, library):
    from attn_tune.kernels.source import source_hash

    version, hashes = importlib.metadata.version, {FA4.source_hash}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "9" if name == library else version(name))
    source_hash.cache_clear()
    hashes.add(FA4.source_hash)
    source_hash.cache_clear()
    assert len(hashes) == 2


def test_the_backward_of_fa4_that_sums_by_atomics_needs_leave_and_the_other_does_not(monkeypatch):
    monkeypatch.setattr(question, "is_installed", lambda module: True)
    assert not FA4.needs_leave("fwd")
    assert FA4.needs_leave("bwd")
    assert not DETERMINISTIC.needs_leave("bwd")
    strict = question.Question(get_op("flash_attention"), "bwd", PLAIN, H200, None, determinism=Determinism.REQUIRED)
    assert "not deterministic" in strict.refusal_of(FA4)
    assert strict.refusal_of(DETERMINISTIC) is None


def test_fa4_comes_last_among_untuned_kernels():
    place = get_op("flash_attention").place
    last = question.find_kernel("flash_attention/xla")
    for direction in ("fwd", "bwd"):
        assert place(FA4, FULL, direction, H200) < place(last, FULL, direction, H200)


@pytest.mark.parametrize(
    ("problem", "forward", "backward"),
    [
        (of_dims(64), (192, 128, True), (128, 128, 2, 2, 2)),
        (of_dims(96), (192, 144, False), (64, 128, 2, 2, 2)),
        (of_dims(96, base=CAUSAL), (192, 128, False), (64, 128, 2, 2, 2)),
        (of_dims(128), (128, 128, True), (80, 128, 2, 2, 2)),
        (of_dims(128, base=CAUSAL), (128, 128, True), (64, 128, 2, 2, 2)),
        (of_dims(192), (128, 112, True), (64, 96, 2, 1, 1)),
        (of_dims(192, 128), (128, 128, True), (64, 96, 2, 2, 1)),
        (of_dims(256), (128, 80, True), (64, 64, 1, 1, 1)),
        (of_dims(256, base=dataclasses.replace(FULL, window=(99, 9))), (128, 64, True), (64, 64, 1, 1, 1)),
    ],
)
def test_the_untuned_config_is_that_of_the_librarys_table(problem, forward, backward):
    c, b = space.forward_heuristic(problem, H200), space.backward_heuristic(problem, H200)
    assert (c.block_q, c.block_k, c.p_in_registers) == forward
    assert (b.block_q, b.block_k, b.stages, b.dout_stages, b.ds_stages) == backward


def test_the_spaces_of_fa4_try_several_values_of_every_knob():
    assert len(space.forward_candidates(CAUSAL, H200)) > 200
    assert len(space.backward_candidates(PLAIN, H200)) > 500
    for candidates in (space.forward_candidates, space.backward_candidates):
        configs = [*candidates(CAUSAL, H200), *candidates(of_dims(64), H200)]
        for field in dataclasses.fields(configs[0]):
            several = len({getattr(config, field.name) for config in configs}) > 1
            assert several or field.name == "warpgroups"


@pytest.mark.parametrize(
    ("problem", "config", "word"),
    [
        (PLAIN, ForwardConfig(block_q=128, block_k=256), "registers"),
        (of_dims(256), ForwardConfig(block_q=128, block_k=80, num_stages=3), "shared memory"),
        (PLAIN, ForwardConfig(block_q=128, block_k=128, pack_heads=True), "share a key head"),
        (
            dataclasses.replace(FULL, num_q_heads=6),
            ForwardConfig(block_q=128, block_k=128, pack_heads=True),
            "whole groups of 3",
        ),
        (PLAIN, BackwardConfig(block_q=64, block_k=96), "cannot share the 96 of logits"),
        (PLAIN, BackwardConfig(block_q=128, block_k=128), "registers"),
        (of_dims(192), BackwardConfig(block_q=80, block_k=64, groups_dkv=1, transpose_dq=True), "logits"),
        (of_dims(80), BackwardConfig(block_q=64, block_k=128, groups_dq=1), ""),
        (FULL, BackwardConfig(block_q=64, block_k=192, warpgroups=3, groups_dkv=3), "two warpgroups"),
    ],
)
def test_configs_of_fa4_that_cannot_run_are_refused_before_they_are_compiled(problem, config, word):
    direction = "fwd" if isinstance(config, ForwardConfig) else "bwd"
    reason = FA4.searches[direction].infeasible(problem, H200, config)
    assert word in (reason or "")
    assert bool(word) == bool(reason), reason


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        ({"stages": 1, "stage_ds": False}, "one stage"),
        ({"warpgroups": 3}, "groups_dkv=2"),
        ({"one_makes_dq": True, "groups_dq": 2}, "groups_dq=2"),
        ({"one_makes_dq": True, "warpgroups": 3, "groups_dkv": 3}, "two warpgroups"),
        ({"block_q": 72}, "multiple of 16"),
    ],
)
def test_knobs_of_the_backward_of_fa4_that_do_not_go_together_are_refused(knobs, word):
    with pytest.raises(UsageError, match=word):
        BackwardConfig(**{"block_q": 64, "block_k": 128} | knobs)
