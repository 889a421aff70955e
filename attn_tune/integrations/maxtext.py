"""MaxText's flags of splash attention, from rows of packs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attn_tune.integrations.conversion import Conversion, LeftOut
from attn_tune.kernels.flash_attention._splash.maxtext import BACKWARD, FORWARD, Flags, flags
from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import Row
from attn_tune.schema.config import config_from_dict
from attn_tune.schema.decision import state_words
from attn_tune.schema.device import Device
from attn_tune.schema.errors import UsageError
from attn_tune.schema.words import counted
from attn_tune.tuner.plan.grid import preset_points

KERNELS = tuple(dict.fromkeys((*FORWARD, *BACKWARD)))


def convert(pack: Pack, device: Device, rows: Sequence[Row]) -> Conversion:
    """A YAML document for each problem, of the best forward and the best backward that MaxText can run."""
    problems: dict[str, dict[str, Row]] = {}
    configs: dict[tuple[str, ...], Any] = {}
    left_out: list[LeftOut] = []
    for row in rows:
        chosen = problems.setdefault(row.signature, {})
        if row.direction in chosen:
            left_out.append(LeftOut(row=row, reason="another row of the problem is better"))
            continue
        try:
            configs[row.key] = _config(row)
        except UsageError as error:
            left_out.append(LeftOut(row=row, reason=str(error)))
            continue
        chosen[row.direction] = row
    names = {point.signature.text: f" ({point.name})" for point in preset_points()}
    documents, remarks = [], []
    for signature, chosen in sorted(problems.items()):
        if chosen:
            made = flags(**{name: configs[chosen[d].key] for d, name in _DIRECTIONS.items() if d in chosen})
            documents.append("\n".join(_lines(signature + names.get(signature, ""), chosen, made)))
            remarks += [f"{signature}: {remark}" for remark in made.remarks]
    head = [
        f"# Flags of MaxText for {device}, from the pack {pack} ({pack.digest}).",
        "# A document for each problem: paste that of your run, lengths and heads as one device has them.",
    ]
    return Conversion(
        text="\n".join([*head, *documents]) + "\n",
        device=device,
        written=tuple(row for chosen in problems.values() for row in chosen.values()),
        left_out=tuple(left_out),
        remarks=tuple(remarks),
    )


_DIRECTIONS = {"fwd": "forward", "bwd": "backward"}


def _config(row: Row) -> Any:
    from attn_tune.kernels.registry import get_kernel

    return config_from_dict(get_kernel(f"{row.op}/{row.kernel}").searches[row.direction].config, dict(row.config))


def _lines(title: str, chosen: Mapping[str, Row], made: Flags) -> Iterator[str]:
    yield "---"
    yield f"# {title}"
    for direction in _DIRECTIONS:
        row = chosen.get(direction)
        if row is None:
            yield f"# {direction}: no row; MaxText's own values stay"
            continue
        time = "not timed" if row.median_ns is None else f"{row.median_ns / 1000:.1f} us"
        proof = "" if row.features is None else f", {counted(row.features, 'feature problem')} passed"
        yield f"# {direction}: {row.kernel}, {state_words(row.state)}, {time}{proof}"
    yield from (f"# {remark}" for remark in made.remarks)
    yield from (f"{name}: {_yaml(value)}" for name, value in made.values.items())
    yield "# as arguments: " + " ".join(f"{name}={value}" for name, value in made.values.items())


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
