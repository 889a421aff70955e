"""Write the rows of a pack in the format of another tool; rows that it cannot hold are counted and named.

tokamax: the JSON of an AutotuningResult, for its kernels (needs the extra 'tokamax'). maxtext: flags of splash
attention on TPU, as YAML.

Example: attn-tune pack convert h200.atpack --to tokamax h200.tokamax.json
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from attn_tune.commands.shared import options, output, selection
from attn_tune.commands.shared.output_file import check_free, write_text
from attn_tune.integrations.conversion import Format
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.integrations.conversion import Conversion


def command(
    path: options.PackPath,
    out: Path = options.argument("OUT", "The file to write."),
    to: Format = options.option(..., "--to", "", "The format of the file."),
    device: str | None = options.option(
        None, "--device", "DEVICE", "The device whose rows are written; needed when several have such rows."
    ),
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    from attn_tune.integrations.conversion import convert
    from attn_tune.packs.reader import read_pack

    check_free(out, overwrite=overwrite)
    pack = read_pack(path)
    made = convert(pack, to, selection.device(device) if device else None)
    write_text(out, made.text)
    if pack.gate and pack.gate.get("passed") is not True:
        output.note(f"{path} did not pass the release gate; 'attn-tune pack inspect' says why")
    _tell(out, made, json=json)


def _tell(out: Path, made: "Conversion", *, json: bool) -> None:
    if json:
        left_out = [
            {
                "kernel": f"{one.row.op}/{one.row.kernel}",
                "direction": one.row.direction,
                "signature": one.row.signature,
                "reason": one.reason,
            }
            for one in made.left_out
        ]
        output.emit_json(
            path=out, device=str(made.device), rows=len(made.written), left_out=left_out, remarks=made.remarks
        )
        return
    output.say(f"{out}: {counted(len(made.written), 'row')} for {made.device}, {len(made.left_out)} left out")
    kinds = Counter((f"{one.row.op}/{one.row.kernel} {one.row.direction}", one.reason) for one in made.left_out)
    for (kernel, reason), count in kinds.most_common():
        output.say(f"  left out, {counted(count, 'row')} of {kernel}: {reason}")
    for remark, count in Counter(remark.partition(": ")[2] for remark in made.remarks).most_common():
        output.say(f"  remark on {counted(count, 'problem')}: {remark}")
