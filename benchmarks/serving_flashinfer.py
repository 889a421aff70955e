"""Calls of FlashInfer over a cache in pages, planned beforehand, and the modules that they need.

FlashInfer compiles a module at its first use, with nvcc and ninja. Here ``build`` compiles all of them before anything
is timed, and a call whose module is not there says so instead of compiling. Written for FlashInfer 0.6.13.
"""

import concurrent.futures
import contextlib
import functools
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from serving_cases import Case, csr

# Keys and values that are split are merged from here; FlashInfer wants zeros before its first use.
_WORKSPACE_BYTES = 512 * 2**20
_NHD = "NHD"
# Modules by the words that calls name them with.
DECODE, FA2, FA3, PAGE, MERGE = "decode", "fa2", "fa3", "page", "merge"
MLA_FA2, MLA_FA3 = "mla_fa2", "mla_fa3"
# What ``build`` compiles at once: attention of one head dim with what goes with it, and attention to latents.
PLAIN, LATENT = (DECODE, FA2, FA3, PAGE, MERGE), (MLA_FA2, MLA_FA3)
# The widths of latents and of the rotary keys behind them that attention to latents is compiled for.
_LATENT_WIDTHS = 512, 64

type Run = Callable[[], Any]


def prepare() -> None:
    """Give FlashInfer a folder for what it compiles, and headers. Call it before FlashInfer is imported."""
    folder = Path(tempfile.gettempdir(), "attn-tune-flashinfer")
    os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", str(folder))
    folder.mkdir(exist_ok=True)
    # A compiler without the whole toolkit lacks cuRAND's headers, which CUTLASS includes; torch's wheels have them.
    with contextlib.suppress(ModuleNotFoundError):
        import nvidia

        found = (path for root in nvidia.__path__ for path in Path(root).glob("*/include/curand_kernel.h"))
        if header := next(found, None):
            os.environ.setdefault("FLASHINFER_EXTRA_CUDAFLAGS", f"-isystem {header.parent}")


def build(names: Sequence[str], head_dim: int = 0) -> None:
    """Compile modules for a head dim, each in a thread with a ninja of its own, and print the seconds of each."""
    start = time.monotonic()

    def one(name: str) -> str:
        spec = _spec(name, head_dim)
        if spec.is_aot:
            return "built already"
        try:
            spec.build(verbose=False)
        except Exception as error:  # one module that does not build costs the calls that need it
            return f"failed: {str(error)[-400:]}"
        return f"{time.monotonic() - start:.0f} s"

    with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
        for name, said in zip(names, pool.map(one, names), strict=True):
            print(f"build {name}: {said}", flush=True)


def decode_calls(case: Case, q: Any, cache: tuple[Any, Any]) -> dict[str, Run | str]:
    """Decoding by CUDA cores, by tensor cores (FlashAttention-2 for Hopper too), and by FlashAttention-3."""
    return {
        "flashinfer": _or_reason(case, (DECODE,), lambda: _decode(case, q, cache)),
        "flashinfer_tc": _or_reason(case, (FA2,), lambda: _decode(case, q, cache, use_tensor_cores=True)),
        "flashinfer_fa3": _or_reason(
            case, (FA3,), lambda: _decode(case, q, cache, use_tensor_cores=True, backend="fa3")
        ),
    }


def ragged_calls(case: Case, q: Any, cache: tuple[Any, Any]) -> dict[str, Run | str]:
    """Prompts, chunks and mixed steps by its two kernels of prefill."""

    def call(backend: str) -> Run:
        wrapper = _prefill(case, backend, case.new, *_whole(case), causal=case.problem.causal)
        return functools.partial(wrapper.run, q, cache, out=_empty_like(q))

    return {f"flashinfer_{backend}": _or_reason(case, (backend,), lambda b=backend: call(b)) for backend in (FA2, FA3)}


def latent_calls(case: Case, q: Any, cache: tuple[Any, Any]) -> dict[str, Run | str]:
    """Decoding over latents by its two kernels; the rotary keys are columns of the same cache."""
    latents, width = cache[0][:, :, 0], case.problem.v_head_dim
    if (width, case.problem.head_dim - width) != _LATENT_WIDTHS:
        return dict.fromkeys(("flashinfer_fa2", "flashinfer_fa3"), f"compiled for widths of {_LATENT_WIDTHS} alone")

    def call(backend: str) -> Run:
        import flashinfer
        import numpy as np

        wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(_workspace(), backend=backend)
        ends, pages, _ = _whole(case)
        starts = np.arange(len(case.lengths) + 1, dtype=np.int32)
        wrapper.plan(
            *(_on_gpu(x) for x in (starts, ends, pages, case.lengths.astype(np.int32))),
            num_heads=case.problem.num_q_heads,
            head_dim_ckv=width,
            head_dim_kpe=case.problem.head_dim - width,
            page_size=case.problem.page_size,
            causal=False,
            sm_scale=case.problem.scale,
            **_dtypes(q),
        )
        queries = q[..., :width].contiguous(), q[..., width:].contiguous()
        return functools.partial(
            wrapper.run, *queries, latents[..., :width], latents[..., width:], out=_empty_like(queries[0])
        )

    return {
        f"flashinfer_{backend}": _or_reason(case, (module,), lambda b=backend: call(b))
        for backend, module in ((FA2, MLA_FA2), (FA3, MLA_FA3))
    }


def append_calls(case: Case, new: tuple[Any, Any], cache: tuple[Any, Any]) -> dict[str, Run | str]:
    """Writing new tokens; where each goes is known beforehand, as its authors do it once for all layers."""

    def call() -> Run:
        import flashinfer
        import numpy as np

        ends, pages, last = map(_on_gpu, _whole(case))
        sequence = np.repeat(np.arange(len(case.new), dtype=np.int32), case.new)
        return functools.partial(
            flashinfer.append_paged_kv_cache,
            *new,
            _on_gpu(sequence),
            _on_gpu(positions(case)),
            cache,
            pages,
            ends,
            last,
            _NHD,
        )

    return {"flashinfer": _or_reason(case, (PAGE,), call)}


def cascade_calls(case: Case, q: Any, cache: tuple[Any, Any]) -> dict[str, Run | str]:
    """A cascade as its class makes it, one of two calls by FlashAttention-2 and a merge, and decoding over all keys."""
    import numpy as np

    p, split = case.problem, case.shared
    rows = len(case.lengths)
    front = csr(case.table[:1, :split], np.array([split * p.page_size]), p.page_size)
    own = csr(case.table[:, split:], case.lengths - split * p.page_size, p.page_size)

    def levels() -> Run:
        import flashinfer

        wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, _workspace(), _NHD)
        queries = [_on_gpu(np.array([0, rows], np.int32)), _on_gpu(np.arange(rows + 1, dtype=np.int32))]
        parts = [[_on_gpu(x) for x in pair] for pair in zip(front, own, strict=True)]
        wrapper.plan(queries, *parts, **_sizes(case, "head_dim"), sm_scale=p.scale, **_dtypes(q))
        return functools.partial(wrapper.run, q, cache)

    def two_calls() -> Run:
        import flashinfer
        import torch

        of_front = _prefill(case, FA2, np.array([rows]), *front, causal=False)
        of_own = _prefill(case, FA2, case.new, *own, causal=False)
        outs = [(_empty_like(q), torch.empty(q.shape[:2], dtype=torch.float32, device=q.device)) for _ in range(2)]

        def run() -> Any:
            for wrapper, (out, lse) in zip((of_own, of_front), outs, strict=True):
                wrapper.run(q, cache, out=out, lse=lse, return_lse=True)
            flashinfer.merge_state_in_place(*outs[0], *outs[1])
            return outs[0][0]

        return run

    return {
        "flashinfer": _or_reason(case, (FA3, MERGE), levels),
        "flashinfer_fa2": _or_reason(case, (FA2, MERGE), two_calls),
        "flashinfer_whole": _or_reason(case, (FA2,), lambda: _decode(case, q, cache, use_tensor_cores=True)),
    }


def positions(case: Case) -> Any:
    """The position of each new token in its sequence."""
    import numpy as np

    pairs = zip(case.lengths, case.new, strict=True)
    return np.concatenate([np.arange(length - new, length, dtype=np.int32) for length, new in pairs])


def _or_reason(case: Case, modules: tuple[str, ...], make: Callable[[], Run]) -> Run | str:
    """The planned call, or why there is none."""
    for name in modules:
        spec = _spec(name, case.problem.head_dim)
        if not spec.is_compiled:
            return f"its module {name} is not compiled; --build does it"
    try:
        return make()
    except Exception as error:  # any error of a peer is that peer's result
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def _spec(name: str, head_dim: int) -> Any:
    """FlashInfer's description of a module: how it is compiled, and whether it was."""
    import torch
    from flashinfer.jit.attention import gen_batch_decode_module, gen_batch_mla_module, gen_batch_prefill_module
    from flashinfer.jit.cascade import gen_cascade_module
    from flashinfer.jit.page import gen_page_module

    # Dtypes of queries, cache, output and indices; head dims; then no rotary embedding, window or soft cap.
    common = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32, head_dim, head_dim, 0, False, False)
    match name:
        case "page":
            return gen_page_module()
        case "merge":
            return gen_cascade_module()
        case "decode":
            return gen_batch_decode_module(*common)
        case "mla_fa2" | "mla_fa3":
            dtypes = (torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32)
            return gen_batch_mla_module(name.removeprefix("mla_"), *dtypes, *_LATENT_WIDTHS, False)
        case _:
            return gen_batch_prefill_module(name, *common, False)


def _decode(case: Case, q: Any, cache: tuple[Any, Any], **options: Any) -> Run:
    import flashinfer

    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(_workspace(), _NHD, **options)
    parts = [_on_gpu(x) for x in _whole(case)]
    wrapper.plan(*parts, **_sizes(case, "head_dim"), sm_scale=case.problem.scale, **_dtypes(q))
    return functools.partial(wrapper.run, q, cache, out=_empty_like(q))


def _prefill(case: Case, backend: str, new: Any, ends: Any, pages: Any, last: Any, *, causal: bool) -> Any:
    import flashinfer
    import numpy as np
    import torch

    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(_workspace(), _NHD, backend=backend)
    starts = np.concatenate([[0], np.cumsum(new)]).astype(np.int32)
    wrapper.plan(
        *(_on_gpu(x) for x in (starts, ends, pages, last)),
        **_sizes(case, "head_dim_qk"),
        causal=causal,
        sm_scale=case.problem.scale,
        q_data_type=torch.bfloat16,
    )
    return wrapper


def _whole(case: Case) -> tuple[Any, Any, Any]:
    return csr(case.table, case.lengths, case.problem.page_size)


def _sizes(case: Case, head_dim: str) -> dict[str, int]:
    p = case.problem
    return {
        "num_qo_heads": p.num_q_heads,
        "num_kv_heads": p.num_kv_heads,
        head_dim: p.head_dim,
        "page_size": p.page_size,
    }


def _dtypes(q: Any) -> dict[str, Any]:
    return {"q_data_type": q.dtype, "kv_data_type": q.dtype}


@functools.cache
def _workspace() -> Any:
    """One for all: calls run one after the other, and each wrapper keeps its plan in arrays of its own."""
    import torch

    return torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


def _on_gpu(x: Any) -> Any:
    import torch

    return torch.from_numpy(x).cuda()


def _empty_like(x: Any) -> Any:
    import torch

    return torch.empty_like(x)
