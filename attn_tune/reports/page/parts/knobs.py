"""Worth of knobs: what is lost when one knob is fixed to a value and all others are chosen again."""

import math
from collections.abc import Sequence

from attn_tune.reports.page.data import PageData, fitting
from attn_tune.reports.page.markup import Markup, element
from attn_tune.reports.page.parts.landscape import bin_of, value_words
from attn_tune.reports.page.searches import Search

TITLE = "What is each knob worth?"
BUDGET = 28_000


def part(data: PageData, searches: Sequence[Search]) -> list[Markup]:
    """One card a search: its knobs, the one that matters most first, with the loss at each value."""
    kept = [s for s in searches if s.knobs and math.isfinite(s.best)]
    if not kept:
        return [element("p", "No search tried several values of a knob and found a right config.", class_="none")]
    ordered = sorted(kept, key=lambda s: (-len(s.configs), s.key))
    cards, rest = fitting(ordered, lambda s: _card(data, s), data.budget(BUDGET))
    data.left_out["searches whose knobs are not shown"] = rest
    return [element("div", *cards, class_="cards")]


def _card(data: PageData, search: Search) -> Markup:
    return element(
        "div",
        element("h3", data.label(search.signature, *search.kernel_words, device=search.device)),
        element("dl", *(_knob(search, knob) for knob in search.by_worth), class_="knobs"),
        class_="card",
        **data.marks(signature=search.signature, device=search.device),
    )


def _knob(search: Search, knob: int) -> Markup:
    default = search.configs[search.default][knob] if search.default is not None else _NOTHING
    chips = [
        element(
            "span",
            element("b", value_words(value)),
            element("span", loss_words(loss)),
            class_=f"chip {_shade(loss)}{' is-untuned' if value == default and type(value) is type(default) else ''}",
            title=_spoken(search.knobs[knob], value_words(value), loss),
        )
        for value, loss in zip(search.values[knob], search.losses[knob], strict=True)
    ]
    return Markup(element("dt", search.knobs[knob]) + element("dd", *chips))


_NOTHING = object()


def _shade(loss: float) -> str:
    return f"k{bin_of(1 + loss)}" if math.isfinite(loss) else "k-fail"


def loss_words(loss: float) -> str:
    """A loss: ``best``, ``+3.1 %``, ``2.4×``, ``failed``."""
    if not math.isfinite(loss):
        return "failed"
    if loss == 0:
        return "best"
    if loss < 0.0005:
        return "<0.1 %"
    return f"+{100 * loss:.1f} %" if loss < 0.995 else f"{1 + loss:.1f}×"


def _spoken(knob: str, value: str, loss: float) -> str:
    if not math.isfinite(loss):
        return f"everything that was tried with {knob}={value} failed"
    return f"with {knob}={value} and the other knobs chosen again, time is {1 + loss:.3f} of the best"
