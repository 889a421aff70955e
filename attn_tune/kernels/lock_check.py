"""Would a job here replay a lockfile exactly? Each answer is asked for as the job would, and beside it what the lookup
would answer without the lockfile."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from attn_tune.kernels.ask import Ask
from attn_tune.kernels.locked import locked_choice
from attn_tune.kernels.registry import get_op
from attn_tune.kernels.resolution import resolve_question
from attn_tune.runtime.devices import current_device, device_from_kind
from attn_tune.runtime.environments import current_environment
from attn_tune.runtime.lockfile import Entry, Lockfile, device_name
from attn_tune.runtime.overlay import View
from attn_tune.runtime.quarantine import Quarantine
from attn_tune.schema.config import config_to_json
from attn_tune.schema.device import Device
from attn_tune.schema.errors import AttnTuneError


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """One answer of a lockfile.

    Attributes:
      problem: why a job here would stop at it, ``""`` if it would not.
      now: what the lookup answers without the lockfile, ``""`` if it is the same.
      advice: a pack's quarantine list that speaks against it. A job with a lockfile reads no pack, and runs it.
    """

    entry: Entry
    problem: str = ""
    now: str = ""
    advice: str = ""


def check_lockfile(lockfile: Lockfile, view: View) -> Iterator[Checked]:
    """Asks for every answer on its own device, with the quarantine lists in files in force. ``view`` is what the
    lookup sees without the lockfile."""
    for entry in lockfile.entries.values():
        try:
            ask = _ask(entry, view.snapshot.quarantine)
            locked_choice(ask, lockfile)
        except AttnTuneError as error:
            yield Checked(entry=entry, problem=str(error))
            continue
        yield Checked(entry=entry, now=_now(entry, view), advice=_advice(entry, view))


def environment_changes(lockfile: Lockfile) -> dict[str, tuple[str, str]]:
    """(when it was frozen, here) of each version that differs. It changes no answer; it may change what they cost."""
    here = dataclasses.asdict(current_environment())
    return {
        name: (lockfile.environment.get(name, ""), here[name])
        for name in sorted(here)
        # The source of each kernel is in its entries, and compared there.
        if name != "source_hash" and lockfile.environment.get(name, "") != here[name]
    }


def _ask(entry: Entry, quarantine: Quarantine) -> Ask:
    return Ask(
        get_op(entry.op),
        entry.direction,
        entry.signature,
        _device(entry.device),
        entry.asked or None,
        quarantine,
    )


def _device(name: str) -> Device:
    """This machine's device if it has that name in lockfiles, else one as published.

    Raises:
      UsageError: the name is of no known device.
    """
    here = current_device()
    if device_name(here) == name:
        return here
    _, _, *variant = name.split("/")
    return device_from_kind("/".join(variant))


def _now(entry: Entry, view: View) -> str:
    try:
        choice = resolve_question(_ask(entry, view.quarantine), view).choice
    except AttnTuneError as error:
        return str(error)
    if choice is None:
        return "nothing"
    answer = choice.answer
    same = (answer.kernel, config_to_json(answer.config or {})) == (
        entry.kernel,
        config_to_json(entry.config),
    )
    return "" if same else str(answer)


def _advice(entry: Entry, view: View) -> str:
    ask = _ask(entry, view.quarantine)
    return ask.config_of(entry.kernel, entry.config)[1] or ""
