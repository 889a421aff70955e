"""The page: its head with the rule that forbids every request, the filter, the parts in order."""

import base64
import dataclasses
import hashlib
import importlib.metadata
import importlib.resources
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attn_tune.reports.page import conditions, statuses
from attn_tune.reports.page.data import PageData, how_many
from attn_tune.reports.page.markup import Markup, element, joined, unbroken
from attn_tune.reports.page.parts import (
    coverage,
    evidence,
    failures,
    kernels,
    knobs,
    landscape,
    noise,
    roofline,
    speedups,
    traces,
)
from attn_tune.reports.page.searches import Search, searches
from attn_tune.schema import Rule, Status

# What a page may weigh at most, in bytes: without and with the library for interaction.
LIMIT, INTERACTIVE_LIMIT = 400_000, 1_500_000
# What the head with its style, the scripts and the header take of it.
AROUND = 26_000
_OPTION = re.compile(r"(--\w+)")


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of the page: its anchor, its word in the navigation, its module, and how to read it."""

    anchor: str
    short: str
    module: Any
    how: str


_PARTS = (
    _Part(
        "coverage",
        "Coverage",
        coverage,
        "A row a problem, a column a device and direction. A number is the speedup: the median time of the untuned "
        "config over that of the winner. Reasons stand under the matrix and in each cell's title.",
    ),
    _Part(
        "speedups",
        "Speedups",
        speedups,
        "The paired speedup: the time of the untuned config over that of the fastest one in the same turn, the median "
        "of all turns, on a logarithmic axis. It differs from the speedup above, a ratio of two medians, by what "
        "changed from turn to turn. A gain counts only beyond noise, above 1 % and half a microsecond; all else is a "
        "tie, and the untuned config stays.",
    ),
    _Part(
        "kernels",
        "Kernels",
        kernels,
        "The best config of each kernel, its median time over that of the fastest kernel, on a logarithmic axis. The "
        "error is the largest of an output or gradient over what is allowed: at most 1 is right.",
    ),
    _Part(
        "landscape",
        "Landscapes",
        landscape,
        "Each cell is the best time over all other knobs that were tried, as the search measured it: one config after "
        "the other, not in turns as in finals, which alone decide. Hatched cells failed altogether; the "
        "outlined cell is the best. Drawn are the two knobs that matter most.",
    ),
    _Part(
        "roofline",
        "Roofline",
        roofline,
        "Operations and bytes are those of the plain algorithm, so a kernel that skips work may pass a limit, and "
        "caches may too. A published limit is one that no program reaches.",
    ),
    _Part(
        "search",
        "Search",
        traces,
        "The best time so far over the best of all, in the order in which configs were tried. The dashed line is the "
        "median of random orders of the same configs.",
    ),
    _Part(
        "knobs",
        "Knobs",
        knobs,
        "One knob is fixed to a value, all others are chosen again from what was tried: the number is what that costs "
        "against the best, in times that the search measured one after the other; finals alone decide. The untuned "
        "value is underlined. Few tried configs make this coarse.",
    ),
    _Part(
        "failures",
        "Failures",
        failures,
        "A failed trial is a result: it costs the sweep one trial and can never win. Refused configs did not fail.",
    ),
    _Part(
        "noise",
        "Noise and cost",
        noise,
        "Spread says how fine a difference can be seen; a problem with a wide spread is worth sweeping again in quiet.",
    ),
    _Part(
        "evidence",
        "Evidence",
        evidence,
        "The samples that a decision compares. Samples of one turn were taken one after the other, so their ratio does "
        "not see what slowed both.",
    ),
)


def render(data: PageData, *, library: Callable[[], str] | None = None) -> str:
    """The page. With a ``library``, which gives the text of a Vega bundle, the landscapes can be brushed.

    Equal frames give equal text: nothing depends on the time, on chance or on the order of sets.
    """
    found = searches(data.trials)
    sections = _sections(data, found, has_library=library is not None)
    scripts = [_asset("page.js")]
    if library:
        scripts += [library(), _asset("explore.js")]
    main = element("main", _header(data, found), *sections, _footer(data), class_="page")
    body = element("body", statuses.patterns(), main, *(element("script", Markup(text)) for text in scripts))
    return f'<!doctype html>\n<html lang="en">{_head(scripts)}{body}</html>\n'


def _sections(data: PageData, found: Sequence[Search], *, has_library: bool) -> list[Markup]:
    """The parts. Those that left something out are made again with the room that the others do not need."""
    made, cut = [], []
    for place, part in enumerate(_PARTS):
        made.append(_section(data, place + 1, part, found, has_library=has_library))
        if any(data.left_out.values()):
            cut.append(place)
    sizes = [len(section.encode()) for section in made]
    spare = LIMIT - AROUND - sum(sizes)
    if cut and spare > 0:
        wider = dataclasses.replace(data, room=1 + spare / sum(sizes[place] for place in cut))
        for place in cut:
            made[place] = _section(wider, place + 1, _PARTS[place], found, has_library=has_library)
    return made


def _section(data: PageData, number: int, part: _Part, found: Sequence[Search], *, has_library: bool) -> Markup:
    data.left_out.clear()
    make: Callable[..., list[Markup]] = part.module.part
    if part.module is landscape:
        content = make(data, found, is_interactive=has_library)
    else:
        content = make(data, found) if part.module in (traces, knobs) else make(data)
    rest = [f"{count} ({what})" for what, count in data.left_out.items() if count]
    words = f"Left out to keep the page small: {', '.join(rest)}. {data.widen}."
    parts = enumerate(_OPTION.split(words))
    whole = (element("span", word, class_="nb") if place % 2 else word for place, word in parts)
    heading = element("h2", element("span", number, class_="no"), part.module.TITLE, id=f"{part.anchor}-title")
    return element(
        "section",
        element("a", "↑ contents", href="#contents", class_="up"),
        heading,
        unbroken(element("p", part.how, class_="how")),
        element("p", *whole, class_="left-out") if rest else None,
        *content,
        id=part.anchor,
        aria_labelledby=f"{part.anchor}-title",
    )


def _head(scripts: Sequence[str]) -> Markup:
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    # Nothing is fetched: no address is allowed, and only the scripts of this page run.
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="referrer", content="no-referrer"),
        element("title", "attn-tune report"),
        element("style", Markup(_asset("page.css"))),
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (importlib.resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _header(data: PageData, found: Sequence[Search]) -> Markup:
    anchors = [element("li", element("a", part.short, href=f"#{part.anchor}")) for part in _PARTS]
    return element(
        "header",
        element("h1", "What the sweeps found"),
        element("p", _when(data), class_="sub"),
        element("p", conditions.in_words(data.software), class_="sub"),
        element(
            "ul", *(element("li", element("b", n), element("span", w)) for n, w in _facts(data, found)), class_="facts"
        ),
        element("nav", element("ol", *anchors), id="contents", aria_label="parts of this page"),
        _filters(data),
    )


def _facts(data: PageData, found: Sequence[Search]) -> list[tuple[Any, str]]:
    trials, rules = data.trials, data.winners["rule"]
    tried = how_many(trials["status"].isin([str(s) for s in Status if s.was_tried]))
    refused = how_many(trials["status"].isin([str(s) for s in Status if s.is_refused]))
    failed = how_many(trials["status"].isin([str(s) for s in Status if s.is_failure]))
    facts = [
        _fact(len(data.signatures), "problem"),
        _fact(len(data.devices), "device"),
        _fact(len(trials), "trial"),
        (tried, "tried"),
        (failed, "of them failed"),
        (refused, "refused"),
        _fact(len(found), "search", "es"),
        _fact(how_many(rules == Rule.WINNER), "win"),
        _fact(how_many(rules == Rule.TIE), "tie"),
    ]
    disturbed = len(noise.disturbances(data.finals))
    facts += [_fact(disturbed, "disturbed final")] if disturbed else []
    predicted = how_many(trials["status"] == Status.PREDICTED)
    return facts + ([(predicted, "predicted")] if predicted else [])


def _fact(count: int, noun: str, plural: str = "s") -> tuple[int, str]:
    return count, noun if count == 1 else noun + plural


def _when(data: PageData) -> str:
    days = sorted({str(day) for day in data.trials["started"].dt.date.dropna()})
    span = "" if not days else f", {days[0]}" if days[0] == days[-1] else f", {days[0]} to {days[-1]}"
    return f"{', '.join(data.ops) or 'no op'} on {', '.join(data.devices) or 'no device'}{span}"


def _filters(data: PageData) -> Markup:
    def select(name: str, words: str, names: Sequence[str]) -> Markup:
        options = [element("option", "all", value=""), *(element("option", n, value=i) for i, n in enumerate(names))]
        return element("label", words, " ", element("select", *options, name_=name))

    return element(
        "form",
        select("op", "op", data.ops),
        select("device", "device", data.devices),
        element("label", "point ", element("input", type="search", name_="point", placeholder="words of its name")),
        element("button", "all", type="reset"),
        element("output", aria_live="polite"),
        class_="filters",
        hidden=True,
        aria_label="show a part of the problems",
    )


def _footer(data: PageData) -> Markup:
    version = _version()
    words = (
        f"Made by attn-tune {version} from one lab database. This page asks for nothing: it holds all that it shows."
    )
    return element("footer", joined([element("p", words)]))


def _version() -> str:
    try:
        return importlib.metadata.version("attn-tune")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
