"""The looks of each kind of failure: a hatching and a short word, so that no colour is needed to tell them apart."""

from attn_tune.reports.page.markup import Markup, element
from attn_tune.schema import Status

# By status: the word in a cell, the words of a legend, and the lines of the hatching on a tile of 8 by 8.
FAILURES = {
    Status.INCORRECT: ("wrong", "incorrect", "M0 0L8 8M8 0L0 8"),
    Status.OUT_OF_RESOURCES: ("memory", "out of resources", "M-1 1L1-1M0 8L8 0M7 9L9 7"),
    Status.COMPILE_ERROR: ("compile", "compile error", "M-1 7L1 9M0 0L8 8M7-1L9 1"),
    Status.RUNTIME_ERROR: ("error", "runtime error", "M0 2H8M0 6H8"),
    Status.CRASHED: ("crash", "crashed", "M2 0V8M6 0V8M0 4H8"),
    Status.TIMED_OUT: ("time", "timed out", "M1 4h2M5 4h2M1 8h2"),
}


def hatch(status: Status) -> str:
    """The fill of what failed with ``status``."""
    return f"url(#f-{status.replace('_', '-')})"


def patterns() -> Markup:
    """The hatchings, once in a page."""
    made = [
        element(
            "pattern",
            element("path", d=lines, class_=f"hatch s-{status.replace('_', '-')}"),
            id=f"f-{status.replace('_', '-')}",
            width=8,
            height=8,
            patternUnits="userSpaceOnUse",
        )
        for status, (_, _, lines) in FAILURES.items()
    ]
    return element(
        "svg",
        element("defs", *made, element("circle", id="dot", r=2.6)),
        width=0,
        height=0,
        aria_hidden="true",
        class_="defs",
    )


def word(status: Status) -> str:
    """The word of a status in a cell."""
    return FAILURES[status][0] if status in FAILURES else str(status)


def commonest(statuses: list[Status]) -> Status:
    """The status that most have, the first by name among equals."""
    return max(sorted(set(statuses)), key=statuses.count)
