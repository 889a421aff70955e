"""The space of every kernel: untuned choice, candidates, reasons and adapted configs, for every op."""

import importlib

import pytest

from attn_tune.kernels.registry import kernels
from attn_tune.ops.registry import get_op
from attn_tune.schema.config import config_from_dict, config_to_dict
from tests.ops import cases
from tests.ops.cases import CPU, CUDA, H200, TPUS

KERNELS = kernels()
GPUS = (H200, *(device for device in CUDA if device.family != H200.family))
GROUPS = ("TILED", "SHORT", "ON_HOPPER", "LIBRARIES")
FLASH = {
    backend: {f"{group} {name}": problem for group in groups for name, problem in getattr(cases, group).items()}
    for backend, groups in {"xla": ("LENGTHS",), "pallas_tpu": ("ON_TPU",), "": GROUPS}.items()
}
CELLS = [
    pytest.param(kernel, device, id=f"{kernel}-{device.variant}-{device.family}")
    for kernel, spec in KERNELS.items()
    for device in {"xla": (CPU, H200), "pallas_tpu": TPUS}.get(spec.backend, GPUS)
]
# So many candidates may run at least, or all if there are fewer; of other kernels all may.
LEAST = {"triton": 10, "triton_fused": 5, "triton_split": 5, "xla": 1}
MOST = dict.fromkeys(("triton", "triton_fused", "triton_split"), 350)


@pytest.fixture(autouse=True)
def libraries(monkeypatch):
    """Answers do not depend on which libraries are installed here."""
    cases.with_libraries(monkeypatch)
    limits = importlib.import_module("attn_tune.kernels.flash_attention.cudnn.limits")
    monkeypatch.setattr(limits, "cudnn_version", lambda: (9, 19, 0))


def problems_of(spec):
    if spec.op == "flash_attention":
        return FLASH.get(spec.backend, FLASH[""])
    op = get_op(spec.op)
    texts = (text for text in cases.SIGNATURES if text.startswith(f"{spec.op}/"))
    return {text: op.from_signature(op.parse_signature(text)) for text in texts}


def supported(spec, device, direction):
    return {
        name: problem
        for name, problem in problems_of(spec).items()
        if spec.unsupported(problem, direction, device) is None
    }


def near(op, problem):
    """A problem with three quarters of each length, as a lookup borrows a config for it."""
    text = problem.signature.text
    for axis in op.axes:
        value = problem.signature.values[axis.field]
        text = text.replace(f" {axis.field}={value} ", f" {axis.field}={max(1, value * 3 // 4)} ")
    return op.from_signature(op.parse_signature(text))


@pytest.mark.parametrize(("kernel", "device"), CELLS)
def test_candidates_are_distinct_and_feasible_and_start_at_the_untuned_choice(kernel, device):
    spec = KERNELS[kernel]
    for direction, search in spec.searches.items():
        for name, problem in supported(spec, device, direction).items():
            start = search.heuristic(problem, device)
            assert search.infeasible(problem, device, start) is None, name
            assert config_from_dict(search.config, config_to_dict(start)) == start
            for part, make in search.candidates.items():
                candidates = list(make(problem, device))
                first = getattr(start, part) if part else start
                assert candidates[0] == first or spec.backend == "xla", name
                assert first in candidates
                assert len(set(candidates)) == len(candidates), name
                assert len(candidates) <= MOST.get(spec.name, len(candidates)), name
                # The order does not depend on that of a set.
                assert candidates == list(make(problem, device)), name
                reasons = [search.infeasible(problem, device, c) for c in candidates]
                feasible = reasons.count(None)
                if spec.backend == "pallas_tpu":
                    # Configs that are wrong otherwise are not in a space.
                    assert all("MiB" in reason for reason in reasons if reason), name
                    assert feasible > len(candidates) / 4, name
                else:
                    least = LEAST.get(spec.name, len(candidates))
                    assert feasible >= min(least, len(candidates)), name


@pytest.mark.parametrize(("kernel", "device"), CELLS)
def test_the_untuned_config_of_a_near_problem_is_adapted_to_one_that_may_run_or_to_none(kernel, device):
    spec = KERNELS[kernel]
    for direction, search in spec.searches.items():
        for name, tuned in supported(spec, device, direction).items():
            asked = near(get_op(spec.op), tuned)
            if spec.unsupported(asked, direction, device) is None:
                found = search.adapt(tuned, asked, device, search.heuristic(tuned, device))
                assert type(found) in (search.config, type(None)), name
                assert found is None or search.infeasible(asked, device, found) is None, name


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_reason_of_an_unsupported_problem_is_one_phrase(kernel):
    spec = KERNELS[kernel]
    for device in (CPU, *GPUS, *TPUS):
        for direction in spec.searches:
            for problem in problems_of(spec).values():
                reason = spec.unsupported(problem, direction, device)
                assert reason is None or (reason.strip() == reason and reason and "\n" not in reason)


SUPPORTED = {
    "triton": (cases.TILED, CUDA),
    "triton_split": (cases.SHORT, CUDA),
    "triton_hopper": (cases.ON_HOPPER, (H200,)),
    "pallas_tpu_flash": (cases.ON_TPU, TPUS),
    "pallas_tpu_splash": (cases.ON_TPU, TPUS),
    # Of the long one its shares of dq would take 128 GiB, and of wide float32 all of a v5e's memory.
    "pallas_tpu_splash_fused": (
        {n: p for n, p in cases.ON_TPU.items() if n != "long"},
        tuple(device for device in TPUS if device.family != "v5e"),
    ),
    "xla": (cases.LENGTHS, (CPU, H200)),
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_the_problem_that_a_kernel_was_made_for_is_supported(name):
    spec = KERNELS[f"flash_attention/{name}"]
    problems, devices = SUPPORTED[name]
    for device in devices:
        for direction in spec.searches:
            reasons = {n: spec.unsupported(p, direction, device) for n, p in problems.items()}
            assert set(reasons.values()) == {None}, reasons


def test_the_fused_backward_is_supported_but_for_float32_heads_of_256_on_small_gpus():
    spec = KERNELS["flash_attention/triton_fused"]
    for device in CUDA:
        refused = [n for n, p in cases.TILED.items() if spec.unsupported(p, "bwd", device)]
        small = device.family in ("sm_86", "sm_89", "sm_120")
        assert refused == (["float32-h256"] if small else [])
