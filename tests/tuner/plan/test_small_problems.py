"""Feature problems are made coarser until a kernel takes them."""

import dataclasses
import importlib

import jax.numpy as jnp
import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels import registry
from attn_tune.ops.contract import load
from attn_tune.ops.fields.granularity import STEPS, coarser
from attn_tune.ops.flash_attention.features import features, samples
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.ops.registry import get_op
from attn_tune.schema.config import config_to_dict
from attn_tune.tuner.plan.small_problems import described, features_for, refusal, takeable
from attn_tune.tuner.protocol import FEATURE_SEEDS
from attn_tune.tuner.work.case_functions import compile_case_functions
from attn_tune.tuner.work.validate import judge

FULL = Problem(batch=1, q_len=4096, kv_len=4096, num_q_heads=32, num_kv_heads=8, head_dim=128, v_head_dim=128)
CAUSAL = dataclasses.replace(FULL, causal=True)
DECODE = dataclasses.replace(CAUSAL, batch=4, q_len=1)
PLATFORM = {"pallas_tpu": "tpu-v6e", "xla": "cpu"}
OP = get_op("flash_attention")
FLASH = [spec for spec in registry.kernels().values() if spec.op == OP.name]
CELLS = [(spec, direction) for spec in FLASH for direction in spec.searches]


@pytest.fixture
def libraries(monkeypatch):
    """Answers of limits do not depend on which libraries are installed here."""
    base = "attn_tune.kernels.flash_attention"
    for name in ("tokamax_mosaic", "tokamax_triton"):
        limits = importlib.import_module(f"{base}.{name}.limits")
        monkeypatch.setattr(limits, "wrong_version", lambda: None)
    monkeypatch.setattr(importlib.import_module(f"{base}._fa4.limits"), "wrong_version", lambda *known: None)
    monkeypatch.setattr(importlib.import_module(f"{base}.cudnn.limits"), "cudnn_version", lambda: (9, 19, 0))


def device_of(spec):
    return device_from_kind(PLATFORM.get(spec.backend, "nvidia-h200"))


@pytest.mark.parametrize(("spec", "direction"), CELLS, ids=lambda x: getattr(x, "name", x))
def test_every_kernel_meets_a_feature_problem_and_a_sample(spec, direction, libraries):
    device, search = device_of(spec), spec.searches[direction]
    ungrouped = dataclasses.replace(CAUSAL, num_kv_heads=CAUSAL.num_q_heads)
    bases = [p for p in (CAUSAL, FULL, DECODE, ungrouped) if not spec.unsupported(p, direction, device)]
    assert bases, spec.unsupported(CAUSAL, direction, device)
    for base in bases:
        config = config_to_dict(search.heuristic(base, device))
        assert features_for(OP, spec, direction, device, base, config), base
    refused = refusal(spec, direction, device)
    taken = [name for name, p in samples().items() if takeable(OP, p, refused)]
    assert "plain" in taken


def test_the_untuned_config_of_every_tpu_kernel_meets_more_queries_and_more_keys():
    device = device_from_kind("tpu-v6e")
    for spec in (spec for spec in FLASH if spec.backend == "pallas_tpu"):
        for direction, search in spec.searches.items():
            config = config_to_dict(search.heuristic(CAUSAL, device))
            met = [p for p, _ in features_for(OP, spec, direction, device, CAUSAL, config)]
            assert {(p.q_len > p.kv_len) - (p.q_len < p.kv_len) for p in met} == {-1, 0, 1}
            # Its last tile is cut.
            assert any(p.q_len % 2 for p in met), (spec.id, met)


@pytest.mark.parametrize("step", STEPS)
def test_lengths_grow_to_the_step_that_is_asked_for_and_keep_their_order(step):
    def refused(p):
        return f"not {step}" if p.q_len % step or p.kv_len % step else None

    for hard in features(CAUSAL):
        found = takeable(OP, hard, refused)
        assert refused(found) is None
        assert found.q_len - hard.q_len <= 2 * step
        before, after = hard.q_len - hard.kv_len, found.q_len - found.kv_len
        assert (before > 0, before < 0) == (after > 0, after < 0)
        assert dataclasses.replace(found, q_len=hard.q_len, kv_len=hard.kv_len) == hard


def test_a_description_has_what_no_signature_says():
    usual = OP.from_signature(FULL.signature)
    assert described(OP, usual) == str(FULL.signature)
    unusual = dataclasses.replace(usual, scale=0.3 / 7, needs_lse=False)
    assert described(OP, unusual) == f"{FULL.signature} with scale=0.04286, needs_lse=False"


def test_a_problem_that_a_kernel_takes_is_left_as_it_is():
    xla, cpu = registry.get_kernel("flash_attention/xla"), device_from_kind("cpu")
    config = config_to_dict(xla.searches["fwd"].heuristic(CAUSAL, cpu))
    found = features_for(OP, xla, "fwd", cpu, CAUSAL, config)
    assert found == tuple((problem, config) for problem in features(CAUSAL))


def test_a_config_whose_knob_fits_no_small_problem_is_proven_as_a_lookup_would_adapt_it():
    hopper, h200 = (
        registry.get_kernel("flash_attention/triton_hopper"),
        device_from_kind("nvidia-h200"),
    )
    # Seven groups of four heads: no number of heads of a small problem is a multiple of 28.
    problem = dataclasses.replace(CAUSAL, batch=7, num_q_heads=28, num_kv_heads=7)
    search = hopper.searches["fwd"]
    given = dataclasses.replace(search.heuristic(problem, h200), heads_per_section=28)
    found = features_for(OP, hopper, "fwd", h200, problem, config_to_dict(given))
    assert len(found) == len(features(problem))
    for small, used in found:
        assert used["heads_per_section"] != 28
        assert used == config_to_dict(search.adapt(problem, small, h200, given))
        assert search.infeasible(small, h200, search.adapt(problem, small, h200, given)) is None


def test_a_negative_scale_is_proven_where_a_kernel_takes_it():
    hard = next(p for p in features(CAUSAL) if p.scale < 0)
    assert takeable(OP, hard, lambda p: None) == hard
    found = takeable(OP, hard, lambda p: "sign" if p.scale <= 0 else None)
    assert found == dataclasses.replace(hard, scale=-hard.scale)
    found = takeable(OP, hard, lambda p: "sign or length" if p.scale <= 0 or p.q_len % 64 else None)
    assert (found.scale, found.q_len) == (-hard.scale, 448)


def test_one_query_stays_one_while_longer_keys_are_enough():
    hard = next(p for p in features(DECODE) if p.q_len == 1)
    found = takeable(OP, hard, lambda p: "keys" if p.kv_len % 64 else None)
    assert (found.q_len, found.kv_len) == (1, 320)
    found = takeable(OP, hard, lambda p: "both" if p.kv_len % 64 or p.q_len % 64 else None)
    assert (found.q_len, found.kv_len) == (64, 320)


def test_head_dims_grow_only_where_lengths_do_not_help_and_stay_unequal():
    wider = samples()["wider_values"]
    found = takeable(OP, wider, lambda p: "narrow" if p.head_dim % 64 or p.q_len % 64 else None)
    assert (found.head_dim, found.v_head_dim, found.q_len) == (64, 128, 128)


def test_variants_are_distinct_and_without_the_problem_itself():
    for hard in features(FULL):
        variants = list(coarser(hard))
        assert len(set(variants)) == len(variants)
        assert hard not in variants


def test_a_problem_that_no_change_makes_takeable_is_left_out():
    assert takeable(OP, CAUSAL, lambda problem: "never") is None
    tpu, cpu = registry.get_kernel("flash_attention/pallas_tpu_splash"), device_from_kind("cpu")
    config = config_to_dict(tpu.searches["fwd"].heuristic(CAUSAL, device_from_kind("tpu-v6e")))
    assert features_for(OP, tpu, "fwd", cpu, CAUSAL, config) == ()


def test_a_problem_of_one_sequence_and_head_is_proven_with_several_too():
    one = dataclasses.replace(CAUSAL, batch=1, num_q_heads=1, num_kv_heads=1)
    sizes = {(p.batch, p.num_kv_heads, p.group_size) for p in features(one)}
    assert sizes == {(1, 1, 1), (2, 2, 1), (2, 2, 2)}
    many = dataclasses.replace(CAUSAL, batch=4)
    assert {(p.batch, p.num_kv_heads, p.group_size) for p in features(many)} == {(2, 2, 4), (4, 4, 4)}


SMALL = dataclasses.replace(CAUSAL, num_q_heads=2, num_kv_heads=1, head_dim=32, v_head_dim=32)


def own_delta(problem, inputs):
    """Inputs as a kernel sees them that makes ``delta`` of the output."""
    rows = jnp.sum(inputs.dout.astype(jnp.float32) * inputs.residuals.out, axis=-1)
    return problem, inputs._replace(delta=rows.swapaxes(1, 2))


def own_scale(problem, inputs):
    return dataclasses.replace(problem, scale=problem.head_dim**-0.5), inputs


def where_square(mistake):
    """The mistake of a kernel that has code of its own for as many queries as keys."""
    return lambda p, inputs: mistake(p, inputs) if p.q_len == p.kv_len else (p, inputs)


def nothing_without_lse(problem, inputs):
    return problem, inputs if problem.needs_lse else inputs._replace(v=0 * inputs.v)


def two_sequences(problem, inputs):
    """Inputs in which all sequences behind the second are like the first."""
    return problem, inputs._replace(v=inputs.v.at[2:].set(inputs.v[:1]))


def ids_through(change):
    """The mistake of a kernel that reads segment ids through ``change``."""
    return lambda p, i: (p, i._replace(q_segments=change(i.q_segments), kv_segments=change(i.kv_segments)))


@pytest.mark.parametrize(
    ("direction", "mistake", "flags"),
    [
        ("fwd", own_scale, {}),
        pytest.param("bwd", own_scale, {}, marks=pytest.mark.exhaustive),
        ("bwd", own_delta, {}),
        ("fwd", where_square(own_scale), {}),
        ("bwd", where_square(own_delta), {}),
        ("fwd", nothing_without_lse, {}),
        ("fwd", two_sequences, {"batch": 2}),
        ("fwd", ids_through(lambda ids: ids.astype(jnp.int8)), {"has_segments": True}),
        ("fwd", ids_through(lambda ids: jnp.maximum(ids, 0)), {"has_segments": True}),
    ],
    ids=[
        *("own scale", "own scale", "own delta", "own scale of a square", "own delta of a square"),
        *("nothing without lse", "two sequences", "ids in a byte", "ids not negative"),
    ],
)
def test_feature_problems_find_a_kernel_with_a_mistake_that_one_problem_hides(direction, mistake, flags):
    search = registry.get_kernel("flash_attention/xla").searches[direction]

    def is_found(small):
        case = compile_case_functions(OP, small, direction).make(*FEATURE_SEEDS)
        config = search.heuristic(small, device_from_kind("cpu"))
        right, mistaken = (
            max(error.ratio for error in judge(load(search.call)(problem, config, inputs), case, ())) <= 1
            for problem, inputs in ((small, case.inputs), mistake(small, case.inputs))
        )
        assert right
        return not mistaken

    # One is enough: that the kernel is right on all of them is tried elsewhere.
    assert any(map(is_found, features(dataclasses.replace(SMALL, **flags))))


def test_an_odd_number_of_keys_is_kept_where_only_queries_must_be_even():
    for hard in features(SMALL):
        if hard.q_len != hard.kv_len and hard.q_len > 1:
            taken = takeable(OP, hard, lambda p: "odd queries" if p.q_len % 8 else None)
            assert taken is not None
            assert taken.kv_len == hard.kv_len
