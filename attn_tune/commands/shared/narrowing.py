"""Filters of decisions and of rows of the lab database."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attn_tune.schema import Decision, Device, Trial

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True)
class Narrowing:
    """The filters that options set; None narrows nothing.

    Attributes:
      problems: names of the problems by signature text.
      kernels: ids of kernels.
      directions: names of directions.
      device: the device, any slice of it, or the family.
    """

    problems: Mapping[str, str] | None
    kernels: Collection[str] | None
    directions: Collection[str] | None
    device: Device | None

    def fits(self, one: Decision | Trial) -> bool:
        """Whether a decision or a trial is asked for."""
        return (
            (self.directions is None or one.direction in self.directions)
            and (self.problems is None or one.signature.text in self.problems)
            and (self.kernels is None or one.kernel in self.kernels)
            and (self.device is None or self.device.variant in (one.device.variant, one.device.family))
        )

    def decisions(self, found: Iterable[Decision]) -> list[Decision]:
        """The decisions asked for."""
        return list(filter(self.fits, found))

    def rows(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """The rows asked for, of trials or of imported packs."""
        keep = frame["direction"].notna()
        for column, wanted in (
            ("direction", self.directions),
            ("signature", self.problems),
            ("kernel", self.kernels),
        ):
            if wanted is not None:
                keep &= frame[column].isin(list(wanted))
        if self.device is not None:
            named = self.device.variant
            # A slice of a GPU follows its variant's name.
            slices = [d for d in frame["device"].unique() if str(d).partition("/")[0] == named]
            keep &= (frame["family"] == named) | frame["device"].isin(slices)
        return frame.loc[keep]
