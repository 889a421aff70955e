"""Show the progress of the running sweep, or the end of the last one.

Example: attn-tune status --db sweep.db
"""

import shlex
import time

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.database import open_lab
from attn_tune.commands.sweeps.progress import clock


def command(db: options.Database, json: options.Json = False) -> None:
    with open_lab(db) as database:
        now = database.status()
    age = (time.time_ns() // 1000 - now.heartbeat_us) / 1e6
    # Of a run that died the last sign of life is all that is known.
    last = time.time_ns() // 1000 if now.running else now.ended_us or now.heartbeat_us
    elapsed = (last - now.started_us) / 1e6
    counts = {str(name): number for name, number in now.counts.items()}
    if json:
        output.emit_json(
            state=now.state,
            run=now.run_id,
            host=now.host,
            pid=now.pid,
            command=shlex.join(now.argv),
            device=now.device.identity if now.device else None,
            elapsed_s=round(elapsed, 3),
            silent_s=round(age, 3) if now.running else None,
            trials=now.trials,
            statuses=counts,
        )
        return
    if now.run_id is None:
        print(f"{db}: no sweep has run yet")
        return
    print(f"{db}: run {now.run_id} is {now.state}, on {now.device} of {now.host} (pid {now.pid})")
    print(f"  command  {shlex.join(now.argv)}")
    since = " since the start" if now.running else ""
    print(f"  trials   {now.trials} in {clock(elapsed)}{since}")
    for name, number in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"  {number:>8} {name}")
    if now.running:
        print(f"  the last sign of life is {clock(age)} old")
