"""The first lookup of a process in a pack it has not read: read, verify, arrange, answer. Exact and neighbour.

Sums and manifest are verified before the first answer, and each row that may answer. Every sample is a process of its
own with warm file caches and all modules imported; what imports cost is a column of its own. The processor's time
stands beside the clock's: on a machine with other work it says more.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

HERE = Path(__file__).resolve().parent
OP = "flash_attention"
SAMPLE = """
import gc, sys, time
start = time.perf_counter()
from attn_tune.runtime.lookup.dispatch import lookup
from attn_tune.kernels.registry import kernels_of
from attn_tune.ops.registry import get_op
from attn_tune.runtime.active import layers, settings
from attn_tune.devices import aliases, environments
from attn_tune.devices.identity import device_from_kind
from attn_tune.runtime.active.sources import Locations, Source, SourceKind
from attn_tune.runtime.lookup.ladder import RowQuestion, walk
from attn_tune.schema.environment import Grade
device = device_from_kind("nvidia-h200")
op = get_op("flash_attention")
signature = op.parse_signature(sys.argv[2])
class Judge:
    grade = staticmethod(lambda row, pack: Grade.VERIFIED)
    refusal = staticmethod(lambda row, pack: None)
    adapt = staticmethod(lambda row: row)
imported = time.perf_counter()
began = time.process_time()
source = Source(SourceKind.USER, sys.argv[1])
index = source.row_index("flash_attention", "fwd", op.fields)
read = time.perf_counter()
question = RowQuestion(op=op.name, direction="fwd", signature=signature, fields=op.fields, device=device)
found = walk(question, iter([(source.kind, index)]), Judge())
end = time.perf_counter()
ended = time.process_time()
assert found.match is not None and found.match.rung == sys.argv[3], found
print(imported - start, read - imported, end - read, ended - began)
"""


def make_pack(path: Path, rows: int) -> list[str]:
    """A pack of ``rows`` rows, one kernel and direction; returns the signatures."""
    sys.path.insert(0, str(HERE.parent))
    from attn_tune.devices.identity import device_from_kind
    from attn_tune.ops.flash_attention.problem import Problem
    from attn_tune.packs.writer import pack_files
    from attn_tune.schema import Decision, Environment, Rule

    device = device_from_kind("nvidia-h200")
    environment = Environment(jax="0.12.0", jaxlib="0.12.0", triton="3.9.0", source_hash="b2:0")
    decisions = []
    for i in range(rows):
        problem = Problem(
            batch=1 + i % 8,
            q_len=128 * (1 + i // 8),
            kv_len=128 * (1 + i // 8),
            num_q_heads=32,
            num_kv_heads=8,
            head_dim=128,
            v_head_dim=128,
            causal=True,
        )
        decisions.append(
            Decision(
                op=OP,
                direction="fwd",
                signature=problem.signature,
                device=device,
                environment=environment,
                kernel=f"{OP}/triton",
                config={
                    "block_q": 32 << i % 3,
                    "block_k": 32 << i % 5 % 3,
                    "num_warps": 4 << i % 2,
                    "num_stages": 1 + i % 4,
                },
                rule=Rule.WINNER,
                median_ns=100_000 + i,
                heuristic_ns=120_000 + i,
                gain=1.2,
                regret_bound=0.001,
                worst_error=0.3,
                samples=24,
            )
        )
    files = pack_files(decisions, name="cold", version="1")
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return [d.signature.text for d in decisions]


def sample(pack: Path, signature: str, rung: str, count: int) -> list[list[float]]:
    """``count`` processes: milliseconds of imports, reading, the answer; and of the processor for the last two."""
    found = []
    for _ in range(count):
        done = subprocess.run(
            [sys.executable, "-c", SAMPLE, str(pack), signature, rung],
            capture_output=True,
            text=True,
            check=True,
            cwd=HERE.parent,
        )
        found.append([1e3 * float(word) for word in done.stdout.split()])
        time.sleep(0.01)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    lines = [
        "| pack | question | imports ms | read+verify ms | answer ms | cold lookup p50 ms | best | p95 "
        "| processor p50 ms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for rows in args.rows:
        with tempfile.TemporaryDirectory() as folder:
            signatures = make_pack(Path(folder), rows)
            exact = signatures[len(signatures) // 2]
            # 14 or 15 of a batch of 8 at most: within a factor of two.
            near = exact.replace("b=", "b=1", 1)
            for rung, text in (("exact", exact), ("neighbour", near)):
                found = sample(Path(folder), text, rung, args.samples)
                imports, read, answer, processor = (median(c) for c in zip(*found, strict=True))
                total = [f[1] + f[2] for f in found]
                lines.append(
                    f"| {rows} rows | {rung} | {imports:.1f} | {read:.2f} | {answer:.2f} | "
                    f"{median(total):.2f} | {min(total):.2f} | {quantiles(total, n=20)[-1]:.2f} | {processor:.2f} |"
                )
                print(lines[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
