"""Write a badge of a pack: an SVG with its name, device, rows and how many of them are proven.

Example: attn-tune pack badge h200.atpack docs/h200.svg
"""

from pathlib import Path

from attn_tune.commands.shared import options, output
from attn_tune.commands.shared.output_file import check_free, write_text


def command(
    path: options.PackPath,
    out: Path = options.argument("OUT", "The SVG to write."),
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    from attn_tune.packs.reader import read_pack
    from attn_tune.reports.badge import badge

    check_free(out, overwrite=overwrite)
    pack = read_pack(path)
    write_text(out, badge(pack))
    if json:
        output.emit_json(
            path=out, digest=pack.digest, rows=len(pack.rows), proven=sum(row.is_proven for row in pack.rows)
        )
        return
    output.say(f"{out}: a badge of {pack}; in Markdown:")
    print(f"  ![attn-tune {pack.name}]({out.as_posix()})")
