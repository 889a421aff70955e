"""Winners of other cases from the active packs, as hints for a search that has nothing better."""

from collections.abc import Iterator, Mapping

from attn_tune.ops.contract import Op
from attn_tune.packs.reader import Pack
from attn_tune.runtime.active.layers import current_view
from attn_tune.schema.config import config_digest
from attn_tune.schema.device import Device
from attn_tune.schema.errors import IntegrityError, UsageError
from attn_tune.schema.signature import Signature
from attn_tune.schema.trial import WHOLE
from attn_tune.tuner.plan.strategies.space import PastCase


def cases_in_packs(op: Op, kernel: str, direction: str, part: str, device: Device) -> tuple[PastCase, ...]:
    """One case a problem, of ``device`` or another of its family: what the packs' first row of it says is best.

    ``kernel`` is ``"op/name"``. Packs that cannot be read, and rows of another contract, say nothing: these are hints.
    """
    found: dict[tuple[Signature, bool], PastCase] = {}
    for source in current_view().sources:
        if source.pack is None:
            continue
        for case in _cases(source.pack, op, kernel, direction, part, device):
            found.setdefault((case.signature, case.same_device), case)
    return tuple(found.values())


def _cases(pack: Pack, op: Op, kernel: str, direction: str, part: str, device: Device) -> Iterator[PastCase]:
    try:
        rows = pack.rows
    except IntegrityError:
        return
    for row in rows:
        theirs = pack.devices[row.device]
        if (f"{row.op}/{row.kernel}", row.direction) != (kernel, direction):
            continue
        config = row.config if part == WHOLE else row.config.get(part)
        if theirs.family != device.family or not isinstance(config, Mapping):
            continue
        try:
            signature = op.parse_signature(row.signature)
        except UsageError:
            continue
        # A predicted row has no time; one time alone says no more than that it is the best.
        time = float(row.median_ns or 1)
        yield PastCase(
            signature=signature,
            times={config_digest(config): time},
            same_device=theirs.variant == device.variant,
        )
