"""Serving over a cache in pages by FlashInfer and torch: one run, one device, interleaved, device time, cold cache.

    python benchmarks/serving_torch_peers.py --build --grid llama3-8b-serving --only page64 uneven --out torch.json
    python benchmarks/serving_torch_peers.py --cascade 32x4096+128 128x32768+1024 --out cascade_torch.json
    python benchmarks/serving_torch_peers.py --build --grid deepseek-v3-mla-serving --only x1x4k --out mla_torch.json
    python benchmarks/serving_torch_peers.py --dry-run --grid llama3-8b-serving --only page64/1x1x1k --out dry.json
    python benchmarks/serving_torch_peers.py --join serving.json torch.json

The peers of ``paged_decode_peers.py``, ``ragged_paged_peers.py``, ``paged_append_peers.py`` and ``cascade_peers.py``
that live in torch, on calls of the same sizes, lengths and page tables. What FlashInfer plans on the host is planned
outside the clock, and what it compiles is compiled by ``--build``. ``_tc`` is its decoding by tensor cores, ``_fa2``
and ``_fa3`` are its two kernels of prefill. ``sdpa_..._contiguous`` is ``scaled_dot_product_attention`` on a contiguous
cache of the same lengths, by that backend; ``index_put`` is a scatter of torch. A row says microseconds, the terabytes
that must move a second, the worst error of some rows as a multiple of what is allowed, and the kernels of a call.
``--join`` prints a table a grid of the points that two files have: ours, the peers, and our speed over the best right
one.
A GPU is needed but for a dry run, which leaves FlashInfer out and reads the host's clock.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import serving_flashinfer
import serving_join
from serving_cases import CASCADE, Case, cascade_case, grid_cases

from attn_tune.schema.errors import UsageError

# Rows are checked of so many sequences and of so many queries of each.
_CHECKED = 4, 16


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--grid", nargs="+", default=[], help="grids whose points are run")
    parser.add_argument("--only", nargs="+", default=[], help="points whose name contains one of these")
    parser.add_argument("--cascade", nargs="+", default=[], help="SEQUENCESxPREFIX+OWN, as cascade_peers.py names them")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--build", action="store_true", help="compile FlashInfer's modules first")
    parser.add_argument("--dry-run", action="store_true", help="run all but FlashInfer, on the CPU")
    parser.add_argument("--join", nargs="+", type=Path, default=[], help="print the table of these files, and end")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args(arguments)
    if args.join:
        try:
            print(serving_join.markdown(json.loads(path.read_text()) for path in args.join))
        except (UsageError, OSError) as error:
            parser.error(str(error))
        return 0
    if args.out is None and (args.grid or args.cascade or not args.build):
        parser.error("--out is needed for a run, or --join, or --build alone")
    # Torch has the GPU; JAX draws lengths and judges a few rows.
    os.environ["JAX_PLATFORMS"] = "cpu"
    if args.dry_run:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        cases = [case for grid in args.grid for case in grid_cases(grid, args.only)]
        cases += map(cascade_case, args.cascade)
    except UsageError as error:
        parser.error(str(error))
    serving_flashinfer.prepare()
    if args.build:
        whole = [case for case in cases if not case.lacks]
        if any(case.is_latent for case in whole):
            serving_flashinfer.build(serving_flashinfer.LATENT)
        for head_dim in sorted({case.problem.head_dim for case in whole if not case.is_latent}) or (
            [] if whole else [128]
        ):
            is_append = bool(whole) and all(case.kind == "paged_append" for case in whole)
            modules = [serving_flashinfer.PAGE] if is_append else serving_flashinfer.PLAIN
            serving_flashinfer.build(modules, head_dim)
    report: dict[str, Any] = {"versions": _versions(with_flashinfer=not args.dry_run), "rows": []}
    for case in cases:
        report["rows"].append(_row(case, args.rounds, with_flashinfer=not args.dry_run))
        args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


def _versions(*, with_flashinfer: bool) -> dict[str, str]:
    import torch

    has_gpu = torch.cuda.is_available()
    found = {"device": torch.cuda.get_device_name(0) if has_gpu else "cpu", "torch": torch.__version__}
    if has_gpu:
        found |= {"cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())}
    if with_flashinfer:
        import flashinfer

        found["flashinfer"] = flashinfer.__version__
    return found


def _row(case: Case, rounds: int, *, with_flashinfer: bool) -> dict[str, Any]:
    import torch
    from torch_busy import race

    torch.manual_seed(0)
    make = _append if case.kind == "paged_append" else _attention
    calls, judge = ({"every peer": case.lacks}, None) if case.lacks else make(case, with_flashinfer)
    ready: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    notes: dict[str, str] = {}
    for name, call in calls.items():
        if isinstance(call, str):
            notes[name] = call
            continue
        try:
            errors[name] = judge(call)
        except Exception as error:  # any error of a peer is that peer's result
            notes[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            continue
        ready[name] = call
    times = race(ready, rounds) if ready else {}
    print(f"{case.point:36s}", "  ".join(f"{name} {busy.us:.2f} us" for name, busy in times.items()), flush=True)
    if wrong := {name: ratio for name, ratio in errors.items() if ratio > 1}:
        print(f"{'':36s} wrong: {wrong}", flush=True)
    for name, note in notes.items():
        print(f"{'':36s} {name}: {note}", flush=True)
    return {
        "point": case.point,
        "signature": case.problem.signature.text,
        "bytes": case.bytes_moved,
        "us": {name: round(busy.us, 2) for name, busy in times.items()},
        "tb_s": {name: round(case.bytes_moved / busy.us / 1e6, 3) for name, busy in times.items()},
        "kernels": {name: busy.kernels for name, busy in times.items()},
        "error_ratio": errors,
        "cannot": notes,
    }


type _Calls = tuple[dict[str, Any], Callable[[Callable[[], Any]], float]]


def _attention(case: Case, with_flashinfer: bool) -> _Calls:
    """The peers of attention on random arrays, and the judge of their outputs."""
    import serving_sdpa
    import torch
    from serving_reference import answers, checked_rows, error_ratio

    p = case.problem
    q = _normal(int(case.new.sum()), p.num_q_heads, p.head_dim)
    k, v = (_normal(case.pages, p.page_size, p.num_kv_heads, p.head_dim) for _ in "kv")
    if case.is_latent:
        v = k[..., : p.v_head_dim]
    rows = checked_rows(case.new, *_CHECKED)
    exact, plain = (answers(case, q, k, v, rows, dtype) for dtype in (torch.float32, q.dtype))

    def judge(call: Callable[[], Any]) -> float:
        out = call()
        return error_ratio(case, out.reshape(*q.shape[:2], p.v_head_dim)[[row for row, _, _ in rows]], exact, plain)

    calls: dict[str, Any] = {}
    if with_flashinfer:
        make = {
            "paged_decode": serving_flashinfer.decode_calls,
            "ragged_paged": serving_flashinfer.ragged_calls,
            CASCADE: serving_flashinfer.cascade_calls,
        }[case.kind]
        if case.is_latent:
            make = serving_flashinfer.latent_calls
        calls |= make(case, q, (k, v))
    return calls | serving_sdpa.calls(case, q, k, v), judge


def _append(case: Case, with_flashinfer: bool) -> _Calls:
    """The peers of an update of the cache, and the judge: every bit of the cache must be as expected."""
    import torch

    p = case.problem
    new = tuple(_normal(int(case.new.sum()), p.num_kv_heads, p.head_dim) for _ in "kv")
    cache = tuple(_normal(case.pages, p.page_size, p.num_kv_heads, p.head_dim) for _ in "kv")
    at = serving_flashinfer.positions(case)
    sequence = torch.arange(len(case.new)).repeat_interleave(torch.from_numpy(case.new))
    page = torch.from_numpy(case.table.astype("int64"))[sequence, torch.from_numpy(at // p.page_size).long()]
    page, slot = page.to(cache[0].device), torch.from_numpy(at % p.page_size).long().to(cache[0].device)
    before = [x.clone() for x in cache]
    expected = [x.clone() for x in cache]
    for x, y in zip(expected, new, strict=True):
        # One after the other in numpy's sense, by another operation than the peer's.
        x.view(-1, *x.shape[2:]).index_copy_(0, page * p.page_size + slot, y)

    def index_put() -> None:
        for x, y in zip(cache, new, strict=True):
            x.index_put_((page, slot), y)

    def judge(call: Callable[[], Any]) -> float:
        for x, y in zip(cache, before, strict=True):
            x.copy_(y)
        call()
        return 0.0 if all(_same_bits(x, y) for x, y in zip(cache, expected, strict=True)) else float("inf")

    calls: dict[str, Any] = serving_flashinfer.append_calls(case, new, cache) if with_flashinfer else {}
    return calls | {"index_put": index_put}, judge


def _same_bits(x: Any, y: Any) -> bool:
    import torch

    return torch.equal(x.view(torch.int16), y.view(torch.int16))


def _normal(*shape: int) -> Any:
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.randn(shape, dtype=torch.bfloat16, device=device)


if __name__ == "__main__":
    sys.exit(main())
