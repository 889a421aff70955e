"""Use a config, or never use configs. A condition that is left out matches everything.

It takes the place of an entry for the same. Where a config to use cannot run, or is forbidden, packs answer. What
is forbidden is refused from every source, explicit configs too, and no row with it is exported.

Example: attn-tune override add use cudnn --point llama3-8b/4x4k --reason "A/B test"

Example: attn-tune override add never triton_fused -d bwd -c num_stages=3 --device sm_90 --reason "wrong output"
"""

from collections.abc import Sequence
from json import loads
from typing import Any

from attn_tune.commands.override.entries import File, Kind, change_file, line
from attn_tune.commands.shared import options, output, selection
from attn_tune.schema import UsageError


def command(
    kind: Kind = options.argument("use|never", "use: answer with this config. never: forbid it."),
    kernel: str = options.argument("KERNEL", "OP/NAME or NAME; with never also an op, for all its kernels."),
    config: list[str] | None = options.option(
        None,
        "--config -c",
        "KNOB=VALUE",
        "use: every knob without a default. never: the knobs that must agree. PART.KNOB=VALUE in a part, or a config "
        "as JSON. Repeatable.",
    ),
    direction: str | None = options.option(
        None, "--direction -d", "DIRECTION", "The direction. Default: use: the op's first one, never: all."
    ),
    point: str | None = options.option(None, "--point", "POINT", "Only this problem: a grid point or a signature."),
    grid: options.PointGrids = None,
    workload: options.Workload = None,
    signature: list[str] | None = options.option(
        None, "--signature -s", "FIELD=VALUE", "Only problems with this field. Repeatable."
    ),
    device: str | None = options.option(None, "--device", "DEVICE", "Only this device: a variant or a family."),
    reason: str = options.option("", "--reason", "TEXT", "Why; never needs it, and lookups say it."),
    file: File = None,
    json: options.Json = False,
) -> None:
    from attn_tune.kernels.registry import find_kernel
    from attn_tune.runtime.overrides.entries import make_entry

    if (grid or workload) and not point:
        raise UsageError("--grid and --workload say which --point it is; give --point too")
    if point and signature:
        raise UsageError("--point and --signature both name problems; give one of them")
    never = kind is Kind.NEVER
    asked = selection.signature(point, grid, workload).signature if point else None
    # A name that kernels of several ops have is that of the point's op.
    if asked and "/" not in kernel and find_kernel(f"{asked.op}/{kernel}"):
        kernel = f"{asked.op}/{kernel}"
    made = make_entry(
        kernel,
        never=never,
        config=knobs_of(config or ()),
        direction=direction or "",
        device=device or "",
        signature=asked.text if asked else signature or "",
        reason=reason,
    )
    path, after = change_file(file, lambda old: (*(e for e in old if e.key != made.key), made))
    if json:
        output.emit_json(path=path, id=made.id, entries=len(after))
    else:
        output.say(f"{path}: {line(made)}")


def knobs_of(words: Sequence[str]) -> dict[str, Any]:
    """The config of ``KNOB=VALUE`` words (``PART.KNOB=VALUE`` for a knob of a part), or of one JSON object.

    Raises:
      UsageError: it is neither.
    """
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return loads(words[0])
        except ValueError as error:
            raise UsageError(f"config {words[0]!r} is not JSON: {error}") from None
    found: dict[str, Any] = {}
    for word in words:
        path, equals, text = word.partition("=")
        *parts, name = path.split(".")
        if not equals or not name or len(parts) > 1:
            raise UsageError(f"knob {word!r} must be KNOB=VALUE, or PART.KNOB=VALUE")
        inside = found.setdefault(parts[0], {}) if parts else found
        if not isinstance(inside, dict) or name in inside:
            raise UsageError(f"knob {path!r} is given twice")
        try:
            inside[name] = loads(text)
        except ValueError:
            inside[name] = text
    return found
