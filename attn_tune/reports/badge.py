"""A badge of a pack: one small SVG, the same bytes for the same pack, for light and dark pages."""

from xml.sax.saxutils import escape

from attn_tune.packs.reader import Pack
from attn_tune.schema.words import counted

_HEIGHT, _MARGIN = 20, 8
# A wide estimate for sans-serif at 11 px; ``textLength`` makes every font fit it.
_WIDTH_OF_CHARACTER = 6.5
_MOST_CHARACTERS = 60
# Background of the right half, on light and on dark pages: all proven, some, none. White text on each has a contrast
# of at least 4.5 (WCAG 2.2, 1.4.3).
_COLOURS = {"all": ("#1a7f37", "#15652c"), "some": ("#9a6700", "#7d5300"), "none": ("#59636e", "#4a525b")}


def badge(pack: Pack) -> str:
    """The SVG: name of the pack, its devices, the numbers of rows and of proven ones, a release gate that it failed."""
    proven = sum(row.is_proven for row in pack.rows)
    refused = bool(pack.gate) and pack.gate.get("passed") is not True
    kind = "none" if not proven else "some" if refused or proven < len(pack.rows) else "all"
    devices = ", ".join(sorted({str(device) for device in pack.devices.values()}))
    left = _short(f"attn-tune {pack.name}")
    right = _short(f"{devices}: {counted(len(pack.rows), 'row')}, {proven} proven" + ", gate not passed" * refused)
    text = escape(f"{left} | {right}", {'"': "&quot;"})
    first, second = (round(len(word) * _WIDTH_OF_CHARACTER) + 2 * _MARGIN for word in (left, right))
    light, dark = _COLOURS[kind]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{first + second}" height="{_HEIGHT}" role="img" '
            f'aria-label="{text}">',
            f"<title>{text}</title>",
            "<style>",
            ".left{fill:#32383f}",
            f".right{{fill:{light}}}",
            "text{fill:#fff;font:11px Verdana,DejaVu Sans,sans-serif}",
            f"@media(prefers-color-scheme:dark){{.left{{fill:#21262d}}.right{{fill:{dark}}}text{{fill:#f0f6fc}}}}",
            "</style>",
            f'<rect class="left" width="{first}" height="{_HEIGHT}"/>',
            f'<rect class="right" x="{first}" width="{second}" height="{_HEIGHT}"/>',
            _text(left, 0, first),
            _text(right, first, second),
            "</svg>",
            "",
        )
    )


def _text(word: str, x: int, width: int) -> str:
    length = width - 2 * _MARGIN
    return f'<text x="{x + _MARGIN}" y="14" textLength="{length}" aria-hidden="true">{escape(word)}</text>'


def _short(text: str) -> str:
    """``text`` of bounded length, without characters that XML cannot hold."""
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return plain if len(plain) <= _MOST_CHARACTERS else plain[: _MOST_CHARACTERS - 3] + "..."
