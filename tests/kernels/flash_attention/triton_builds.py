"""Compiles launches of the Triton kernels without a GPU. Run as a script it prints one JSON line per launch.

A script because another test may have chosen the interpreter for its process. Arguments: ``build:capability``; without
any it compiles all, ``VARIANTS`` too, for every architecture.
"""

import dataclasses
import json
import sys
from dataclasses import dataclass

from attn_tune.kernels.flash_attention._triton.limits import shared_bytes
from attn_tune.kernels.registry import get_kernel
from attn_tune.ops.contract import load
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device

CAPABILITIES = (80, 90, 100)
HOPPER = (90,)
# A compile takes seconds: tests compile one forward and one backward everywhere, the others on one architecture.
EVERYWHERE = ("fwd", "dkv")
# Not compiled by tests: what each has, another build or the interpreter has too.
VARIANTS = (
    "fwd-h64", "dkv-h64", "fwd-float32", "fwd-odd-head", "fwd-candidate", "dq-candidate", "dkv-candidate",
    "fused-h128-full", "fused-mla", "fused-float32", "fused-candidate", "split-h64", "split-h256", "split-one-row",
    "split-float32", "split-candidate", "hopper-padded-cap",
)  # fmt: skip
# What `make test` compiles of the others: what each of those left out has, one of these or another test has too. Both
# directions on an Ampere, Blackwell's forward, and on Hopper each launch, wide heads, and everything together.
KEPT = (
    *("fwd:80", "dkv:80", "fwd:100", "fwd:90", "dq:90", "dkv:90", "fwd-h256:90", "fwd-mla:90"),
    *("fwd-everything:90", "dbias-everything:90", "fused-h128:90", "fused-h256:90", "fused-everything:90"),
    *("split-h128:90", "split-everything:90", "hopper-h128:90", "hopper-h256:90", "hopper-everything:90"),
)


@dataclass(frozen=True)
class Build:
    """One launch: ``rank`` 0 is the untuned choice, others count through the feasible candidates."""

    name: str
    problem: Problem
    direction: str
    part: str
    rank: int
    kernel: str = "triton"

    @property
    def capabilities(self) -> tuple[int, ...]:
        return CAPABILITIES if self.name in EVERYWHERE else HOPPER

    @property
    def possible(self) -> tuple[int, ...]:
        return HOPPER if self.kernel == "triton_hopper" else CAPABILITIES

    @property
    def search(self):
        return get_kernel(f"flash_attention/{self.kernel}").searches[self.direction]


def _problem(H=128, V=None, N=4, K=2, T=2048, S=None, **flags):
    return Problem(
        batch=1, q_len=T, kv_len=S or T, num_q_heads=N, num_kv_heads=K, head_dim=H, v_head_dim=V or H,
        scale=H**-0.5, **flags,
    )  # fmt: skip


PLAIN = _problem(causal=True)
EVERYTHING = _problem(
    H=64,
    T=1000,
    causal=True,
    window=(300, None),
    mask_dims="b1ts",
    bias_dims="1nts",
    has_segments=True,
    has_sinks=True,
    soft_cap=30.0,
    dropout_rate=0.1,
)
# What the forward for Hopper has of it.
HOPPER_EVERYTHING = dataclasses.replace(EVERYTHING, mask_dims=None, bias_dims=None)
SHORT = _problem(N=32, K=8, T=16, S=8192, causal=True)
BUILDS = (
    Build("fwd", PLAIN, "fwd", "", 0),
    Build("dq", PLAIN, "bwd", "dq", 0),
    Build("dkv", PLAIN, "bwd", "dkv", 0),
    Build("fwd-h64", _problem(H=64), "fwd", "", 0),
    Build("dkv-h64", _problem(H=64), "bwd", "dkv", 0),
    Build("fwd-h256", _problem(H=256), "fwd", "", 0),
    Build("fwd-mla", _problem(H=192, V=128), "fwd", "", 0),
    Build("fwd-float32", _problem(dtype="float32", H=64), "fwd", "", 0),
    Build("fwd-everything", EVERYTHING, "fwd", "", 0),
    Build("dbias-everything", EVERYTHING, "bwd", "dbias", 0),
    Build("fwd-odd-head", _problem(H=61), "fwd", "", 5),
    Build("fwd-candidate", _problem(), "fwd", "", 31),
    Build("dq-candidate", _problem(), "bwd", "dq", 23),
    Build("dkv-candidate", _problem(), "bwd", "dkv", 17),
    *(
        Build(f"fused-{name}", problem, "bwd", "", rank, "triton_fused")
        for name, problem, rank in (
            ("h64", _problem(H=64, causal=True), 0),
            ("h128", PLAIN, 0),
            ("h128-full", _problem(), 0),
            ("h256", _problem(H=256, causal=True), 0),
            ("mla", _problem(H=192, V=128), 0),
            ("float32", _problem(dtype="float32", H=64), 0),
            ("everything", EVERYTHING, 0),
            ("candidate", _problem(), 23),
        )
    ),
    *(
        Build(f"split-{name}", problem, "fwd", "", rank, "triton_split")
        for name, problem, rank in (
            ("h64", dataclasses.replace(SHORT, head_dim=64, v_head_dim=64), 0),
            ("h128", SHORT, 0),
            ("h256", dataclasses.replace(SHORT, head_dim=256, v_head_dim=256), 0),
            ("one-row", dataclasses.replace(SHORT, q_len=1), 0),
            ("float32", dataclasses.replace(SHORT, dtype="float32"), 0),
            ("everything", dataclasses.replace(EVERYTHING, q_len=16, kv_len=8192), 0),
            ("candidate", SHORT, 19),
        )
    ),
    *(
        Build(f"hopper-{name}", problem, "fwd", "", rank, "triton_hopper")
        for name, problem, rank in (
            ("h128", PLAIN, 0),
            ("h256", _problem(H=256), 0),
            ("everything", HOPPER_EVERYTHING, 0),
            # Lengths instead of segments, and the fast tanh.
            ("padded-cap", _problem(has_segments=True, has_lengths=True, soft_cap=30.0), 1),
            ("candidate", _problem(H=64), 9),
        )
    ),
)


def device_of(capability: int) -> Device:
    return Device(platform="cuda", family=f"sm_{capability}", variant="nvidia-test")


def config_of(build: Build, device: Device):
    """The part's config and the whole one that holds it."""
    search = build.search
    whole = search.heuristic(build.problem, device)
    if build.part == "dbias":
        return None, whole
    feasible = [
        config
        for config in search.candidates[build.part](build.problem, device)
        if search.infeasible(build.problem, device, config) is None
    ]
    return feasible[build.rank], search.whole(whole, build.part, feasible[build.rank])


def compile_build(build: Build, capability: int) -> dict:
    """The resources of the first launch of a kernel, and the parts of Hopper that it uses."""
    import jax

    from attn_tune.kernels.lang.triton.compile import record_compiles
    from attn_tune.kernels.lang.triton.target import compile_target

    p, device = build.problem, device_of(capability)
    part, whole = config_of(build, device)
    outputs = {"dbias": ("dbias",), **build.search.outputs}.get(build.part)
    call = load(build.search.call)
    operands = _abstract(p)
    inputs = operands if build.direction == "fwd" else _abstract_backward(p, operands)

    def one_part(x):
        # Only this part's outputs are returned: the other launches must vanish from the program.
        made = call(p, whole, x)
        return {name: made[name] for name in outputs or made if name in made}

    with compile_target(capability), record_compiles() as compiled:
        jax.jit(one_part).trace(inputs).lower(lowering_platforms=("cuda",))
    kernel = compiled[0]
    return {
        "shared_bytes": kernel.shared_bytes,
        "least_shared_bytes": _least_shared_bytes(build, device, part),
        "spill_bytes": max(launch.spill_bytes for launch in compiled),
        "registers": kernel.registers,
        "wgmma": kernel.ptx.count("wgmma.mma_async"),
        "copies_by_descriptor": kernel.ptx.count("cp.async.bulk.tensor"),
        "exponentials_beside_products": _beside(kernel) if build.kernel == "triton_hopper" else 0,
        # Of each four weights of dropout one has this last factor; the other is the first of every hash.
        "dropped_weights": 4 * kernel.ptx.count(f", {0x4F690B93};"),
        "dropout_hashes": kernel.ptx.count(f", {0x7FEB352D};"),
        "cp_async_16": kernel.ptx.count("cp.async.cg.shared.global"),
        "config": str(whole),
        "launches": [launch.name for launch in compiled],
        "added_4_at_a_time": kernel.ptx.count("red.global.gpu.relaxed.add.v4.f32"),
    }


def _least_shared_bytes(build: Build, device: Device, part) -> int:
    if part is None:
        return 0
    if build.kernel == "triton_hopper":
        from attn_tune.kernels.lang.gluon.attention import plan

        return plan.shared_bytes(build.problem, part) - 512
    return shared_bytes(build.problem, device, part)


def _beside(kernel) -> int:
    """The most exponentials in a row of machine code between waiting for the first product and for the second."""
    import re
    import subprocess
    import tempfile

    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.cubin)
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "-c", file.name]
        code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    spans = re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x1 ;(.*?)WARPGROUP\.DEPBAR\.LE gsb0, 0x0 ;", code, re.DOTALL)
    return max((span.count("MUFU.EX2") for span in spans), default=0)


def _abstract(p: Problem):
    import jax
    import jax.numpy as jnp

    from attn_tune.ops.flash_attention.operands import Operands

    dtype = jnp.dtype(p.dtype)
    sizes = {"b": p.batch, "n": p.num_q_heads, "t": p.q_len, "s": p.kv_len}

    def array(*shape, of=dtype):
        return jax.ShapeDtypeStruct(shape, of)

    def spanned(dims, of):
        return dims and array(*(1 if d == "1" else sizes[d] for d in dims), of=of)

    rows, keys = (p.batch, p.q_len), (p.batch, p.kv_len)
    return Operands(
        q=array(*rows, p.num_q_heads, p.head_dim),
        k=array(*keys, p.num_kv_heads, p.head_dim),
        v=array(*keys, p.num_kv_heads, p.v_head_dim),
        bias=spanned(p.bias_dims, dtype),
        mask=spanned(p.mask_dims, jnp.bool_),
        q_segments=array(*rows, of=jnp.int32) if p.has_segments else None,
        kv_segments=array(*keys, of=jnp.int32) if p.has_segments else None,
        sinks=array(p.num_q_heads, of=jnp.float32) if p.has_sinks else None,
        dropout=array(3, of=jnp.uint32) if p.dropout_rate else None,
        kv_lengths=array(p.batch, of=jnp.int32) if p.has_lengths else None,
    )


def _abstract_backward(p: Problem, operands):
    import jax
    import jax.numpy as jnp

    from attn_tune.ops.flash_attention.operands import BackwardInputs, Residuals

    out = jax.ShapeDtypeStruct((p.batch, p.q_len, p.num_q_heads, p.v_head_dim), operands.q.dtype)
    row = jax.ShapeDtypeStruct((p.batch, p.num_q_heads, p.q_len), jnp.float32)
    return BackwardInputs(operands, Residuals(out, row), out, row)


def main(arguments: list[str]) -> None:
    builds = {build.name: build for build in BUILDS}
    every = [f"{name}:{c}" for name, build in builds.items() for c in build.possible]
    for argument in arguments or every:
        name, _, capability = argument.partition(":")
        try:
            result = compile_build(builds[name], int(capability))
        except Exception as error:  # one broken launch must not hide the others; its own test fails with this
            result = {"raised": f"{type(error).__name__}: {error}"}
        line = {"build": name, "capability": int(capability)} | result
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
