"""One process of a job on CPU: asks the lookup once, and says what came of it.

python rank_process.py PROCESS COUNT PORT [DELAY_S [GRACE_S]]
"""

import json
import os
import sys
import time


def main() -> int:
    me, count, port = (int(text) for text in sys.argv[1:4])
    delay = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    jax.distributed.initialize(f"localhost:{port}", count, me)
    import attn_tune
    from attn_tune.kernels.registry import kernels
    from attn_tune.runtime import rank_agreement

    if len(sys.argv) > 5:
        rank_agreement.GRACE_S = rank_agreement.ACK_S = float(sys.argv[5])
        attn_tune.set_rank_deadline(float(sys.argv[5]))

    # As a job has it when it traces its first function: everything imported, JAX's devices there.
    kernels()
    lookup = attn_tune.lookup
    jax.local_devices()
    time.sleep(delay)
    said = {"process": me, "started": time.time()}
    text = "flash_attention/v1 b=1 t=64 s=64 n=1 k=1 h=64 v=64 dtype=float32"
    try:
        answer = lookup("flash_attention", text)
        said |= {"answer": str(answer), "source": answer.source}
    except attn_tune.AttnTuneError as error:
        said |= {"error": type(error).__name__, "message": str(error)}
    said["ended"] = time.time()
    print("RESULT", json.dumps(said), flush=True)
    return 0 if "answer" in said else 7


if __name__ == "__main__":
    sys.exit(main())
