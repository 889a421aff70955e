"""The table of rows that two packs, or a pack and a database, decide."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from attn_tune.commands.shared import output, selection

if TYPE_CHECKING:
    from attn_tune.db import Resolution

POLICIES = "For answers that differ: error, keep, replace, fastest-verified, or prefer=NAME: that of the pack NAME."


def show_outcomes(outcomes: "Sequence[Resolution]") -> None:
    """Print the outcome of each row, if there is any."""
    import pandas as pd

    if outcomes:
        names = selection.point_names()
        rows = [{"point": names.get(one.signature, one.signature), **asdict(one)} for one in outcomes]
        output.emit_frame(pd.DataFrame(rows).drop(columns=["signature", "stored", "incoming"]))
