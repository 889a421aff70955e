"""The picture of the path from a sweep to a call, ``flow.svg``. ``generate.py`` writes it."""

from dataclasses import dataclass
from html import escape
from itertools import pairwise

# Sizes are those of the picture at 400 pixels, where its smallest text is 11 pixels high.
WIDTH, MARGIN, GAP, BOX, BAND, PITCH = 400, 36, 16, 50, 86, 98
STYLE = """\
svg {
  --back: #ffffff; --band: #f2f4f7; --box: #ffffff; --edge: #8a94a6;
  --ink: #1b2430; --soft: #4d5868; --go: #1f6feb }
@media (prefers-color-scheme: dark) {
  svg {
    --back: #0d1117; --band: #161b22; --box: #212830; --edge: #6e7a8a;
    --ink: #e6edf3; --soft: #a9b4c0; --go: #58a6ff }
}
text { font-family: system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: var(--ink) }
.who { font-size: 12.5px; font-weight: 600 }
.name { font-size: 14px; font-weight: 600; text-anchor: middle }
.says { font-size: 11px; fill: var(--soft); text-anchor: middle }
.band { fill: var(--band) }
.box { fill: var(--box); stroke: var(--edge) }
.go { stroke: var(--go); stroke-width: 2; fill: none }
.tip { fill: var(--go) }
.miss { stroke-dasharray: 5 4 }
"""


@dataclass(frozen=True)
class Band:
    """The steps that one person or program does.

    Attributes:
      who: the person or program, and the command.
      steps: name and explanation of each step, from left to right.
    """

    who: str
    steps: tuple[tuple[str, str], ...]


BANDS = (
    Band(
        "Bring-up engineer: attn-tune sweep",
        (("compile", "own process"), ("prove", "values, gradients"), ("race", "in turns, paired")),
    ),
    Band("The lab database: one SQLite file", (("trials", "all, failures too"), ("decision", "winner or tie"))),
    Band("Release engineer: attn-tune export", (("gate", "proven, quiet, fast"), ("pack", "JSON, checksums"))),
    Band(
        "Production job: attn_tune.flash_attention(...)",
        (("lookup", "at trace time"), ("kernel, config", "or the untuned one")),
    ),
)


def drawn() -> str:
    """The picture as SVG."""
    height = PITCH * len(BANDS) + 4
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>From a sweep to a call</title>",
        f"<desc>{escape(_words())}</desc>",
        f"<style>\n{STYLE}</style>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse" orient="auto"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" style="fill: var(--back)"/>',
    ]
    for number, band in enumerate(BANDS):
        parts += _band(band, number * PITCH + 4)
    for number in range(1, len(BANDS)):
        # From the last step of a band to the first of the next, left of what names that band.
        start, end = number * PITCH - 14, number * PITCH + 4
        right = _places(BANDS[number - 1])[-1]
        middle = (start + end) / 2 + 1
        parts.append(_arrow(f"M{_middle(right)} {start + 2}V{middle:g}H{MARGIN + 8}V{end + 26}"))
    top, bottom = 4 + 26 + BOX / 2, (len(BANDS) - 1) * PITCH + 4 + 26 + BOX / 2
    parts.append(_arrow(f"M{MARGIN} {bottom:g}H20V{top:g}H{MARGIN}", "go miss"))
    parts.append(
        f'<text class="says" transform="translate(13 {(top + bottom) / 2:g}) rotate(-90)">a miss: the next sweep</text>'
    )
    return "\n".join((*parts, "</svg>", ""))


def _places(band: Band) -> list[tuple[float, float]]:
    """Left edge and width of the box of each step."""
    room = WIDTH - MARGIN - 12
    width = (room - GAP * (len(band.steps) - 1)) / len(band.steps)
    return [(MARGIN + i * (width + GAP), width) for i in range(len(band.steps))]


def _middle(place: tuple[float, float]) -> str:
    return f"{place[0] + place[1] / 2:g}"


def _band(band: Band, top: float) -> list[str]:
    parts = [
        f'<rect class="band" x="{MARGIN - 8}" y="{top:g}" width="{WIDTH - MARGIN + 4}" height="{BAND}" rx="8"/>',
        f'<text class="who" x="{MARGIN + 16}" y="{top + 17:g}">{escape(band.who)}</text>',
    ]
    places = _places(band)
    for (left, width), (name, says) in zip(places, band.steps, strict=True):
        middle = _middle((left, width))
        parts += [
            f'<rect class="box" x="{left:g}" y="{top + 26:g}" width="{width:g}" height="{BOX}" rx="6"/>',
            f'<text class="name" x="{middle}" y="{top + 47:g}">{escape(name)}</text>',
            f'<text class="says" x="{middle}" y="{top + 64:g}">{escape(says)}</text>',
        ]
    for (left, width), (following, _) in pairwise(places):
        parts.append(_arrow(f"M{left + width:g} {top + 26 + BOX / 2:g}H{following:g}"))
    return parts


def _arrow(path: str, kind: str = "go") -> str:
    return f'<path class="{kind}" d="{path}" marker-end="url(#tip)"/>'


def _words() -> str:
    bands = (f"{band.who}: {', then '.join(' '.join(step) for step in band.steps)}" for band in BANDS)
    return ". ".join(bands) + ". A lookup that misses can become the next sweep."
