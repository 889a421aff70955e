"""Every rung, level and refusal of the ladder, on packs made by hand."""

import dataclasses
import os
import random
import subprocess
import sys

import pytest

from attn_tune.packs.reader import pack_from_files
from attn_tune.runtime.active.row_index import RowIndex
from attn_tune.runtime.lookup.answer import DeviceLevel, Rung, SourceKind
from attn_tune.runtime.lookup.ladder import RowQuestion, walk
from attn_tune.schema import Device, Grade, Signature
from tests.runtime.packbuilder import ENVIRONMENT, FIELDS, H200, OP, pack_files, row, sig

CAPPED = dataclasses.replace(H200, power_watts=500)
H100 = dataclasses.replace(H200, variant="nvidia-h100-pcie", units=114)
SLICE = dataclasses.replace(H200, partition="mig-1g.18gb", units=16)
B200 = Device(platform="cuda", family="sm_100", variant="nvidia-b200", units=148)


class Judge:
    """Grades by environment; refuses the blocks it is given."""

    def __init__(self, refused=(), environment=ENVIRONMENT, contract=1, adapted=lambda row: row):
        self.refused, self.environment, self.contract = set(refused), environment, contract
        self.adapted = adapted

    def grade(self, row, pack):
        return self.environment.grade(
            pack.environments[row.env],
            contract=self.contract,
            row_contract=pack.contracts[f"{row.op}/{row.kernel}"],
        )

    def takes_part(self, row):
        return True

    def refusal(self, row, pack):
        return "too big" if row.config["block"] in self.refused else None

    def adapt(self, row):
        return self.adapted(row)


def ask(rows, signature, *, device=H200, kernel=None, judge=None, **more):
    """One walk over packs: ``rows`` of one pack, or a list of packs' rows."""
    packs = [pack_from_files(pack_files(r, name=n)) for n, r in rows.items()]
    question = RowQuestion(
        op=OP,
        direction="fwd",
        signature=Signature.parse(signature, FIELDS),
        fields=FIELDS,
        device=device,
        kernel=kernel,
    )
    indexes = ((SourceKind.USER, RowIndex(pack, OP, "fwd", FIELDS)) for pack in packs)
    return walk(question, indexes, judge or Judge(), with_nearest=True)


def answer(rows, signature, **more):
    """(rung, level, block) of the match, or None."""
    rows = rows if isinstance(rows, dict) else {"lab": rows}
    match = ask(rows, signature, **more).match
    return match and (match.rung, match.level, match.row.config["block"])


def test_exact_beats_bucket_beats_neighbour():
    rows = [row(sig(1200), 1), row(sig(1500), 2), row(sig(1024), 3)]
    assert answer(rows, sig(1200)) == (Rung.EXACT, DeviceLevel.EXACT, 1)
    assert answer(rows[1:], sig(1200)) == (Rung.BUCKET, DeviceLevel.EXACT, 2)
    assert answer(rows[2:], sig(1200)) == (Rung.NEIGHBOUR, DeviceLevel.EXACT, 3)
    assert answer(rows[2:], sig(2049)) is None


def test_the_nearest_neighbour_wins_and_a_tie_goes_by_text():
    rows = [row(sig(600), 1), row(sig(1024), 2), row(sig(1000), 3)]
    assert answer(rows, sig(1100)) == (Rung.NEIGHBOUR, DeviceLevel.EXACT, 2)
    tied = [row(sig(2048), 1), row(sig(512), 2)]
    assert answer(tied, sig(1024)) == (Rung.NEIGHBOUR, DeviceLevel.EXACT, 1)
    assert answer(tied[::-1], sig(1024)) == (Rung.NEIGHBOUR, DeviceLevel.EXACT, 1)


@pytest.mark.parametrize(
    ("device", "level"),
    [
        (H200, DeviceLevel.EXACT),
        (CAPPED, DeviceLevel.VARIANT),
        (H100, DeviceLevel.FAMILY),
        (SLICE, DeviceLevel.FAMILY),
        (B200, None),
        (Device(platform="tpu", family="sm_90", variant="nvidia-h200"), None),
    ],
)
def test_device_levels(device, level):
    found = answer([row(sig(1024), 1)], sig(1024), device=device)
    assert found == (level and (Rung.EXACT, level, 1))


def test_evidence_does_not_identify_a_device():
    device = dataclasses.replace(H200, evidence=(("uuid", "GPU-1"),))
    assert answer([row(sig(1024), 1)], sig(1024), device=device)[1] is DeviceLevel.EXACT


def test_a_nearer_device_with_a_neighbour_beats_a_farther_one_with_the_exact_shape():
    rows = [row(sig(2048), 1), row(sig(1024), 2, device=CAPPED), row(sig(1024), 3, device=H100)]
    assert answer(rows, sig(1024)) == (Rung.NEIGHBOUR, DeviceLevel.EXACT, 1)
    assert answer(rows, sig(1024), judge=Judge(refused=[1])) == (Rung.EXACT, DeviceLevel.VARIANT, 2)
    assert answer(rows, sig(1024), judge=Judge(refused=[1, 2])) == (
        Rung.EXACT,
        DeviceLevel.FAMILY,
        3,
    )


def test_the_likest_of_several_devices_of_one_level_goes_first():
    slower = dataclasses.replace(H100, clock_mhz=1, l2_bytes=1, bandwidth_gbs=1)
    rows = [row(sig(1024), 1, device=slower), row(sig(1024), 2, device=H100)]
    assert answer(rows, sig(1024)) == (Rung.EXACT, DeviceLevel.FAMILY, 2)


def test_a_refused_row_falls_to_the_next_and_stays_on_record():
    rows = [row(sig(1200), 1), row(sig(1200), 2, kernel="beta", rank=1), row(sig(1500), 3)]
    walked = ask({"lab": rows}, sig(1200), judge=Judge(refused=[1, 2]))
    assert walked.match.row.config["block"] == 3
    assert [(r.reason, "lab" in r.subject) for r in walked.rejected] == [("too big", True)] * 2


def test_rank_decides_between_kernels_and_a_name_restricts():
    rows = [row(sig(1024), 1, rank=1), row(sig(1024), 2, kernel="beta", rank=0)]
    assert answer(rows, sig(1024))[2] == 2
    assert answer(rows, sig(1024), kernel="alpha")[2] == 1
    assert answer(rows, sig(1024), kernel="gamma") is None


def test_of_another_signature_only_the_winner_answers_unless_a_kernel_is_named():
    rows = [row(sig(1024), 1), row(sig(1024), 2, kernel="beta", rank=1), row(sig(1900), 3)]
    assert answer(rows, sig(1024), judge=Judge(refused=[1]))[2] == 2
    for t in (1000, 1100):
        assert answer(rows, sig(t), judge=Judge(refused=[1]))[2] == 3
        assert answer(rows, sig(t), kernel="beta")[2] == 2
        assert answer(rows[:2], sig(t), judge=Judge(refused=[1])) is None


def test_a_row_of_another_signature_is_adapted_before_it_is_judged():
    def doubled(stored):
        block = 2 * stored.config["block"]
        return dataclasses.replace(stored, config={"block": block}) if block < 8 else "too long"

    rows = [row(sig(1024), 1), row(sig(1500), 2), row(sig(2048), 5)]
    exact = ask({"lab": rows}, sig(1024), judge=Judge(adapted=doubled)).match
    assert (exact.row.config, exact.adapted_from) == ({"block": 1}, None)
    near = ask({"lab": rows}, sig(1100), judge=Judge(refused=[2], adapted=doubled)).match
    assert (near.row.config, near.adapted_from) == ({"block": 4}, {"block": 2})
    assert near.row.signature == sig(1500)
    refused = ask({"lab": rows}, sig(1100), judge=Judge(refused=[4], adapted=doubled))
    assert [r.reason for r in refused.rejected] == ["too big", "too long"]
    assert refused.match.row.config == {"block": 2}


def test_grades():
    stale = dataclasses.replace(ENVIRONMENT, source_hash="b2:bb")
    portable = dataclasses.replace(ENVIRONMENT, compiler="c 2")
    for environment, grade in (
        (ENVIRONMENT, Grade.VERIFIED),
        (portable, Grade.PORTABLE),
        (stale, Grade.STALE),
    ):
        walked = ask({"lab": [row(sig(1024), 1, env=environment)]}, sig(1024))
        assert walked.match.grade is grade
    foreign = ask({"lab": [row(sig(1024), 1)]}, sig(1024), judge=Judge(contract=2))
    assert foreign.match is None
    assert "contract" in foreign.rejected[0].reason
    # Within a rung at one distance a fresh row goes before a stale one, a measured one before a prediction.
    rows = [row(sig(2048), 1, env=stale), row(sig(512), 2)]
    assert answer(rows, sig(1024))[2] == 2
    rows = [row(sig(2048), 1, state="predicted"), row(sig(512), 2)]
    assert answer(rows, sig(1024))[2] == 2


def test_sources_in_order():
    rows = {"first": [row(sig(2048), 1)], "second": [row(sig(1024), 2)]}
    walked = ask(rows, sig(1024))
    assert (walked.match.pack.name, walked.match.rung) == ("first", Rung.NEIGHBOUR)
    assert ask(rows, sig(1024), judge=Judge(refused=[1])).match.pack.name == "second"


def test_rows_that_this_version_cannot_read_never_match():
    rows = [row("toy/v1 b=1 t=1024 h=64 dtype=bfloat16 colour=green", 1)]
    walked = ask({"lab": rows}, sig(1024))
    assert walked.match is None
    assert "colour" in walked.steps[0].note


def test_a_miss_says_what_came_nearest():
    rows = [row(sig(t), 1) for t in (16384, 4096, 8192)] + [row(sig(1024, h=128, left=5), 2)]
    walked = ask({"lab": rows}, sig(1024))
    assert walked.match is None
    assert "t 1024 vs 4096" in walked.steps[-1].note


def test_a_row_in_another_order_does_not_answer_and_the_note_says_so():
    fields = tuple(dataclasses.replace(f, order_with="t") if f.name == "left" else f for f in FIELDS)
    pack = pack_from_files(pack_files([row(sig(1024, left=1024), 1)]))

    def asked(t, left):
        signature = Signature.parse(sig(t, left=left), fields)
        question = RowQuestion(op=OP, direction="fwd", signature=signature, fields=fields, device=H200)
        index = RowIndex(pack, OP, "fwd", fields)
        return walk(question, iter([(SourceKind.USER, index)]), Judge(), with_nearest=True)

    assert asked(900, 900).match.rung is Rung.BUCKET
    refused = asked(900, 1024)
    assert refused.match is None
    assert refused.steps[-1].note == ("nearest row differs in t 900 vs 1024; the order of t and left must agree")


def test_the_order_of_rows_in_a_pack_does_not_matter():
    rng = random.Random(3)
    rows = [
        row(sig(t, b=b), 16 * i + j, kernel=kernel, rank=j, device=device)
        for i, (t, b, device) in enumerate(
            (t, b, d) for t in (700, 900, 1024, 1500) for b in (1, 2) for d in (H200, CAPPED, H100)
        )
        for j, kernel in enumerate(("alpha", "beta"))
    ]
    questions = [
        (sig(rng.randrange(300, 3000), b=rng.choice((1, 2, 3))), rng.choice((H200, CAPPED, H100))) for _ in range(25)
    ]
    expected = [answer(rows, s, device=d) for s, d in questions]
    assert any(expected)
    for _ in range(2):
        rng.shuffle(rows)
        assert [answer(rows, s, device=d) for s, d in questions] == expected


def test_the_neighbour_is_the_nearest_by_brute_force():
    rng = random.Random(5)
    lengths = rng.sample(range(100, 5000), 40)
    rows = [row(sig(t), t) for t in lengths]
    pack = {"lab": rows}
    for _ in range(40):
        asked = rng.randrange(100, 5000)
        found = ask(pack, sig(asked)).match
        within = [t for t in lengths if max(t / asked, asked / t) <= 2]
        same = [t for t in within if (t - 1).bit_length() == (asked - 1).bit_length()]
        pool = [asked] if asked in lengths else same or within
        if not pool:
            assert found is None
        else:
            assert found.row.config["block"] == min(pool, key=lambda t: max(t / asked, asked / t))


PROCESS = """
from tests.runtime.test_ladder import ask, H200, CAPPED, H100, row, sig
rows = [
    row(sig(t, b=b), t + b, kernel=kernel, rank=rank, device=device)
    for t in (700, 900, 1024, 1500)
    for b in (1, 2)
    for device in (CAPPED, H200, H100)
    for rank, kernel in enumerate(("alpha", "beta"))
]
for t in range(300, 3000, 307):
    for device in (H200, CAPPED, H100):
        print(ask({"lab": rows}, sig(t), device=device).steps)
"""


def test_every_process_answers_alike():
    """Ranks of one job that disagree compile different programs and hang: nothing may depend on the hash seed."""
    told = {
        subprocess.run(
            [sys.executable, "-c", PROCESS],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=600,
        ).stdout
        for seed in ("0", "1")
    }
    assert len(told) == 1
    assert told.pop().count("NEIGHBOUR") > 5
