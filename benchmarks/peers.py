"""The implementations of flash attention that a JAX user can call: ours here, the others in ``peers_libraries.py``.

Each is ``build(problem, arrays) -> attend`` or a sentence that says why it cannot; ``attend(arrays)`` returns the
output, ``arrays`` being those of ``peers_inputs.Case``. What is not installed is a line that says so.
"""

import functools
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from earlier_tree import imports_from

from attn_tune.ops.flash_attention.problem import Problem

type Arrays = Mapping[str, Any]
type Attend = Callable[[Arrays], Any]

AUTO, TRITON, CUDNN = "attn-tune auto", "attn-tune triton", "jax.nn cuDNN"
# The choice of the active packs where the extra ``fa4`` is not installed.
WITHOUT_FA4 = "attn-tune auto without fa4"
# With the configs that the active packs have for it; beside it the table of the library.
FA4 = "attn-tune fa4"
# The choice of an earlier version of this project and its packs.
EARLIER = "attn-tune auto earlier"
OURS = "attn-tune "


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One implementation: ``build`` returns a function of arrays, or the reason why there is none."""

    name: str
    build: Callable[[Problem, Arrays], Attend | str]
    # Run once on concrete arrays before anything is compiled: where a peer tunes itself.
    prepare: Callable[[Attend, Arrays], None] | None = None
    # Compiled after the others: its compiler keeps state of the process and takes no lock for it.
    compiles_alone: bool = False
    # It is lowered within this context: a backward is traced after ``attend`` has returned.
    within: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def is_ours(self) -> bool:
        """Whether it is this project's."""
        return self.name.startswith(OURS)


def peers(ejkernel: str, *, xla: bool = False, untuned: bool = False, earlier: Path | None = None) -> list[Peer]:
    """Ours (the choice of the active packs, our kernels by name, untuned), then everybody else's.

    ``ejkernel``: ``"default"`` for its heuristic configs, ``"tuned"`` for those it finds itself in an eager call. One
    of the two per process: it keeps whichever it used first. ``"none"`` leaves it out. ``earlier``: a folder with an
    earlier version of the package ``attn_tune``, whose auto is raced too.
    """
    import peers_libraries as others

    found = [
        Peer(name=AUTO, build=lambda p, x: _ours(p)),
        Peer(name=TRITON, build=lambda p, x: _ours_in_triton(p)),
    ]
    found += [
        Peer(name=WITHOUT_FA4, build=lambda p, x: _ours_without_fa4(p), within=_never_fa4),
        Peer(name=FA4, build=lambda p, x: _ours_in_fa4(p)),
        Peer(name=f"{FA4} default", build=lambda p, x: _heuristic(p, "fa4")),
    ]
    if earlier is not None:
        within = functools.partial(imports_from, earlier)
        found.append(Peer(name=EARLIER, build=lambda p, x: _ours(p), within=within, compiles_alone=True))
    if untuned:
        found.append(Peer(name="attn-tune triton untuned", build=lambda p, x: _heuristic(p, "triton")))
    if xla:
        found.append(Peer(name="attn-tune xla", build=lambda p, x: _ours(p, platform="xla")))
    found += [
        Peer(name=CUDNN, build=others.cudnn),
        Peer(name="fa4-jax", build=others.fa4, compiles_alone=True),
        Peer(name="flash-attn3-jax", build=others.fa3),
        Peer(name="jax Mosaic GPU", build=others.jax_mosaic),
        Peer(name="jax Pallas Triton", build=others.jax_triton),
    ]
    found += [
        Peer(name=f"tokamax {name}", build=lambda p, x, name=name: others.tokamax(name, p, x))
        for name in ("mosaic", "triton")
    ]
    if ejkernel != "none":
        os.environ["EJKERNEL_AUTOTUNE_POLICY"] = "autotune" if ejkernel == "tuned" else "heuristics"
        prepare = _tune if ejkernel == "tuned" else None
        name = f"ejkernel triton {ejkernel}"
        found.append(Peer(name=name, build=others.ejkernel, prepare=prepare))
    return found


def _ours(problem: Problem, **options: Any) -> Attend | str:
    p = problem

    def attend(x: Arrays) -> Any:
        # Not before: the package of an earlier version is another one.
        import attn_tune

        return attn_tune.flash_attention(
            x["q"],
            x["k"],
            x["v"],
            x.get("bias"),
            # Sequences end to end have segment ids of their own.
            x.get("offsets"),
            softmax_aux=x.get("sinks"),
            mask_info=_mask(p, x),
            dropout_prob=p.dropout_rate,
            dropout_seed=x.get("dropout_seed"),
            causal=p.causal,
            sliding_window=None if p.window == (None, None) else p.window,
            logits_soft_cap=p.soft_cap,
            softmax_scale=p.scale,
            **options,
        )

    return attend


def _mask(p: Problem, x: Arrays) -> Any:
    """Padding by its lengths, as the others receive it, documents by their segment ids."""
    import attn_tune

    if "kv_lengths" in x:
        return attn_tune.MaskInfo.from_lengths(x["kv_lengths"], q_len=p.q_len, kv_len=p.kv_len)
    if "q_segments" in x and "offsets" not in x:
        return attn_tune.MaskInfo.from_segments(x["q_segments"], x["kv_segments"])
    return None


def _ours_in_triton(problem: Problem) -> Attend | str:
    """Our own kernels only: the forward for Hopper where it can, the ones for every GPU otherwise."""
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel

    hopper = get_kernel("flash_attention/triton_hopper")
    cannot = hopper.unsupported(problem, "fwd", current_device())
    forward = "triton" if cannot else "triton_hopper"
    return _ours(problem, platform={"fwd": forward, "bwd": "triton"})


def _ours_in_fa4(problem: Problem) -> Attend | str:
    return _refusal(problem, "fa4") or _ours(problem, platform="fa4")


def _ours_without_fa4(problem: Problem) -> Attend | str:
    """The choice of auto without the kernels of that extra, where it takes one of them."""
    from attn_tune.runtime.lookup.dispatch import explain

    found = [explain("flash_attention", problem, direction).answer for direction in ("fwd", "bwd")]
    if not any(answer and answer.kernel.startswith("fa4") for answer in found):
        return "auto takes no kernel of the extra fa4"
    return _ours(problem)


@functools.cache
def _overrides_without_fa4() -> str:
    """The path of a file of overrides that forbids the kernels of the extra."""
    path = Path(tempfile.mkdtemp(prefix="attn-tune-peers-")) / "overrides.json"
    reason = "as without the extra"
    never = [{"op": "flash_attention", "kernel": name, "reason": reason} for name in ("fa4", "fa4_deterministic")]
    path.write_text(json.dumps({"format": 1, "never": never}))
    return str(path)


def _never_fa4() -> AbstractContextManager[Any]:
    import attn_tune

    return attn_tune.use_overrides(_overrides_without_fa4())


def _heuristic(problem: Problem, kernel: str) -> Attend | str:
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel

    if reason := _refusal(problem, kernel):
        return reason
    searches, device = get_kernel(f"flash_attention/{kernel}").searches, current_device()
    cfg = {name: search.heuristic(problem, device) for name, search in searches.items()}
    return _ours(problem, platform=kernel, cfg=cfg)


def _refusal(problem: Problem, kernel: str) -> str | None:
    """The first reason why one of our kernels cannot do a direction of the problem here."""
    from attn_tune.devices.identity import current_device
    from attn_tune.kernels.registry import get_kernel
    from attn_tune.runtime.lookup.question import unsupported

    spec, device = get_kernel(f"flash_attention/{kernel}"), current_device()
    return next(filter(None, (unsupported(spec, problem, d, device) for d in spec.searches)), None)


def _tune(attend: Attend, arrays: Arrays) -> None:
    """Its own tuning: an eager call times its candidates, forward and backward together, and keeps the winner."""
    import jax

    jax.block_until_ready(attend(arrays))
