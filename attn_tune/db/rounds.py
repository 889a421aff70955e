"""What a device went through during a round of finals, to a row and back."""

import sqlite3

from attn_tune.schema.conditions import Conditions

ADD_ROUND = """
INSERT OR IGNORE INTO round (round_id, sm_clock_mhz_low, sm_clock_mhz_high, memory_clock_mhz_low, memory_clock_mhz_high,
    temperature_c_low, temperature_c_high, power_w_low, power_w_high, throttle, repeats)
VALUES (:round_id, :sm_clock_mhz_low, :sm_clock_mhz_high, :memory_clock_mhz_low, :memory_clock_mhz_high,
    :temperature_c_low, :temperature_c_high, :power_w_low, :power_w_high, :throttle, :repeats)
"""
GET_ROUND = "SELECT * FROM round WHERE round_id = ?"

_SPANS = ("sm_clock_mhz", "memory_clock_mhz", "temperature_c", "power_w")


def to_row(round_id: str, conditions: Conditions) -> dict[str, str | int | None]:
    """The columns of ``round``, but for its id."""
    row: dict[str, str | int | None] = {
        "round_id": round_id,
        "throttle": " ".join(conditions.throttle),
        "repeats": conditions.repeats,
    }
    for name in _SPANS:
        low, high = getattr(conditions, name) or (None, None)
        row |= {f"{name}_low": low, f"{name}_high": high}
    return row


def from_row(row: sqlite3.Row) -> Conditions:
    """The conditions of a row."""
    spans = {name: (row[f"{name}_low"], row[f"{name}_high"]) for name in _SPANS}
    known = {name: span for name, span in spans.items() if None not in span}
    return Conditions(**known, throttle=tuple(row["throttle"].split()), repeats=row["repeats"])
