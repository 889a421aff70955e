"""The configs of each direction, from those of its launches."""

from attn_tune.kernels.flash_attention._splash import space
from attn_tune.kernels.flash_attention._splash.config import DkvLaunch, DqLaunch
from attn_tune.kernels.flash_attention.pallas_tpu_splash.config import BackwardConfig, ForwardConfig
from attn_tune.ops.flash_attention.problem import Problem
from attn_tune.schema.device import Device


def forward_candidates(problem: Problem, device: Device) -> tuple[ForwardConfig, ...]:
    """Forward configs."""
    return space.candidates(ForwardConfig, problem, device)


def dq_candidates(problem: Problem, device: Device) -> tuple[DqLaunch, ...]:
    """Configs of the dq launch."""
    return space.candidates(DqLaunch, problem, device)


def dkv_candidates(problem: Problem, device: Device) -> tuple[DkvLaunch, ...]:
    """Configs of the dk/dv launch."""
    return space.candidates(DkvLaunch, problem, device)


def forward_heuristic(problem: Problem, device: Device) -> ForwardConfig:
    """The untuned forward."""
    return space.heuristic(ForwardConfig, problem, device)


def backward_heuristic(problem: Problem, device: Device) -> BackwardConfig:
    """The untuned backward."""
    return BackwardConfig(
        dq=space.heuristic(DqLaunch, problem, device),
        dkv=space.heuristic(DkvLaunch, problem, device),
    )


def adapt_backward(tuned: Problem, problem: Problem, device: Device, config: BackwardConfig) -> BackwardConfig:
    """Both launches with no block longer than the tokens there are."""
    return BackwardConfig(
        dq=space.adapt(tuned, problem, device, config.dq),
        dkv=space.adapt(tuned, problem, device, config.dkv),
    )
