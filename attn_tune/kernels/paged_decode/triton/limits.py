"""Problems and devices that the kernel does not support, and tiles that cannot fit."""

from attn_tune.kernels.lang.triton.cache_limits import certainly_fits, refuses_problem, refuses_tile
from attn_tune.kernels.lang.triton.limits import OLDEST_WITH_CLUSTERS, refuses_latents
from attn_tune.kernels.paged_decode._triton.config import NARROW, Config
from attn_tune.ops.fields.cache import CODES, LATENT
from attn_tune.ops.paged_decode.problem import Problem
from attn_tune.schema.device import Device


def unsupported(problem: Problem, direction: str, device: Device) -> str | None:
    """The reason that this kernel cannot do the problem on this device at all, or None."""
    return refuses_problem(problem, device, read="lengths") or refuses_latents(problem, device)


def infeasible(problem: Problem, device: Device, config: Config) -> str | None:
    """The reason that a config cannot fit the device, or None. Never refuses what compiles and fits."""
    if config.cluster is not None and (device.compute_capability or 0) < OLDEST_WITH_CLUSTERS:
        return f"cluster={config.cluster} needs Hopper or later; {device.family} has no clusters"
    if config.block_q == NARROW and (lack := lacks_narrow(problem)) is not None:
        return f"block_q={NARROW} needs {lack}"
    return refuses_tile(problem, device, config)


def lacks_narrow(problem: Problem) -> str | None:
    """The first property that a problem lacks for rows that are columns of the products, as text; or None."""
    has_codes = problem.cache_dtype in CODES
    needs = {
        "values apart from keys": problem.layout != LATENT,
        "16-bit queries of codes": not has_codes or problem.dtype != "float32",
        f"an even v of codes, not v={problem.v_head_dim}": not has_codes or problem.v_head_dim % 2 == 0,
    }
    return next((need for need, has in needs.items() if not has), None)


def fits(problem: Problem, device: Device, config: Config) -> bool:
    """Whether an untuned choice of this tile certainly runs."""
    return certainly_fits(problem, device, config) and infeasible(problem, device, config) is None
