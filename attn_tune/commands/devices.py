"""Show the devices here, as decisions are matched to them.

Example: attn-tune devices --device nvidia-h200
"""

from attn_tune.commands.shared import options, output, selection
from attn_tune.schema import UsageError


def command(
    device: options.DeviceName = None,
    every: bool = options.flag("--all", "List the names for --device, here or not."),
    json: options.Json = False,
) -> None:
    import pandas as pd

    if every:
        from attn_tune.devices.identity import known_devices

        if device:
            raise UsageError("--all lists every device; leave --device out")
        rows = [{"device": name, "family": family} for name, family in known_devices().items()]
        output.emit_formatted(pd.DataFrame(rows), options.table_or_json(json), key="known")
        return
    if device:
        found = [selection.device(device)]
    else:
        import jax

        from attn_tune.devices.identity import describe

        found = [describe(one) for one in jax.local_devices()]
    if json:
        rows = [d.identity | {"digest": d.digest, "evidence": dict(d.evidence)} for d in found]
        output.emit_json(devices=rows)
        return
    for one in found:
        evidence = {f"({name})": value for name, value in one.evidence}
        pairs = one.identity | {"digest": one.digest} | evidence
        frame = pd.DataFrame([(k, str(v)) for k, v in pairs.items()], columns=["field", "value"])
        output.emit_frame(frame, title=str(one))
