"""HTML and SVG elements as text. Everything that is not ``Markup`` is escaped."""

import html
import re
from collections.abc import Iterable
from typing import Any

from attn_tune.schema.words import printable

# Elements without an end tag in HTML; those of SVG that never have content are closed at once.
_VOID = ("meta", "input", "br", "col")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, *children: Any, **attributes: Any) -> Markup:
    """One element. Children that are no ``Markup`` are escaped; None is left out, lists are joined.

    ``_`` in an attribute's name is ``-`` and one at its end is dropped; None and False leave it out, True is empty.
    """
    words = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        words.append(f'{key}="{"" if value is True else _escaped(number(value))}"')
    head = " ".join(words)
    if name in _VOID:
        return Markup(f"<{head}>")
    body = joined(children)
    return Markup(f"<{head}>{body}</{name}>" if body or name not in _CLOSED else f"<{head}/>")


_CLOSED = ("rect", "circle", "line", "path", "use")


def joined(children: Iterable[Any], separator: str = "") -> Markup:
    """The children as one text."""
    return Markup(separator.join(_child(child) for child in children))


def _child(child: Any) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, list | tuple):
        return joined(child)
    return _escaped(str(child))


def _escaped(text: str) -> str:
    return html.escape(printable(text), quote=True)


def number(value: Any) -> str:
    """The shortest text of a number with at most two decimals; of anything else ``str``."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") or "0"
    return str(value)


def percent(share: float) -> str:
    """A share as a coordinate: ``12.5%``."""
    return f"{number(100.0 * share)}%"


def breakable(name: str) -> Markup:
    """The name of a problem or kernel, which a narrow screen breaks between its words before it breaks one of them."""
    return joined(_BREAKS.split(name), "<wbr/>")


# Behind a slash or an underscore, and behind the dot before a word, which is not that of a number. A browser breaks
# behind a hyphen by itself.
_BREAKS = re.compile(r"(?<=[/_])(?=.)|(?<=\.)(?=[a-z])")
# The spaces between a number and its unit, and within an interval.
_INNER = re.compile(r"(?<=[\d×]) (?=%|[nmu]?s\b|[kMGTP]?(?:FLOP|B)/s)|(?<=\d,) (?=[\d.]+\])")


def unbroken(made: Markup) -> Markup:
    """The elements, in whose texts no line break parts a figure from its unit."""
    return Markup(_INNER.sub("\N{NO-BREAK SPACE}", made))


def table(headers: Iterable[Any], rows: Iterable[Iterable[Any]], *, numeric: Iterable[int] = (), **more: Any) -> Markup:
    """A table in a frame that scrolls sideways; the columns ``numeric`` stand to the right.

    A row may be a ``Markup`` of its own.
    """
    right = set(numeric)
    head = element(
        "tr", *(element("th", h, scope="col", class_="n" if i in right else None) for i, h in enumerate(headers))
    )
    body = [
        row
        if isinstance(row, Markup)
        else element("tr", *(element("td", cell, class_="n" if i in right else None) for i, cell in enumerate(row)))
        for row in rows
    ]
    made = element("table", element("thead", head), element("tbody", *body), **more)
    return element("div", made, class_="wide", tabindex="0", role="region", aria_label="table")


def details(summary: Any, *children: Any, is_open: bool = False, **more: Any) -> Markup:
    """Content that a reader unfolds."""
    return element("details", element("summary", summary), *children, open=is_open, **more)


def script_text(text: str) -> str:
    """A program as it may stand in a script element, which only the end of the element could leave."""
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
