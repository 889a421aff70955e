"""The cases of the Triton kernels. Run as a script under ``TRITON_INTERPRET=1`` it prints the errors of each kernel
and case as JSON; its arguments are pairs such as "full triton", or none for all cases with all kernels.

A script because the interpreter has to be chosen before the kernels are imported, and the tests of the compiled
kernels need them not interpreted.
"""

import functools
import itertools
import json
import os
from dataclasses import dataclass, field

import numpy as np

from attn_tune.ops.flash_attention.problem import Problem
from tests.kernels.triton_interpreter import asked_for, prepare_language_once

# (block_q, block_k); two tilings of one problem meet every edge in different places.
ONE = ((32, 16),)
BOTH = ((16, 32), (32, 32))
TOLERANCE = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Case:
    name: str
    problem: Problem
    tilings: tuple
    sink: float | None
    tolerance: float
    ids: int = 4  # segments of a row, long runs if few
    mixed: bool = False  # runs of 16 in any order, so that what a tile sees has gaps


def _case(
    name, T=40, S=None, N=2, K=None, H=32, V=None, B=1, tilings=ONE, sink=None, tolerance=None,
    ids=4, mixed=False, **flags
):  # fmt: skip
    flags = {"dtype": "float32", "precision": "highest", "scale": H**-0.5} | flags
    problem = Problem(
        batch=B, q_len=T, kv_len=S or T, num_q_heads=N, num_kv_heads=K or N, head_dim=H, v_head_dim=V or H, **flags
    )  # fmt: skip
    return Case(name, problem, tilings, sink, tolerance or TOLERANCE[problem.dtype], ids, mixed)


ALL = {
    "causal": True,
    "window": (30, None),
    "mask_dims": "b1ts",
    "bias_dims": "1nts",
    "has_segments": True,
    "has_positions": True,
    "has_sinks": True,
    "soft_cap": 3.0,
    "dropout_rate": 0.25,
}

LENGTHS = {"has_segments": True, "has_lengths": True}

CASES = (
    _case("full", T=64, tilings=BOTH),
    _case("full-odd", T=37, S=51, tilings=BOTH),
    _case("causal", T=64, causal=True, tilings=BOTH),
    _case("causal-more-keys", T=33, S=70, N=1, causal=True, tilings=BOTH),
    _case("causal-more-rows-than-keys", T=70, S=33, N=1, causal=True, tilings=BOTH),
    _case("one-row", T=1, S=45, causal=True, N=4, K=2),
    _case("one-key", T=20, S=1, N=1),
    _case("window-causal", T=90, S=90, N=1, causal=True, window=(20, None), tilings=BOTH),
    _case("window-two-sided", T=70, S=85, N=1, window=(9, 25), tilings=BOTH),
    _case("window-wide", T=50, S=50, N=1, window=(100, 200)),
    _case("window-right-only", T=60, S=41, N=1, window=(None, 7)),
    _case("window-zero", T=48, N=1, window=(0, 0)),
    _case("window-hides-rows", T=80, S=20, N=1, window=(5, 5)),
    *(_case(f"mask-{d}", T=35, S=44, mask_dims=d) for d in ("b1ts", "1n1s", "11t1")),
    _case("mask-bnts-batches", T=20, S=25, B=2, mask_dims="bnts"),
    _case("mask-causal", T=35, S=44, N=1, mask_dims="11ts", causal=True),
    *(
        _case(f"bias-{d}", T=20, S=35, B=2, bias_dims=d)
        for d in ("bnts", "1nts", "b1ts", "11ts", "b11s", "1n11", "11t1", "1111", "bn1s")
    ),
    _case("bias-infinite", T=35, S=44, N=1, bias_dims="11ts", sink=-np.inf),
    _case("bias-causal-gqa-bfloat16", bias_dims="1nts", causal=True, K=1, dtype="bfloat16"),
    _case("segments", T=50, N=1, B=2, has_segments=True, causal=True),
    _case("segments-cross", T=30, S=45, N=1, has_segments=True),
    _case("segments-long", T=72, N=1, has_segments=True, causal=True, ids=2, tilings=BOTH),
    _case("segments-long-window", T=72, N=1, has_segments=True, window=(25, 9), ids=2),
    _case("segments-mixed", T=64, N=1, B=2, has_segments=True, ids=3, mixed=True),
    _case("segments-padding", T=50, S=60, N=2, K=1, has_segments=True, ids=1),
    _case("segments-long-sinks", T=48, N=1, has_segments=True, has_sinks=True, ids=2),
    # Of the last entry no key counts; tiles of 16 and 32 keys end in the middle of the others' padding.
    _case("lengths", T=20, S=75, N=4, K=2, B=3, **LENGTHS, tilings=BOTH),
    _case("lengths-whole-tiles", T=33, S=64, N=2, B=2, **LENGTHS, causal=True, dtype="bfloat16"),
    _case("lengths-cap-dropout", T=20, S=50, N=1, B=3, **LENGTHS, soft_cap=2.0, dropout_rate=0.3),
    _case("lengths-bias-window", T=40, N=1, B=3, **LENGTHS, window=(20, 9), bias_dims="11ts"),
    _case("lengths-column-bias", T=20, S=50, N=1, B=3, **LENGTHS, bias_dims="b11s", has_sinks=True),
    _case("positions-causal", T=50, N=1, B=2, has_positions=True, has_segments=True, causal=True),
    _case("positions-window", T=50, S=40, N=1, has_positions=True, window=(6, 3)),
    _case("sinks", T=35, S=44, has_sinks=True, sink=0.7, tilings=BOTH),
    _case("sinks-minus-infinity", T=35, S=20, has_sinks=True, sink=-np.inf, causal=True),
    _case("sinks-hidden-rows", T=35, S=20, has_sinks=True, sink=0.7, causal=True),
    _case("soft-cap", soft_cap=1.5, N=1, causal=True),
    # Logits in the hundreds: float32 itself leaves an absolute error of 1e-5 in them, or in 1 - tanh**2.
    _case("soft-cap-saturated", soft_cap=0.3, N=1, scale=40.0, tolerance=2e-4),
    _case("dropout", T=35, S=44, dropout_rate=0.3, tilings=BOTH),
    _case("dropout-gqa-causal", T=20, B=2, N=4, K=2, dropout_rate=0.6, causal=True),
    _case("gqa", B=2, N=4, K=2, T=30, causal=True),
    _case("mqa", N=3, K=1, T=20, S=50),
    _case("head-dims-differ", H=24, V=48, N=1, causal=True),
    _case("head-dim-80", H=80, V=80, N=1),
    _case("head-dim-narrow", H=16, V=40, N=1),
    _case("head-dim-odd", H=13, V=7),
    _case("negative-scale", scale=-0.3, N=1, causal=True),
    _case("zero-scale", scale=0.0, N=1, causal=True),
    _case("large-logits", scale=60.0, N=1, tolerance=3e-4),
    _case("bfloat16", dtype="bfloat16", causal=True, tilings=BOTH),
    _case("float16", dtype="float16", causal=True),
    _case("float32-default", precision="default", N=1),
    _case("logits-bfloat16", dtype="bfloat16", logits_dtype="bfloat16", bias_dims="11ts", N=1, tolerance=6e-2),
    _case("logits-float16-cap", logits_dtype="float16", soft_cap=2.0, N=1, tolerance=2e-3),
    _case("everything", T=37, S=45, N=4, K=2, H=24, V=20, **ALL),
    _case("everything-bfloat16", T=37, S=45, K=1, H=24, V=20, **ALL, dtype="bfloat16"),
)  # fmt: skip

# The tiles, masks and biases of the first kernel are those of the others: these are tried on each feature, not on each
# variant of it.
OTHERS = {
    "full-odd", "causal-more-keys", "causal-more-rows-than-keys", "one-row", "window-two-sided",
    "window-hides-rows", "mask-b1ts", "mask-11t1", "mask-bnts-batches", "bias-bnts", "bias-11ts", "bias-b11s",
    "bias-1n11", "bias-infinite", "bias-causal-gqa-bfloat16", "segments-cross", "segments-long-window",
    "segments-mixed", "lengths", "lengths-cap-dropout", "lengths-column-bias", "positions-window",
    "sinks-minus-infinity", "sinks-hidden-rows", "soft-cap", "dropout-gqa-causal", "mqa", "head-dims-differ",
    "head-dim-odd", "zero-scale", "large-logits", "bfloat16", "float16", "float32-default", "logits-bfloat16",
    "everything", "everything-bfloat16",
}  # fmt: skip


@dataclass
class Inputs:
    """One case's arrays, in its dtype, as numpy."""

    arrays: dict
    dout: np.ndarray
    dlse: np.ndarray = field(repr=False)


def make_inputs(case: Case) -> Inputs:
    """Random arrays. Masks and segments hide some rows entirely; segment ids include the two of padding."""
    import ml_dtypes

    p = case.problem
    rng = np.random.default_rng(sum(map(ord, case.name)))
    dtype = np.dtype(getattr(ml_dtypes, p.dtype, p.dtype))
    sizes = {"b": p.batch, "n": p.num_q_heads, "t": p.q_len, "s": p.kv_len}

    def normal(*shape):
        return rng.standard_normal(shape, np.float32).astype(dtype)

    def spanned(dims):
        return tuple(1 if d == "1" else sizes[d] for d in dims)

    arrays = {
        "q": normal(p.batch, p.q_len, p.num_q_heads, p.head_dim),
        "k": normal(p.batch, p.kv_len, p.num_kv_heads, p.head_dim),
        "v": normal(p.batch, p.kv_len, p.num_kv_heads, p.v_head_dim),
    }
    if p.bias_dims:
        arrays["bias"] = normal(*spanned(p.bias_dims))
        if "t" in p.bias_dims:
            # The exponential of minus their lse overflows, and weights of keys beyond the end with it.
            arrays["bias"][:, :, 2::9] -= 100
        if case.sink == -np.inf:
            arrays["bias"][..., ::3] = -np.inf
            arrays["bias"][:, :, 5:9] = -np.inf
    if p.mask_dims:
        arrays["mask"] = rng.random(spanned(p.mask_dims)) < 0.7
        if "t" in p.mask_dims:
            arrays["mask"][:, :, 3:20] = False
    if p.has_lengths:
        lengths = rng.integers(1, p.kv_len, p.batch, np.int32)
        lengths[-1] = 0
        arrays["kv_lengths"] = lengths
        arrays["q_segments"] = np.zeros((p.batch, p.q_len), np.int32)
        arrays["kv_segments"] = np.where(np.arange(p.kv_len) < lengths[:, None], 0, -2).astype("i4")
    elif p.has_segments:
        for side, length in (("q", p.q_len), ("kv", p.kv_len)):
            ids = rng.integers(0, case.ids, (p.batch, length), np.int32)
            if case.mixed:
                ids = ids[:, ::16].repeat(16, 1)[:, :length]
            arrays[f"{side}_segments"] = ids if case.mixed else np.sort(ids, 1)
        arrays["q_segments"][:, -5:] = -1
        arrays["kv_segments"][:, -3:] = -2
    if p.has_positions:
        arrays["q_positions"] = (np.arange(p.q_len, dtype=np.int32) % 23)[None].repeat(p.batch, 0)
        arrays["kv_positions"] = rng.integers(0, 30, (p.batch, p.kv_len), np.int32)
    if p.has_sinks:
        arrays["sinks"] = rng.standard_normal(p.num_q_heads, np.float32)
        if case.sink is not None:
            arrays["sinks"][0] = case.sink
    if p.dropout_rate:
        arrays["dropout"] = np.array([4000000007, 3, 5], np.uint32)
    return Inputs(
        arrays,
        normal(p.batch, p.q_len, p.num_q_heads, p.v_head_dim),
        rng.standard_normal((p.batch, p.num_q_heads, p.q_len), np.float32),
    )


@functools.lru_cache(maxsize=1)
def _given(case: Case):
    """The operands and the inputs of the backward, the same for each kernel, and the outputs of the oracle."""
    import jax.numpy as jnp

    from attn_tune.ops.flash_attention.operands import BackwardInputs, Operands, Residuals
    from tests.kernels.flash_attention.triton_oracle import gradients

    p, inputs = case.problem, make_inputs(case)
    out, lse, delta, expected = gradients(p, inputs.arrays, inputs.dout, inputs.dlse)
    expected |= {"out": out, "lse": lse}
    arrays = inputs.arrays | _with_garbage(inputs.arrays)
    operands = Operands(**{name: jnp.asarray(x) for name, x in arrays.items()})
    back = BackwardInputs(
        operands,
        Residuals(jnp.asarray(out, inputs.dout.dtype), jnp.asarray(lse, jnp.float32)),
        jnp.asarray(inputs.dout),
        jnp.asarray(delta, jnp.float32),
    )
    return operands, back, expected


def errors(case: Case, kernel: str) -> dict[str, float]:
    """The largest error of each output over the case's tilings, over the output's largest value (at least 1)."""
    p, (operands, back, expected) = case.problem, _given(case)
    worst: dict[str, float] = {}
    # The others walk the tiles of the first kernel.
    tilings = case.tilings if kernel == "triton" else case.tilings[:1]
    for turn, (block_q, block_k) in enumerate(tilings, start=CASES.index(case)):
        tile = {"block_q": block_q, "block_k": block_k, "num_warps": 4, "num_stages": 2}
        got = RUNS[kernel](p, tile, operands, back, turn)
        assert got.keys() == expected_outputs(case, kernel), got.keys()
        for name, value in got.items():
            primal = getattr(operands, {"out": "q", "lse": "sinks"}.get(name, name[1:]), None)
            assert name == "lse" or value.dtype == primal.dtype, (name, value.dtype)
            error = distance(np.asarray(value, np.float64), expected[name])
            worst[name] = max(worst.get(name, 0.0), error)
    return worst


def _with_garbage(arrays: dict) -> dict:
    """Keys and values with NaN and infinities beyond the lengths, which the oracle does not see."""
    spoilt = {}
    if "kv_lengths" in arrays:
        for name, garbage in (("k", (np.nan, np.inf)), ("v", (-np.inf, np.nan))):
            spoilt[name] = arrays[name].copy()
            for entry, length in enumerate(arrays["kv_lengths"]):
                spoilt[name][entry, length:] = garbage[entry % 2]
    return spoilt


def expected_outputs(case: Case, kernel: str) -> set[str]:
    """The outputs of ``kernel`` for this case."""
    forward = {"out", "lse"}
    backward = {"dq", "dk", "dv"} | ({"dbias"} if case.problem.bias_dims else set())
    return {"triton_fused": backward, "triton_split": forward}.get(kernel, forward | backward)


def _run_triton(p, tile, operands, back, turn):
    import jax

    from attn_tune.kernels.flash_attention.triton.backward import backward
    from attn_tune.kernels.flash_attention.triton.config import (
        BackwardConfig,
        DkvConfig,
        DqConfig,
        ForwardConfig,
    )
    from attn_tune.kernels.flash_attention.triton.forward import forward

    config = BackwardConfig(dq=DqConfig(**tile), dkv=DkvConfig(**tile))
    got = jax.jit(forward, static_argnums=(0, 1))(p, ForwardConfig(**tile), operands)
    return got | jax.jit(backward, static_argnums=(0, 1))(p, config, back)


def _run_fused(p, tile, operands, back, turn):
    import jax

    from attn_tune.kernels.flash_attention.triton_fused.backward import backward
    from attn_tune.kernels.flash_attention.triton_fused.config import BackwardConfig

    # The two ways to make dq share all that features touch: cases and their tilings take turns.
    config = BackwardConfig(**tile, transposed_dq=turn % 2 == 1)
    return jax.jit(backward, static_argnums=(0, 1))(p, config, back)


def _run_split(p, tile, operands, back, turn):
    import jax

    from attn_tune.kernels.flash_attention.triton_split.config import ForwardConfig
    from attn_tune.kernels.flash_attention.triton_split.forward import forward

    # One program writes the result itself, which every fourth is for; of four, some have no keys at all.
    config = ForwardConfig(**tile, num_splits=4 if turn % 4 else 1)
    return jax.jit(forward, static_argnums=(0, 1))(p, config, operands)


RUNS = {"triton": _run_triton, "triton_fused": _run_fused, "triton_split": _run_split}
PAIRS = tuple((case.name, kernel) for case in CASES for kernel in RUNS if kernel == "triton" or case.name in OTHERS)
# The others are exhaustive.
TESTED = {
    *(
        f"{name} triton"
        for name in (
            "full-odd", "causal-more-keys", "causal-more-rows-than-keys", "one-row", "one-key", "window-two-sided",
            "window-hides-rows", "mask-11t1", "mask-bnts-batches", "bias-b11s", "bias-1n11", "bias-infinite",
            "segments-long-window", "segments-mixed", "segments-padding", "lengths", "lengths-cap-dropout",
            "lengths-column-bias", "positions-window", "sinks-minus-infinity", "soft-cap-saturated",
            "dropout-gqa-causal", "head-dim-odd", "zero-scale", "large-logits", "float16", "float32-default",
            "logits-bfloat16", "logits-float16-cap", "everything", "everything-bfloat16",
        )
    ),
    *(
        f"{name} {kernel}"
        for kernel in ("triton_fused", "triton_split")
        for name in (
            "one-row", "window-hides-rows", "mask-bnts-batches", "bias-infinite", "segments-mixed",
            "lengths-cap-dropout", "positions-window", "sinks-hidden-rows", "dropout-gqa-causal", "head-dim-odd",
            "large-logits", "float16", "everything", "everything-bfloat16",
        )
    ),
}  # fmt: skip


def distance(got: np.ndarray, expected: np.ndarray) -> float:
    """Infinite where a shape, an infinity or a NaN differs."""
    if got.shape != expected.shape:
        return float("inf")
    same = (got == expected) & ~np.isfinite(expected)
    difference = np.where(same, 0.0, np.abs(got - np.where(same, 0.0, expected)))
    largest = np.max(np.abs(expected), initial=1.0, where=np.isfinite(expected))
    worst = float(np.max(difference)) / largest
    return worst if np.isfinite(worst) else float("inf")


def main() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("set TRITON_INTERPRET=1")
    prepare_language_once()
    cases = {case.name: case for case in CASES}
    for name, kernel in asked_for(tuple(itertools.product(cases, RUNS))):
        try:
            result = {"errors": errors(cases[name], kernel)}
        except Exception as error:  # one broken case must not hide the others; its own test fails with this
            result = {"raised": f"{type(error).__name__}: {error}"}
        print(json.dumps({"kernel": kernel, "case": name} | result), flush=True)


if __name__ == "__main__":
    main()
