"""Rows of a pack in the format of another tool: the rows that may go out, and what became of each."""

import enum
import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attn_tune.ops.registry import find_op
from attn_tune.packs.override_entries import Asked
from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import Row
from attn_tune.runtime.overrides.active import Overrides, files_in_force
from attn_tune.schema.device import Device
from attn_tune.schema.errors import NoDataError, UsageError


class Format(enum.StrEnum):
    """The formats that rows of a pack can be written in."""

    TOKAMAX = "tokamax"
    """``AutotuningResult`` of tokamax, as JSON."""
    MAXTEXT = "maxtext"
    """Flags of MaxText, as YAML."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A row that was not written.

    Attributes:
      row: the row.
      reason: why not, as a sentence.
    """

    row: Row
    reason: str


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The rows of one device of a pack, in the format of another tool.

    Attributes:
      text: content of the file.
      device: the device of the rows.
      written: the rows that it holds.
      left_out: the other rows of the device.
      remarks: what the file does not say of rows that it holds: ``SIGNATURE: sentence``.
    """

    text: str
    device: Device
    written: tuple[Row, ...]
    left_out: tuple[LeftOut, ...]
    remarks: tuple[str, ...] = ()


def convert(pack: Pack, to: Format, device: Device | None = None) -> Conversion:
    """The rows of ``pack`` in the format ``to``.

    A format is a module of this package: ``KERNELS`` are the ids of the kernels whose configs the tool knows, and
    ``convert(pack, device, rows)`` writes rows of these, which are of one device, right, and the best of their problem
    first.

    Args:
      device: the device whose rows are written; None where only one has rows that the tool knows.

    Raises:
      NoDataError: no row can be written; the message says why.
      UsageError: several devices have such rows.
    """
    module: Any = importlib.import_module(f"attn_tune.integrations.{to}")
    known = {row.device for row in pack.rows if _id(row) in module.KERNELS}
    names = sorted({str(pack.devices[digest]) for digest in known})
    if device is not None:
        names = [name for name in names if name == str(device)]
    if not names:
        has = ", ".join(sorted({_id(row) for row in pack.rows}))
        on = f" for {device}" if device else ""
        raise NoDataError(f"{pack.where} has no row{on} of {' or '.join(module.KERNELS)}; its kernels are {has}")
    if len(names) > 1:
        raise UsageError(f"{pack.where} has such rows for {', '.join(names)}; choose one with --device")
    rows = [row for row in pack.rows if str(pack.devices[row.device]) == names[0]]
    chosen = next(d for digest, d in pack.devices.items() if str(d) == names[0] and digest in known)
    refused = list(_refused(pack, module.KERNELS, rows))
    away = {one.row.key for one in refused}
    rest = sorted((row for row in rows if row.key not in away), key=lambda row: (row.rank, row.median_ns or 0))
    made = module.convert(pack, chosen, rest)
    left_out = (*refused, *made.left_out)
    if not made.written:
        first = next((one for one in left_out if _id(one.row) in module.KERNELS), left_out[0])
        raise NoDataError(
            f"no row of {pack.where} can be written for {to}, such as {_id(first.row)} {first.row.direction} "
            f"{first.row.signature}: {first.reason}"
        )
    return Conversion(text=made.text, device=chosen, written=made.written, left_out=left_out, remarks=made.remarks)


def _id(row: Row) -> str:
    return f"{row.op}/{row.kernel}"


def _refused(pack: Pack, kernels: Sequence[str], rows: Iterable[Row]) -> Iterator[LeftOut]:
    """The rows that no tool gets."""
    overrides = Overrides([pack.quarantine, *files_in_force(os.environ)])
    for row in rows:
        if _id(row) not in kernels:
            yield LeftOut(row=row, reason=f"the tool has no kernel {_id(row)}")
        elif row.doubts:
            yield LeftOut(row=row, reason=row.doubts[0])
        elif reason := _forbidden(pack, row, overrides):
            yield LeftOut(row=row, reason=reason)


def _forbidden(pack: Pack, row: Row, overrides: Overrides) -> str:
    op = find_op(row.op)
    if op is None:
        return f"the op {row.op} is not installed here"
    try:
        values = op.parse_signature(row.signature).values
    except UsageError as error:
        return f"its signature is no problem of the op here: {error}"
    values = {field.name: field.default for field in op.fields} | values
    asked = Asked(row.op, row.direction, pack.devices[row.device], row.signature, values)
    entry = overrides.forbidding(asked, row.kernel, row.config)
    return f"its config is in quarantine: {entry.reason}" if entry else ""
