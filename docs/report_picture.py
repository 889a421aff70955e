"""The picture of docs/reports.md: landscapes of searches that an H200 recorded. ``generate.py`` writes it."""

import importlib.resources
import json
import math
from pathlib import Path

from attn_tune.reports.page import statuses
from attn_tune.reports.page.markup import Markup, element
from attn_tune.reports.page.parts.landscape import draw_map
from attn_tune.reports.page.searches import Search
from attn_tune.schema import Status
from attn_tune.schema.words import duration

RECORDED = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "h200" / "searches.jsonl"
# Two problems of one model that differ in their window: the best tiles are others.
_SIZES = "flash_attention/v1 b=4 t=4096 s=4096 n=64 k=8 h=64 v=64 dtype=bfloat16 causal=1"
CHOSEN = {"all keys, ms": f"{_SIZES} sinks=1", "the last 128 keys, us": f"{_SIZES} left=127 sinks=1"}
KNOBS = ("block_k", "block_q")
WIDTH, PANEL, TOP = 760, 370, 44
# The rules of the page that the picture needs, by how their lines begin.
_RULES = (":root", "--", "@media(prefers", ".tick", ".h0", ".h-", ".v", ".f{", ".best", ".hatch")


def picture() -> str:
    """The text of the SVG."""
    panels = [_panel(name, _search(text)) for name, text in CHOSEN.items()]
    height = TOP + max(h for _, h in panels) + 24
    placed = [
        element("svg", content, x=10 + (PANEL + 10) * place, y=0, width=PANEL, height=height)
        for place, (content, _) in enumerate(panels)
    ]
    css = (importlib.resources.files("attn_tune.reports.page") / "assets" / "page.css").read_text(encoding="utf-8")
    rules = [line for line in css.splitlines() if line.startswith(_RULES)]
    style = Markup(
        "\n".join([*rules, "text{font-family:system-ui,sans-serif;fill:var(--ink)}", "rect.page{fill:var(--panel)}"])
    )
    size = {"width": WIDTH, "height": height, "viewBox": f"0 0 {WIDTH} {height}"}
    page = element("rect", width=WIDTH, height=height, class_="page")
    drawn = element("svg", element("style", style), statuses.patterns(), page, *placed, **size)
    return str(drawn).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1) + "\n"


def _panel(name: str, search: Search) -> tuple[Markup, int]:
    x, y = (search.knobs.index(knob) for knob in KNOBS)
    gutter, drawn, height = draw_map(search, x, y)
    head = element("text", f"{name}: best {duration(search.best)}", x=0, y=16, font_weight=600, font_size=14)
    axes = element("text", f"{search.knobs[x]} across, {search.knobs[y]} up", x=0, y=34, class_="tick")
    left = element("svg", *gutter, y=TOP, width=62, height=height)
    right = element("svg", *drawn, x=62, y=TOP, width=PANEL - 62, height=height)
    return Markup(head + axes + left + right), height


def _search(signature: str) -> Search:
    """The recorded search of the whole forward."""
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        data = json.loads(line)
        if data["signature"] == signature and data["direction"] == "fwd" and not data["part"]:
            break
    else:
        raise LookupError(f"{RECORDED.name} has no search of {signature}")
    configs = [tuple(row[:-1]) for row in data["rows"]]
    values = tuple(tuple(sorted({config[place] for config in configs})) for place in range(len(data["knobs"])))
    times = tuple(math.inf if row[-1] is None else float(row[-1]) for row in data["rows"])
    return Search(
        signature=signature,
        device="nvidia-h200",
        kernel=data["kernel"],
        direction=data["direction"],
        part=data["part"],
        knobs=tuple(data["knobs"]),
        values=values,
        configs=tuple(configs),
        times=times,
        statuses=tuple(Status.OK if math.isfinite(t) else Status.OUT_OF_RESOURCES for t in times),
        seconds=tuple(math.nan for _ in times),
        default=0,
    )
