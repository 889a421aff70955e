"""Show the devices, kernels, environments, gate and signatures of a pack.

Also the quarantine list that it carries.

Example: attn-tune pack inspect h200.atpack --rows
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from json import loads
from typing import TYPE_CHECKING, Any

from attn_tune.commands.shared import options, output, selection
from attn_tune.schema.decision import Proof, state_words
from attn_tune.schema.words import counted

if TYPE_CHECKING:
    from attn_tune.packs.reader import Pack
    from attn_tune.packs.rows import Row


def command(
    path: options.PackPath,
    rows: bool = options.flag("--rows", "Also list every row."),
    json: options.Json = False,
) -> None:
    from attn_tune.packs.manifest import merged_parts
    from attn_tune.packs.reader import read_pack

    pack = read_pack(path, signed=False)
    data = _describe(pack)
    if rows:
        data["rows"] = [dataclasses.asdict(row) | {"config": dict(row.config)} for row in pack.rows]
    if json:
        output.emit_json(**data)
        return
    output.say(f"{pack.name} {pack.version}: {counted(len(pack.rows), 'row')}, by {pack.tool}")
    if pack.note:
        output.say(f"  note {pack.note}")
    unsaid = data["proven_features_unknown"]
    output.say(
        f"  {data['proven']} of {counted(len(pack.rows), 'row')} proven"
        + (f", {unsaid} of them without the number of feature problems that they passed" if unsaid else "")
    )
    for name in ("digest", "decision_digest"):
        output.say(f"  {name.replace('_', ' ')} {data[name]}")
    for device in data["devices"]:
        output.say(f"  device {device['name']} ({device['digest']}): {counted(device['rows'], 'row')}")
    for kernel in data["kernels"]:
        states = ", ".join(f"{n} {state_words(state)}" for state, n in kernel["states"].items())
        proof = _proof_text(kernel)
        output.say(f"  {kernel['kernel']} {kernel['direction']}, contract {kernel['contract']}: {states}{proof}")
    for env in data["environments"]:
        known = " ".join(f"{k}={v}" for k, v in env.items() if v and k != "rows")
        output.say(f"  environment {known}: {counted(env['rows'], 'row')}")
    output.say(f"  gate {_gate_text(pack.gate)}")
    if objections := _objections(pack.gate):
        output.say(f"    {objections}")
    for part in merged_parts(pack.gate):
        _say_part(part)
    for entry in pack.quarantine.entries:
        output.say(f"  quarantine {entry.condition}: {entry.reason}")
    for key in data["signers"]:
        output.say(f"  {_SIGNED[data['signatures'][key]].format(key)}")
    if rows:
        from attn_tune.reports.pack_frames import pack_rows

        output.emit_frame(pack_rows(pack, selection.point_names()))


_SIGNED = {
    True: "signed by {}",
    False: "a WRONG signature of {}: it is of another pack, or forged",
    None: "a signature of {}, not checked: that takes the package 'cryptography'",
}


def _describe(pack: "Pack") -> dict[str, Any]:
    from attn_tune.packs.signing import signatures_fit

    by_device = Counter(row.device for row in pack.rows)
    by_env = Counter(row.env for row in pack.rows)
    by_kernel: dict[tuple[str, str], list[Row]] = {}
    for row in pack.rows:
        by_kernel.setdefault((f"{row.op}/{row.kernel}", row.direction), []).append(row)
    return {
        "name": pack.name,
        "version": pack.version,
        "tool": pack.tool,
        "note": pack.note,
        "digest": pack.digest,
        "decision_digest": pack.decision_digest,
        "proven": sum(row.is_proven for row in pack.rows),
        "proven_features_unknown": sum(row.proof is Proof.UNCOUNTED for row in pack.rows),
        "devices": [
            {"name": str(d), "digest": digest, "rows": by_device[digest], **d.identity}
            for digest, d in pack.devices.items()
        ],
        "environments": [{"rows": by_env[digest], **dataclasses.asdict(e)} for digest, e in pack.environments.items()],
        "kernels": [
            {
                "kernel": k,
                "direction": d,
                "contract": pack.contracts[k],
                "states": dict(sorted(Counter(row.state for row in rows).items())),
                "not_repeatable": sum(row.repeatable is False for row in rows),
                "unproven": sum(row.proof is Proof.UNPROVEN for row in rows),
                "features": min(known, default=None),
                "features_known": len(known),
            }
            for (k, d), rows in sorted(by_kernel.items())
            for known in [[row.features for row in rows if row.features is not None]]
        ],
        "gate": dict(pack.gate),
        "quarantine": [loads(entry.line) for entry in pack.quarantine.entries],
        "signers": [signer.key for signer in pack.signers],
        "signatures": signatures_fit(pack.sums, pack.signers),
    }


def _proof_text(kernel: Mapping[str, Any]) -> str:
    differ, unproven = kernel["not_repeatable"], kernel["unproven"]
    text = f"; {differ} whose bits differ from run to run" if differ else ""
    if unproven:
        return f"{text}; {unproven} unproven: their configs ran no feature problem"
    if not kernel["features_known"]:
        return text
    rows = counted(kernel["features_known"], "row")
    return f"{text}; {rows} with at least {counted(kernel['features'], 'feature problem')} passed"


def _say_part(part: Mapping[str, Any]) -> None:
    """Lines about a pack that this one was merged from: its note, and its gate where that was not passed."""
    name, gate = f"{part.get('name')} {part.get('version')}", part["gate"]
    if "note" in part:
        output.say(f"    {name}: note {part['note']}")
    if gate and gate.get("passed") is not True:
        output.say(f"    {name}: gate {_gate_text(gate)}")
        if objections := _objections(gate):
            output.say(f"      {objections}")


def _objections(gate: Mapping[str, Any]) -> str:
    """The objections to the rows of a pack that was written without the gate: their number and their reasons."""
    count, reasons = gate.get("objections"), gate.get("reasons")
    if not (isinstance(count, int) and count and isinstance(reasons, list) and reasons):
        return ""
    return f"{counted(count, 'objection')}: {'; '.join(map(str, reasons))}"


def _gate_text(gate: Mapping[str, Any]) -> str:
    if not gate:
        return "unknown: written without one"
    if gate.get("passed") is True:
        accepted = ", ".join(f"{count} {doubt}" for doubt, count in gate.get("accepted", {}).items())
        return f"passed; let through on purpose: {accepted}" if accepted else "passed"
    verdict = "not asked, though it had no objection" if gate.get("objections") == 0 else "NOT passed"
    return f"{verdict}: {gate.get('reason', 'a pack it was merged from did not')}"
