"""Mutated packs, at a size that fits; a run with a million is recorded in benchmarks/results/cpu."""

from tests.soak import fuzz_packs


def test_mutated_packs_never_crash_and_are_never_read_wrongly():
    tally = fuzz_packs.fuzz(1500, seed=7)
    for kind in fuzz_packs.KINDS:
        assert tally[kind, "refused"] > 5, f"no mutation of the kind {kind!r} was refused"
    valid = sum(count for (_, fate), count in tally.items() if fate == "accepted, valid")
    assert valid > 5, "the oracle had nothing to judge"
