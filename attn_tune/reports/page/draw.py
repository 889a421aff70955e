"""Shared pieces of pictures: rows with a track, axes, markers, legends.

Coordinates along x are percentages, so that a picture is as wide as its place and its marks keep their form.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from attn_tune.reports.page.markup import Markup, element, joined, number, percent, unbroken
from attn_tune.reports.page.scales import Scale


def svg(*children: Any, height: float, label: str = "", **more: Any) -> Markup:
    """A picture as wide as its place. With a ``label`` it is an image of that name, without it is hidden from readers
    that speak."""
    spoken = {"role": "img", "aria_label": label} if label else {"aria_hidden": "true"}
    return element("svg", *children, width="100%", height=height, **spoken, **more)


def title(text: str) -> Markup:
    """The words that a pointer over a mark shows."""
    return element("title", text)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """A line; ``x1`` and ``x2`` are shares of the width."""
    return element("line", x1=percent(x1), y1=y1, x2=percent(x2), y2=y2, class_=class_)


def box(x: float, y: float, width: float, height: float, *children: Any, class_: str = "", **more: Any) -> Markup:
    """A rectangle; ``x`` and ``width`` are shares of the width."""
    place = {"x": percent(x), "y": y, "width": percent(max(width, 0.0)), "height": height}
    return element("rect", *children, **place, class_=class_ or None, **more)


def dot(x: float, y: float, radius: float, *children: Any, class_: str) -> Markup:
    """A circle; ``x`` is a share of the width."""
    return element("circle", *children, cx=percent(x), cy=y, r=radius, class_=class_)


def mark(x: float, y: float, form: str, *children: Any, class_: str) -> Markup:
    """A marker of another form: ``diamond``, ``square`` or ``triangle``; ``x`` is a share of the width."""
    shape = element("path", *children, d=_FORMS[form], class_=class_)
    return element("svg", shape, x=percent(x), y=y, overflow="visible")


_FORMS = {
    "diamond": "M-6 0L0-6 6 0 0 6z",
    "square": "M-4.5-4.5h9v9h-9z",
    "triangle": "M0-5.5L5.5 4.5H-5.5z",
}


def words(x: float, y: float, text: str, anchor: str = "middle", class_: str | None = None) -> Markup:
    """Words in a picture; ``x`` is a share of the width."""
    return element("text", text, x=percent(x), y=y, text_anchor=anchor, class_=class_)


def curve(points: Iterable[tuple[float, float]], class_: str, *, closed: bool = False) -> Markup:
    """A curve through ``points``, both coordinates shares of the picture, y upwards."""
    path = "L".join(f"{number(1000 * x)} {number(1000 * (1 - y))}" for x, y in points)
    drawn = element("path", d=f"M{path}{'z' if closed else ''}", class_=class_, vector_effect="non-scaling-stroke")
    frame = {"viewBox": "0 0 1000 1000", "preserveAspectRatio": "none"}
    return element("svg", drawn, width="100%", height="100%", **frame)


def axis(scale: Scale, label: Callable[[float], str], *, most: int = 6) -> Markup:
    """The numbers above a column of tracks; one that would run into the last is left out."""
    ticks = scale.ticks(most)
    marks = [line(scale.at(tick), 13, scale.at(tick), 18, "grid") for tick in ticks]
    return svg(*marks, *spaced([(scale.at(tick), label(tick)) for tick in ticks], 10), height=18, class_="track")


def spaced(labels: Iterable[tuple[float, str]], y: float) -> list[Markup]:
    """Words at shares of the width, without those that would touch the last ones in a narrow picture."""
    made: list[Markup] = []
    end = -1.0
    for place, text in labels:
        anchor, width = _anchor(place), _LETTER * len(text)
        start = place - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
        if start < end:
            continue
        end = start + width + _LETTER
        made.append(words(place, y, text, anchor, "tick"))
    return made


# A letter's share of a track of 290 pixels, the narrowest that there is.
_LETTER = 6.3 / 290


def _anchor(place: float) -> str:
    return "start" if place < 0.04 else "end" if place > 0.96 else "middle"


def grid_lines(scale: Scale, height: float, *, most: int = 6) -> Markup:
    """Faint lines at the ticks of a track."""
    return joined(line(scale.at(tick), 0, scale.at(tick), height, "grid") for tick in scale.ticks(most))


def track(scale: Scale, height: float, words: str, *shapes: Any) -> Markup:
    """The picture of one row: faint lines at the ticks, and ``shapes`` that ``words`` say."""
    return svg(title(words), grid_lines(scale, height), *shapes, height=height, label=words, class_="track")


def whisker(scale: Scale, low: float, high: float, y: float) -> Markup:
    """An interval: a line with an end mark on either side."""
    ends = [line(scale.at(x), y - 4, scale.at(x), y + 4, "whisker") for x in (low, high)]
    return joined([line(scale.at(low), y, scale.at(high), y, "whisker"), *ends])


def unit(scale: Scale, height: float) -> Markup:
    """The line at 1, where nothing is gained or lost."""
    return line(scale.at(1.0), 0, scale.at(1.0), height, "unit")


def ladder(
    y: Scale, height: float, label: Callable[[float], str], *, width: int, most: int = 6
) -> tuple[list[Markup], Markup]:
    """The lines of a vertical scale, and a gutter of ``width`` pixels with its numbers."""
    places = [(tick, height * (1 - y.at(tick))) for tick in y.ticks(most)]
    lines = [line(0, place, 1, place, "grid") for _, place in places]
    texts = [
        element("text", label(tick), x=width - 6, y=place + 4, text_anchor="end", class_="tick")
        for tick, place in places
    ]
    return lines, element("svg", *texts, width=width, height=height, overflow="visible", aria_hidden="true")


def cloud(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """Small dots; their x is a share of the width. ``defs`` of the page holds their form."""
    return element("g", *(element("use", href="#dot", x=percent(x), y=y) for x, y in points), class_=class_)


def row(name: Any, track: Markup, value: Any, *, class_: str = "", **more: Any) -> Markup:
    """One row of a list: a name, a track, a value."""
    return element(
        "li",
        element("div", name, class_="name"),
        element("div", track, class_="lane"),
        element("div", unbroken(value), class_="value"),
        class_=f"row {class_}".strip(),
        **more,
    )


def rows(head: Markup | None, items: Iterable[Any], label: str) -> Markup:
    """A list of rows under an axis."""
    top = None
    if head is not None:
        lane = element("div", head, class_="lane")
        top = element(
            "li",
            element("div", class_="name"),
            lane,
            element("div", class_="value"),
            class_="row axis",
            aria_hidden="true",
        )
    return element("ul", top, *items, class_="rows", aria_label=label)


def legend(entries: Sequence[tuple[Markup, str]]) -> Markup:
    """Marks with their meaning."""
    return element(
        "p", *(element("span", sign, " ", meaning, class_="key") for sign, meaning in entries), class_="legend"
    )


def swatch(*children: Any, width: int = 22) -> Markup:
    """A small picture for a legend."""
    return element("svg", *children, width=width, height=14, aria_hidden="true", class_="swatch")
