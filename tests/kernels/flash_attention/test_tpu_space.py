"""The spaces of the TPU kernels: what may be tried, what is refused and why, and which blocks a launch visits."""

import dataclasses

import numpy as np
import pytest

from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels.flash_attention._splash import vmem as splash_vmem
from attn_tune.kernels.flash_attention._splash.config import DkvLaunch, DqLaunch, ForwardLaunch, FusedLaunch
from attn_tune.kernels.flash_attention._splash.schedule import Schedule
from attn_tune.kernels.flash_attention.pallas_tpu_flash import SPEC as FLASH, vmem as flash_vmem
from attn_tune.kernels.flash_attention.pallas_tpu_flash.config import DkvConfig, ForwardConfig
from attn_tune.kernels.flash_attention.pallas_tpu_splash import SPEC as SPLASH
from attn_tune.kernels.flash_attention.pallas_tpu_splash_fused import SPEC as FUSED
from attn_tune.kernels.lang.pallas_tpu.launch_results import launch_results
from attn_tune.kernels.lang.pallas_tpu.memory import limit_of
from attn_tune.kernels.lang.pallas_tpu.rewrite import rewritten
from attn_tune.kernels.lang.pallas_tpu.scalars import table_bytes
from attn_tune.ops.flash_attention import problem as dense
from attn_tune.ops.flash_attention.features import samples
from attn_tune.ops.flash_attention.operands import Operands
from attn_tune.ops.registry import get_op
from attn_tune.runtime.lookup.dispatch import choose
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.kernels.flash_attention import dense_numpy
from tests.ops.cases import ON_TPU

SPECS = (FLASH, SPLASH, FUSED)
TARGETS = tuple(device_from_kind(f"tpu-{name}") for name in ("v4", "v5e", "v5p", "v6e", "v7x"))
V4, V6E = TARGETS[0], TARGETS[3]
PROBLEMS = samples()
NO_ARRAYS = Operands(q=None, k=None, v=None)  # type: ignore[arg-type]
LLAMA = ON_TPU["llama"]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("lengths", [(1024, 1024), (2048, 2048), (1100, 1300), (4096, 3000)])
def test_a_config_of_a_near_problem_is_adapted_to_one_that_may_run(spec, lengths):
    tuned = dataclasses.replace(LLAMA, q_len=2048, kv_len=2048)
    asked = dataclasses.replace(tuned, batch=5, q_len=lengths[0], kv_len=lengths[1])
    for search in spec.searches.values():
        base, changed = search.heuristic(tuned, V6E), 0
        for part, candidates in search.candidates.items():
            for config in candidates(tuned, V6E):
                whole = search.whole(base, part, config)
                if search.infeasible(tuned, V6E, whole) is not None:
                    continue
                found = search.adapt(tuned, asked, V6E, whole)
                assert search.infeasible(asked, V6E, found) is None
                changed += found != whole
                if search.infeasible(asked, V6E, whole) is None:
                    # A config that may run here stays as it is.
                    assert found == whole
        assert changed or min(lengths) >= 2048


def test_a_config_that_does_not_fit_is_refused_with_the_numbers():
    large = ForwardLaunch(block_q=2048, block_kv=2048, block_kv_compute=1024)
    reason = SPLASH.searches["fwd"].infeasible(LLAMA, V4, large)
    assert "MiB of VMEM; its limit on tpu-v4 is 16 MiB" in reason
    # The same blocks fit a v6e, whose default is twice that.
    assert SPLASH.searches["fwd"].infeasible(LLAMA, V6E, large) is None
    above = dataclasses.replace(large, vmem_limit_kib=128 * 1024)
    assert "not below" in SPLASH.searches["fwd"].infeasible(LLAMA, V6E, above)


# What libtpu 0.0.52 took of launches whose operands were in HBM, in MiB: read from its dumps, or from its refusal.
TAKEN = [
    (SPLASH, "fwd", "tpu-v4", "n=24 k=8 h=256 v=256 dtype=float32 causal=1 seg=1", (1024, 1024, 512), 16.66),
    (SPLASH, "fwd", "tpu-v5e", "n=24 k=2 h=256 v=256 dtype=float32 sinks=1", (1024, 1024, 512), 15.49),
    (SPLASH, "fwd", "tpu-v6e", "n=1 k=1 h=96 v=96 dtype=float32 seg=1", (128, 1024, 128), 3.55),
    (SPLASH, "dkv", "tpu-v4", "n=14 k=2 h=256 v=64 dtype=float32 causal=1 seg=1", (1024, 1024, 512), 16.15),
    (SPLASH, "dkv", "tpu-v6e", "n=2 k=1 h=64 v=64 dtype=float32 causal=1 left=127", (2048, 1024, 1024), 23.89),
    (SPLASH, "dq", "tpu-v4", "n=64 k=32 h=192 v=192 dtype=bfloat16 causal=1 left=127", (1024, 128, None), 7.23),
    (FLASH, "fwd", "tpu-v5e", "n=10 k=2 h=192 v=96 dtype=float32 sinks=1", (1024, 1024, 512), 16.96),
    (FLASH, "fwd", "tpu-v5p", "n=4 k=1 h=128 v=128 dtype=bfloat16 causal=1 seg=1 sinks=1", (512, 2048, 512), 9.40),
]


@pytest.mark.parametrize(("spec", "part", "kind", "flags", "blocks", "mib"), TAKEN)
def test_no_launch_takes_more_than_is_expected_of_it(spec, part, kind, flags, blocks, mib):
    op, device = get_op("flash_attention"), device_from_kind(kind)
    p = op.from_signature(op.parse_signature(f"flash_attention/v1 b=1 t=32768 s=32768 {flags}"))
    q, kv, compute = blocks
    if spec is FLASH:
        launch, expected = ForwardConfig(block_q=q, block_k_major=kv, block_k=compute), flash_vmem.expected_bytes
    else:
        more = {} if compute is None else {"block_kv_compute": compute}
        launch_type = {"fwd": ForwardLaunch, "dq": DqLaunch, "dkv": DkvLaunch}[part]
        launch, expected = launch_type(block_q=q, block_kv=kv, **more), splash_vmem.expected_bytes
    assert mib <= expected(p, launch) / 2**20 <= 1.25 * mib
    chosen = spec.searches["fwd" if part == "fwd" else "bwd"].heuristic(p, device)
    chosen = chosen if part == "fwd" else getattr(chosen, part)
    limit = limit_of(device, chosen.vmem_limit_kib)
    assert expected(p, chosen) <= limit


def test_tables_that_scalar_memory_cannot_hold_are_refused():
    small = ForwardLaunch(block_q=128, block_kv=128, block_kv_compute=128)
    assert "scalar memory" in SPLASH.searches["fwd"].infeasible(ON_TPU["long"], V6E, small)
    whole = dataclasses.replace(ON_TPU["long"], causal=False)
    assert SPLASH.searches["fwd"].infeasible(whole, V6E, small) is None


@pytest.mark.parametrize("name", ["causal", "causal_longer_keys", "window", "causal_window", "segments"])
@pytest.mark.parametrize(("lengths", "blocks"), [((9000, 9100), (128, 256)), ((300, 20000), (128, 128))])
def test_tables_are_counted_as_they_lie_in_scalar_memory(name, lengths, blocks):
    p = dataclasses.replace(PROBLEMS[name], batch=3, q_len=lengths[0], kv_len=lengths[1])
    schedule = Schedule(problem=p, block_q=blocks[0], block_kv=blocks[1])
    sizes = {"block_q": blocks[0], "block_kv": blocks[1]}
    for launch, info in (
        (DqLaunch(**sizes), schedule.by_rows()),
        (DkvLaunch(**sizes, block_kv_compute=128), schedule.by_columns(shrink=True)),
        (FusedLaunch(**sizes, block_kv_compute=128), schedule.by_columns(shrink=False)),
    ):
        tables = [table for table in (info.block_mask, info.data_next) if table is not None]
        exact = sum(table_bytes(*table.shape[1:], table.dtype.itemsize) for table in tables)
        # A window's bound is a block or two above what a block sees.
        assert exact <= splash_vmem.smem_bytes(p, launch) <= max(1.5 * exact, exact + 8 * 128 * 128)


def test_rows_of_scalars_fill_lanes():
    # As libtpu allocated them.
    assert table_bytes(3, 900, 1) == table_bytes(4, 1024, 1) == 4096
    assert table_bytes(1, 700, 2) == 2 * 768 * 2
    assert table_bytes(33, 900, 4) == 40 * 1024 * 4


def test_tables_of_millions_of_tokens_fit_where_blocks_are_large_or_a_window_hides_most():
    long = dataclasses.replace(ON_TPU["long"], q_len=1 << 20, kv_len=1 << 20)
    longer = dataclasses.replace(long, q_len=1 << 21, kv_len=1 << 21)
    windowed = dataclasses.replace(longer, window=(4096, None))
    for kind in ("fwd", "bwd"):
        search = SPLASH.searches[kind]
        assert "scalar memory" in search.infeasible(longer, V6E, search.heuristic(longer, V6E))
        found = search.heuristic(long, V6E)
        assert search.infeasible(long, V6E, found) is None
        assert (found if kind == "fwd" else found.dkv).block_q == 2048
        found = search.heuristic(windowed, V6E)
        assert search.infeasible(windowed, V6E, found) is None
        assert (found if kind == "fwd" else found.dkv).block_q == 1024


def test_a_mask_is_left_to_xla_where_it_would_fill_memory():
    # Compiled for v5e, its backward took 142 GiB, XLA's fitted.
    p = dataclasses.replace(
        LLAMA, batch=8, q_len=8192, kv_len=8192, num_q_heads=32, num_kv_heads=8, causal=False, mask_dims="b11s"
    )
    reason = FLASH.unsupported(p, "bwd", V6E)
    assert "all pairs in memory, 3 times 64.0 GiB: more than half of the 32 GiB of tpu-v6e" in reason
    assert choose("flash_attention", "bwd", p, device=V6E).spec.name == "xla"
    short = dataclasses.replace(p, batch=1, q_len=2048, kv_len=2048)
    assert FLASH.unsupported(short, "bwd", V6E) is None
    # A backward has the gradient of it too.
    between = dataclasses.replace(p, batch=2, q_len=4096, kv_len=4096)
    assert FLASH.unsupported(dataclasses.replace(between, batch=3), "fwd", V6E) is None
    assert FLASH.unsupported(dataclasses.replace(between, batch=3), "bwd", V6E) is not None


def test_a_fused_backward_is_refused_where_its_shares_would_fill_memory():
    # Compiled for v5p, with blocks of 2048: 129.8 GiB.
    long = dense.Problem(
        batch=1, q_len=1 << 20, kv_len=1 << 20, num_q_heads=1, num_kv_heads=1, head_dim=128, v_head_dim=128, causal=True
    )
    v5p = TARGETS[2]
    reason = FUSED.unsupported(long, "bwd", v5p)
    assert (
        "a query gradient of each of 1024 blocks of keys in memory, 256.0 GiB: more than half of the 95 GiB" in reason
    )
    assert choose("flash_attention", "bwd", long, device=v5p).spec.name == "pallas_tpu_flash"
    short = dataclasses.replace(long, q_len=1 << 16, kv_len=1 << 16)
    assert FUSED.unsupported(short, "bwd", v5p) is None


def test_a_part_is_refused_by_its_name():
    heuristic = SPLASH.searches["bwd"].heuristic(LLAMA, V6E)
    short = dataclasses.replace(LLAMA, q_len=256, kv_len=256)
    broken = dataclasses.replace(heuristic, dq=DqLaunch(block_q=512, block_kv=128))
    broken = dataclasses.replace(broken, dkv=SPLASH.searches["bwd"].heuristic(short, V6E).dkv)
    assert SPLASH.searches["bwd"].infeasible(short, V6E, broken).startswith("dq: block_q=512")


REFUSED = {
    "float16": ("float16", SPECS),
    "logits_bfloat16": ("logits are float32", SPECS),
    "dropout": ("dropout", SPECS),
    "positions_causal": ("positions", SPECS),
    "bias_full": ("bias", (SPLASH, FUSED)),
    "mask_padding": ("mask", (SPLASH, FUSED)),
    "soft_cap": ("soft cap", (FLASH,)),
    "causal_window": ("window", (FLASH,)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_unsupported_problem_has_its_reason(name):
    word, specs = REFUSED[name]
    for spec in SPECS:
        reason = spec.unsupported(PROBLEMS[name], "bwd", V6E)
        assert (word in reason) if spec in specs else reason is None
    assert "not on cuda" in SPLASH.unsupported(LLAMA, "fwd", device_from_kind("sm_90"))


@pytest.mark.parametrize("name", ["plain", "causal", "causal_longer_keys", "causal_longer_queries", "window",
                                  "window_left", "window_right", "window_longer_queries", "causal_window",
                                  "segments", "segments_longer_keys"])  # fmt: skip
@pytest.mark.parametrize("blocks", [(8, 16), (16, 8), (64, 32)])
def test_a_schedule_visits_what_is_visible_once_and_fetches_ahead(name, blocks):
    """Blocks smaller than any kernel's, so that there are many. Walked as the kernel walks: visited iff nonzero."""
    p = dataclasses.replace(PROBLEMS[name], batch=2)
    schedule = Schedule(problem=p, block_q=blocks[0], block_kv=blocks[1])
    bounds = dataclasses.replace(p, has_segments=False)
    seen = dense_numpy.visible(bounds, NO_ARRAYS)[0, 0]
    rows, cols = np.nonzero(seen)
    steps = {(int(i), int(j)) for i, j in zip(rows // blocks[0], cols // blocks[1], strict=True)}
    height, width = schedule.q_len // blocks[0], schedule.kv_len // blocks[1]
    expected = {(s * height + i, s * width + j) for s in range(schedule.sequences) for i, j in steps}
    for info, turn in (
        (schedule.by_rows(), False),
        (schedule.by_columns(shrink=True), True),
        (schedule.by_columns(shrink=False), True),
    ):
        if info.block_mask is None:
            assert not schedule.is_masked
            assert len(steps) == height * width
            continue
        visits, walked = np.asarray(info.block_mask)[0], np.asarray(info.data_next)[0]
        if turn:
            visits, walked = visits.T, walked.T
        pairs = [(int(i), int(walked[i, j])) for i, j in zip(*np.nonzero(visits), strict=True)]
        assert len(pairs) == len(set(pairs))
        assert {(j, i) if turn else (i, j) for i, j in pairs} == expected
        # A step that is no visit already holds the block of the next one, in the order of the grid.
        order = [int(x) for x in walked.reshape(-1)]
        flags = visits.reshape(-1) > 0
        upcoming = order[int(np.flatnonzero(flags)[0])]
        for flag, block in reversed(list(zip(flags, order, strict=True))):
            assert block == upcoming or flag
            upcoming = block


def test_the_mask_inside_of_a_block_is_the_ops():
    for name in ("causal_longer_queries", "window", "causal_longer_keys", "window_left"):
        p = PROBLEMS[name]
        schedule = Schedule(problem=p, block_q=64, block_kv=64)
        positions = np.asarray(schedule.by_rows().q_sequence)[: p.q_len, None]
        got = schedule.mask_function()(positions, np.arange(schedule.kv_len)[None])
        expected = np.zeros((p.q_len, schedule.kv_len), bool)
        expected[:, : p.kv_len] = dense_numpy.visible(p, NO_ARRAYS)[0, 0]
        np.testing.assert_array_equal(np.asarray(got), expected)


def test_a_kernel_that_is_not_understood_is_not_rewritten():
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1.0

    def call(x):
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with pytest.raises(UnsupportedError, match="0 bodies"):
        jax.eval_shape(rewritten(call, vmem_limit_kib=None, logits_scale=2.0), jnp.ones((8, 128)))
    with pytest.raises(UnsupportedError, match="2 Pallas calls"):
        jax.eval_shape(launch_results(lambda x: call(call(x))), jnp.ones((8, 128)))


@pytest.mark.parametrize(
    ("kind", "knobs", "word"),
    [
        (ForwardConfig, {"block_q": 128, "block_k_major": 384, "block_k": 256}, "block_k_major"),
        (ForwardConfig, {"block_q": 12, "block_k_major": 128, "block_k": 128}, "block_q"),
        (DkvConfig, {"block_q_major": 192, "block_q": 128, "block_k_major": 128, "block_k": 128}, "block_q_major"),
        (ForwardLaunch, {"block_q": 128, "block_kv": 256, "block_kv_compute": 192}, "block_kv_compute"),
        (DqLaunch, {"block_q": 128, "block_kv": 128, "k_layout": "minor"}, "k_layout"),
        (DqLaunch, {"block_q": 128, "block_kv": 128, "vmem_limit_kib": 0}, "vmem_limit_kib"),
    ],
)  # fmt: skip
def test_configs_refuse_nonsense(kind, knobs, word):
    with pytest.raises(UsageError, match=word):
        kind(**knobs)
