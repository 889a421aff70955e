"""Properties of every answer, over random packs, devices, questions and overrides."""

import dataclasses
import math

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from attn_tune.packs.override_files import parse_overrides
from attn_tune.packs.reader import pack_from_files
from attn_tune.runtime.active import settings as runtime_settings
from attn_tune.runtime.active.layers import use_pack
from attn_tune.runtime.lookup.answer import DeviceLevel, Rung
from attn_tune.runtime.lookup.dispatch import lookup
from attn_tune.runtime.overrides.entries import use_config
from attn_tune.schema import Signature
from tests.runtime.lookup import toy_op
from tests.runtime.lookup.toy_op import HERE
from tests.runtime.packbuilder import FIELDS, H200, OP, pack_files, row, sig

CAPPED = dataclasses.replace(H200, power_watts=500)
PCIE = dataclasses.replace(H200, variant="nvidia-h100-pcie", units=114, shared_bytes=1000)
SLICE = dataclasses.replace(H200, partition="mig-1g.18gb", units=16)
B200 = dataclasses.replace(H200, family="sm_100", variant="nvidia-b200")
DEVICES = (H200, CAPPED, PCIE, SLICE, B200)
STALE = dataclasses.replace(HERE, source_hash="b2:old")

lengths = st.one_of(st.sampled_from([64, 127, 128, 129, 255, 256, 512]), st.integers(1, 2000))
signatures = st.builds(
    lambda t, b, h, left, pages: sig(
        t, b, h, **({} if left is None else {"left": left}), **({"pages": pages} if pages else {})
    ),
    lengths,
    st.sampled_from([1, 2, 3, 4, 8]),
    st.sampled_from([64, 128]),
    st.sampled_from([None, None, 0, 100, 128, 300]),
    st.sampled_from([0, 0, 4, 8]),
)
blocks = st.sampled_from([1, 2, 8, 16, 64, 600, 900])
rows = st.builds(
    lambda s, block, kernel, device, env: row(s, block, kernel=kernel, device=device, env=env),
    signatures,
    blocks,
    st.sampled_from(["alpha", "beta"]),
    st.sampled_from(DEVICES),
    st.sampled_from([HERE, HERE, STALE]),
)
entries = st.fixed_dictionaries(
    {"reason": st.just("bad")},
    optional={
        "kernel": st.sampled_from(["alpha", "beta"]),
        "config": st.builds(lambda b: {"block": b}, blocks),
        "device": st.sampled_from(["sm_90", "nvidia-h200", "sm_100"]),
        "signature": st.builds(lambda h: {"h": h}, st.sampled_from([64, 128])),
    },
)


def unique(items):
    """At most one row a key and rank, as a pack must have it."""
    seen = {}
    for item in items:
        key = (item["device"].digest, item["signature"])
        ranks = seen.setdefault(key, set())
        if item["kernel"] not in ranks:
            yield {**item, "rank": len(ranks)}
            ranks.add(item["kernel"])


def values(text):
    found = Signature.parse(text, FIELDS).values
    return {f.name: found.get(f.name, f.default) for f in FIELDS}


def infeasible(problem, device, config):
    """Blocks grow with the length here, and the device has so much room."""
    room = device.shared_bytes // 400
    return f"block {config.block} does not fit" if config.block > room else None


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    """The toy kernels with limits that depend on the device."""
    for spec in toy_op.KERNELS:
        for search in spec.searches.values():
            monkeypatch.setitem(search.__dict__, "infeasible", infeasible)


def within_bound(asked, tuned):
    for field in FIELDS:
        a, b = asked[field.name], tuned[field.name]
        if a == b:
            continue
        if field.kind == "scalable" and a and b and max(a, b) <= 2 * min(a, b):
            continue
        if field.kind == "resource" and a <= b:
            continue
        return False
    return True


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    items=st.lists(rows, max_size=14),
    asked=signatures,
    device=st.sampled_from(DEVICES),
    bad=st.lists(entries, max_size=2),
    pinned=st.none() | blocks,
    data=st.data(),
)
def test_no_answer_is_infeasible_forbidden_or_out_of_bound(items, asked, device, bad, pinned, data):
    items = list(unique(items))
    if items and data.draw(st.booleans()):
        asked = data.draw(st.sampled_from(items))["signature"]
    forbidden = parse_overrides({"format": 1, "never": bad}, "test", "test")
    runtime_settings._current = runtime_settings.Settings(overrides=(forbidden,))
    wanted = values(asked)

    def is_bad(kernel, config):
        return any(
            e.get("kernel", kernel) == kernel
            and e.get("config", config) == config
            and e.get("device", device.family) in (device.family, device.variant)
            and all(wanted[k] == v for k, v in e.get("signature", {}).items())
            for e in bad
        )

    def may_run(kernel, config):
        return config["block"] <= device.shared_bytes // 400 and not is_bad(kernel, config)

    untuned = (("alpha", {"block": 8}), ("beta", {"block": 4}))
    heuristics = [kernel for kernel, config in untuned if may_run(kernel, config)]
    with use_pack(pack_from_files(pack_files(items))):
        if pinned is None:
            answer = ask(asked, device)
        else:
            with use_config(OP, "alpha", {"block": pinned}):
                answer = ask(asked, device)
    best = min(
        (
            standing(wanted, asked, item, device)
            for item in items
            if item["device"].family == device.family
            and within_bound(wanted, values(item["signature"]))
            and may_run(item["kernel"], item["config"])
            # Of another problem only the winner answers.
            and (item["rank"] == 0 or item["signature"] == asked)
        ),
        default=None,
    )
    if answer is None:
        assert not heuristics
        assert best is None
        assert pinned is None or not may_run("alpha", {"block": pinned})
        return
    if answer.rung is Rung.OVERRIDE:
        assert may_run("alpha", {"block": pinned})
        return
    assert pinned is None or not may_run("alpha", {"block": pinned})
    if answer.is_miss:
        assert answer.kernel in heuristics
    else:
        assert may_run(answer.kernel, answer.config)
        assert within_bound(wanted, values(answer.row_signature))
        level, source = level_of(answer, items, device)
        assert answer.level is level
        assert source["config"] == answer.config
    # No better row was passed over: the level, rung and distance are those of the best by brute force.
    assert (best is None) == answer.is_miss
    if best is not None:
        levels, rungs = list(DeviceLevel), list(Rung)
        assert (levels.index(answer.level), rungs.index(answer.rung)) == best[:2]
        assert answer.distance == pytest.approx(best[2])


def ask(asked, device):
    from attn_tune.schema import UnsupportedError

    try:
        return lookup(OP, asked, device=device)
    except UnsupportedError:
        return None


def level_of(answer, items, device):
    """The best level at which the pack has the row that answered, and that row."""
    found = [
        (list(DeviceLevel).index(device_level(device, item["device"])), number)
        for number, item in enumerate(items)
        if (item["signature"], item["kernel"], item["config"]) == (answer.row_signature, answer.kernel, answer.config)
        and device_level(device, item["device"]) is not None
    ]
    level, number = min(found)
    return list(DeviceLevel)[level], items[number]


def device_level(device, stored):
    if device == stored:
        return DeviceLevel.EXACT
    if (device.variant, device.partition) == (stored.variant, stored.partition):
        return DeviceLevel.VARIANT
    return DeviceLevel.FAMILY if device.family == stored.family else None


def standing(wanted, asked, item, device):
    """(level, rung, distance) of a row that may answer."""
    tuned = values(item["signature"])
    scalable = [f.name for f in FIELDS if f.kind == "scalable"]
    powers = [tuple((v[n] - 1).bit_length() if v[n] else v[n] for n in scalable) for v in (wanted, tuned)]
    rung = Rung.EXACT if item["signature"] == asked else Rung.BUCKET if powers[0] == powers[1] else Rung.NEIGHBOUR
    away = sum(abs(math.log2(wanted[n] / tuned[n])) for n in scalable if wanted[n] != tuned[n])
    # Of rows that are equally far, one that was tuned for as much comes before one that was tuned for more.
    away += sum(2.0**-20 for f in FIELDS if f.kind == "resource" and wanted[f.name] != tuned[f.name])
    level = device_level(device, item["device"])
    return list(DeviceLevel).index(level), list(Rung).index(rung), away
