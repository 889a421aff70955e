"""Packs: the same bytes from the same facts, nothing accepted that was changed, all or nothing on the way in."""

import dataclasses
import hashlib
import json
import random
import zipfile

import pytest

from attn_tune.db import Database, Selection, export_pack, import_pack
from attn_tune.packs.reader import read_pack
from attn_tune.schema import (
    IntegrityError,
    NoDataError,
    OutputError,
    Status,
    StorageError,
    UsageError,
)
from tests.db.facts import (
    DEVICE,
    ENVIRONMENT,
    OTHER_DEVICE,
    SIGNATURE,
    begin,
    make_signature,
    make_trial,
)

LONG = make_signature(q_len=4096, kv_len=4096)
RELEASED = dataclasses.replace(ENVIRONMENT, compiler="ptxas 13")
OUTPUTS = {"fwd": ("out", "lse"), "bwd": ("dq", "dk", "dv")}


def knobs(block, direction="fwd"):
    """A config of the Triton kernel."""
    tile = {"block_k": 64, "block_q": block, "num_stages": 2, "num_warps": 4}
    return tile if direction == "fwd" else {"dkv": tile, "dq": tile}


def proof(direction):
    """Every output of a direction compared with the reference."""
    return tuple(OutputError(output=o, error=0.01, allowed=0.05) for o in OUTPUTS[direction])


def facts(winner=128):
    """Trials of two problems and two directions on two devices, by two kernels."""
    found = []
    for device in (DEVICE, OTHER_DEVICE):
        for signature in (SIGNATURE, LONG):
            for direction in ("fwd", "bwd"):
                common = {
                    "device": device,
                    "signature": signature,
                    "direction": direction,
                    "environment": RELEASED,
                    "errors": proof(direction),
                }
                for block, time in ((64, 20_000), (winner, 15_000)):
                    samples = tuple(time + 10 * i for i in range(12))
                    found.append(
                        make_trial(
                            knobs(block, direction),
                            samples,
                            round_id="r",
                            is_heuristic=block == 64,
                            **common,
                        )
                    )
                xla = {"kernel": "flash_attention/xla", "round_id": "r"}
                found.append(make_trial({"chunk_k": 512, "chunk_q": 512}, (30_000,) * 12, **xla, **common))
    return found


def fill(path, trials):
    with Database.open(path, create=True) as database:
        run = begin(database)
        for trial in trials:
            database.record(run, trial)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    path = tmp_path_factory.mktemp("lab") / "lab.db"
    fill(path, facts())
    with Database.open(path, read_only=True) as database:
        yield database


@pytest.fixture
def target(tmp_path):
    with Database.open(tmp_path / "target.db", create=True) as database:
        yield database


def export(database, path, **options):
    wanted = {f.name for f in dataclasses.fields(Selection)} & options.keys()
    selection = Selection(**{name: options.pop(name) for name in wanted})
    return export_pack(database, path, selection=selection, **{"name": "h200", "version": "1.0", **options})


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_pack_says_what_the_trials_say(lab, tmp_path):
    summary = export(lab, tmp_path / "pack")
    assert (summary.rows, summary.problems) == (16, 8)
    assert summary.devices == ("nvidia-h200", "tpu-v6e")
    pack = read_pack(tmp_path / "pack")
    assert (pack.name, pack.version, pack.digest) == ("h200", "1.0", summary.digest)
    assert pack.contracts == {"flash_attention/triton": 1, "flash_attention/xla": 1}
    best = {row.key: row for row in pack.rows if row.rank == 0}
    row = best[DEVICE.digest, LONG.text, "bwd", "triton"]
    assert row.config == knobs(128, "bwd")
    assert (row.state, row.samples, row.median_ns, row.heuristic_ns) == ("winner", 12, 15055, 20055)
    assert row.gain_ppm == round((20055 / 15055 - 1) * 1e6)
    assert row.error_ppm == 200_000
    assert row.regret_ppm == 0
    assert sorted(contents(tmp_path / "pack")) == [
        "SHA256SUMS",
        "manifest.json",
        "shards/sm_90/flash_attention.bwd.json",
        "shards/sm_90/flash_attention.fwd.json",
        "shards/v6e/flash_attention.bwd.json",
        "shards/v6e/flash_attention.fwd.json",
    ]


def test_one_row_a_line_and_sums_that_sha256sum_reads(lab, tmp_path):
    export(lab, tmp_path / "pack")
    files = contents(tmp_path / "pack")
    shard = files["shards/sm_90/flash_attention.fwd.json"].decode().splitlines()
    assert len(shard) == 2 + 4
    assert all(line.startswith("{") for line in shard[1:-1])
    for line in files.pop("SHA256SUMS").decode().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256(files.pop(name)).hexdigest() == digest
    assert not files


@pytest.mark.parametrize("name", ["pack", "pack.atpack"])
def test_same_facts_in_any_order_give_the_same_bytes(lab, tmp_path, name):
    shuffled = facts()
    random.Random(0).shuffle(shuffled)
    fill(tmp_path / "other.db", shuffled)
    export(lab, tmp_path / "a" / name)
    with Database.open(tmp_path / "other.db") as other:
        other.rebuild_decisions()
        export(other, tmp_path / "b" / name)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert contents(tmp_path / "a")


def test_folder_and_file_hold_the_same(lab, tmp_path):
    folder = export(lab, tmp_path / "pack")
    file = export(lab, tmp_path / "pack.atpack")
    assert folder.digest == file.digest
    with zipfile.ZipFile(tmp_path / "pack.atpack") as archive:
        packed = {name: archive.read(name) for name in archive.namelist()}
        assert archive.namelist() == sorted(packed)
    assert packed == contents(tmp_path / "pack")


def test_evidence_is_not_part_of_the_decision(lab, tmp_path):
    slower = [
        make_trial(
            t.config,
            [2 * s for s in t.measurement.samples_ns],
            round_id=t.measurement.round_id,
            kernel=t.kernel,
            direction=t.direction,
            signature=t.signature,
            device=t.device,
            environment=t.environment,
            errors=t.errors,
            is_heuristic=t.is_heuristic,
        )
        for t in facts()
    ]
    fill(tmp_path / "slow.db", slower)
    one = export(lab, tmp_path / "one")
    with Database.open(tmp_path / "slow.db") as slow:
        two = export(slow, tmp_path / "two")
    assert one.decision_digest == two.decision_digest
    assert one.digest != two.digest


def test_a_selection_closes_the_ranks(lab, tmp_path):
    summary = export(lab, tmp_path / "xla", kernels=["xla"], device="sm_90", directions=["fwd"])
    assert (summary.rows, summary.problems, summary.devices) == (2, 2, ("nvidia-h200",))
    rows = read_pack(tmp_path / "xla").rows
    assert {(r.kernel, r.rank, r.state) for r in rows} == {("xla", 0, "only")}


def test_a_selection_reads_like_options():
    asked = Selection(kernels={"a/x", "a/y", "a/z"}, directions=("bwd",), min_gain=9.0)
    assert str(asked) == "kernels a/x, a/y and 1 more, directions bwd, min gain 9.0"


def test_a_wrong_config_is_not_exported_even_from_an_old_decision_table(tmp_path):
    fill(tmp_path / "lab.db", facts())
    with Database.open(tmp_path / "lab.db") as database:
        database.rebuild_decisions()
        run = begin(database)
        bad = (OutputError(output="out", error=1.0, allowed=0.1),)
        wrong = {"status": Status.INCORRECT, "errors": bad, "environment": RELEASED}
        database.record(run, make_trial(knobs(128), **wrong))
        export(database, tmp_path / "pack", device=DEVICE, directions=["fwd"], kernels=["triton"])
    rows = {r.signature: r.config for r in read_pack(tmp_path / "pack").rows}
    assert rows == {SIGNATURE.text: knobs(64), LONG.text: knobs(128)}


def test_where_every_config_failed_the_refusal_counts_them(tmp_path):
    path = tmp_path / "lab.db"
    bad = {"status": Status.INCORRECT, "errors": (OutputError(output="out", error=1.0, allowed=0.1),)}
    crash = {"status": Status.CRASHED, "reason": "SIGSEGV"}
    fill(path, [make_trial({"block_q": 64}, **bad), make_trial({"block_q": 128}, **bad), make_trial({}, **crash)])
    with Database.open(path) as database:
        with pytest.raises(
            NoDataError, match=r"no right config for .*: all of 3 trials failed \(2 incorrect, 1 crashed\)"
        ):
            export(database, tmp_path / "pack", signatures=[SIGNATURE.text])
        with pytest.raises(NoDataError, match="no decision for signatures"):
            export(database, tmp_path / "pack", signatures=[LONG.text])


def test_refusals(lab, tmp_path):
    with pytest.raises(NoDataError, match="sweep"):
        export(lab, tmp_path / "pack", op="nothing")
    with pytest.raises(UsageError, match="name"):
        export(lab, tmp_path / "pack", name="../evil")
    assert not list(tmp_path.iterdir())
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("precious")
    with pytest.raises(StorageError, match="exists"):
        export(lab, tmp_path / "home")
    for path in (tmp_path / "home", tmp_path / "home" / "thesis.txt"):
        with pytest.raises(StorageError, match="not overwritten"):
            export(lab, path, overwrite=True)
    assert (tmp_path / "home" / "thesis.txt").read_text() == "precious"


@pytest.mark.parametrize("name", ["pack", "pack.atpack"])
def test_overwriting_replaces_and_leaves_nothing_else(lab, tmp_path, name):
    first = export(lab, tmp_path / name)
    second = export(lab, tmp_path / name, kernels=["xla"], overwrite=True)
    assert first.digest != second.digest
    assert read_pack(tmp_path / name).digest == second.digest
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_imported_rows_alone_are_not_exported_and_the_error_says_so(lab, target, tmp_path):
    export(lab, tmp_path / "pack.atpack")
    import_pack(target, tmp_path / "pack.atpack")
    with pytest.raises(NoDataError, match="has 16 rows of imported packs and no trials of its own"):
        export(target, tmp_path / "again.atpack")


def test_import_is_idempotent(lab, target, tmp_path):
    export(lab, tmp_path / "pack.atpack")
    first = import_pack(target, tmp_path / "pack.atpack")
    assert (first.added, first.unchanged) == (8, 0)
    before = target.frame("imported").to_dict("records")
    again = import_pack(target, tmp_path / "pack.atpack")
    assert (again.added, again.unchanged) == (0, 8)
    assert target.frame("imported").to_dict("records") == before
    assert len(before) == 16


def test_conflicts_follow_the_policy(lab, target, tmp_path):
    fill(tmp_path / "other.db", facts(winner=256))
    export(lab, tmp_path / "one")
    with Database.open(tmp_path / "other.db") as other:
        export(other, tmp_path / "two", directions=["fwd"])
    import_pack(target, tmp_path / "one")

    def fwd_configs():
        frame = target.frame("imported")
        configs = frame[(frame.direction == "fwd") & (frame["rank"] == 0)].config
        return [json.loads(text) for text in set(configs)]

    with pytest.raises(UsageError) as error:
        import_pack(target, tmp_path / "two")
    assert "answers 4 problems otherwise" in str(error.value)
    assert "stored: triton block_k=64 block_q=128" in str(error.value)
    assert "pack:   triton block_k=64 block_q=256" in str(error.value)
    assert fwd_configs() == [knobs(128)]
    assert import_pack(target, tmp_path / "two", policy="keep").kept == 4
    assert fwd_configs() == [knobs(128)]
    assert import_pack(target, tmp_path / "two", policy="replace").replaced == 4
    assert fwd_configs() == [knobs(256)]
    for policy in ("newest", "prefer=", "prefer"):
        with pytest.raises(UsageError, match="policy"):
            import_pack(target, tmp_path / "two", policy=policy)


def test_a_flipped_byte_is_refused_wherever_it_is(lab, target, tmp_path):
    export(lab, tmp_path / "good.atpack")
    good = (tmp_path / "good.atpack").read_bytes()
    digest = read_pack(tmp_path / "good.atpack").digest
    rng = random.Random(0)
    refused = 0
    for position in rng.sample(range(len(good)), 150):
        bad = bytearray(good)
        bad[position] ^= 1 << rng.randrange(8)
        (tmp_path / "bad.atpack").write_bytes(bad)
        try:
            import_pack(target, tmp_path / "bad.atpack")
        except IntegrityError:
            refused += 1
        else:  # a byte of the zip's own tables that says nothing about the contents
            assert read_pack(tmp_path / "bad.atpack").digest == digest
    assert refused > 130
    for name in contents_of_folder(lab, tmp_path / "folder"):
        file = tmp_path / "folder" / name
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        with pytest.raises(IntegrityError):
            import_pack(target, tmp_path / "folder")
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    import_pack(target, tmp_path / "folder")


def contents_of_folder(lab, folder):
    export(lab, folder)
    return contents(folder)


def fused(time):
    """Trials of the fused backward, proven and faster than what ``facts`` has if ``time`` is small."""
    return make_trial(
        {**knobs(32), "transposed_dq": False},
        (time,) * 12,
        kernel="flash_attention/triton_fused",
        direction="bwd",
        round_id="r",
        is_heuristic=True,
        environment=RELEASED,
        errors=proof("bwd"),
    )


def test_a_nondeterministic_kernel_is_only_shipped_when_that_is_allowed(tmp_path):
    fill(tmp_path / "lab.db", [*facts(), fused(10_000)])
    with Database.open(tmp_path / "lab.db") as database:
        database.rebuild_decisions()
        best, *_ = database.decisions(direction="bwd", signature=SIGNATURE, device=DEVICE)
        assert best.kernel == "flash_attention/triton_fused"
        shipped = export_pack(database, tmp_path / "a", name="a", version="1")
        allowed = export_pack(database, tmp_path / "b", name="b", version="1", allow_nondeterministic=True)
        only = Selection(kernels=["flash_attention/triton_fused"])
        with pytest.raises(NoDataError, match=r"not deterministic \(flash_attention/triton_fused\)"):
            export_pack(database, tmp_path / "c", name="c", version="1", selection=only)
    assert not (tmp_path / "c").exists()
    assert shipped.left_out == ("flash_attention/triton_fused",)
    assert "nondeterministic" not in shipped.gate

    def winner(path):
        rows = [r for r in read_pack(path).rows if (r.direction, r.rank) == ("bwd", 0)]
        return {r.kernel for r in rows if r.signature == SIGNATURE.text and r.device == DEVICE.digest}

    # The ranks close up: the best of the others is the winner.
    assert winner(tmp_path / "a") == {"triton"}
    assert winner(tmp_path / "b") == {"triton_fused"}
    assert allowed.left_out == ()
    assert allowed.gate["nondeterministic"] == 1
    assert read_pack(tmp_path / "b").gate["nondeterministic"] == 1


def test_a_config_with_different_bits_is_only_shipped_when_that_is_allowed(tmp_path):
    seen = [dataclasses.replace(t, features=5, repeatable=t.direction == "fwd") for t in facts()]
    fill(tmp_path / "lab.db", [t for t in seen if t.kernel.endswith("/triton")])
    with Database.open(tmp_path / "lab.db") as database:
        shipped = export_pack(database, tmp_path / "a", name="a", version="1")
        export_pack(database, tmp_path / "b", name="b", version="1", allow_nondeterministic=True)
    assert shipped.left_out == ("flash_attention/triton",)
    rows = {path: read_pack(tmp_path / path).rows for path in "ab"}
    assert {(r.direction, r.repeatable, r.features) for r in rows["a"]} == {("fwd", True, 5)}
    assert {(r.direction, r.repeatable) for r in rows["b"]} == {("fwd", True), ("bwd", False)}
