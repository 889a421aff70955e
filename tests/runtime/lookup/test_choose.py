"""Choosing a kernel and a config: what is asked for, what is tuned, what is left."""

import pytest

from attn_tune.runtime.active.layers import use_pack
from attn_tune.runtime.lookup.answer import DeviceLevel, Rung, SourceKind
from attn_tune.runtime.lookup.dispatch import choose, lookup
from attn_tune.schema import Grade, UnsupportedError, UsageError
from tests.runtime.lookup.toy_op import Config, OtherConfig, pack, problem
from tests.runtime.packbuilder import H200, OP, row, sig


def test_the_heuristic_of_the_platforms_preferred_kernel_that_can():
    choice = choose(OP, "fwd", problem(sig(1024)), device=H200)
    assert (choice.spec.name, choice.config) == ("alpha", Config())
    assert (choice.answer.rung, choice.answer.config) == (Rung.UNTUNED, {"block": 8})
    without = choose(OP, "fwd", problem(sig(1024, dtype="float16")), device=H200)
    assert without.spec.name == "beta"
    assert choose(OP, "fwd", problem(sig(1024)), device=H200, kernel="toy/beta").spec.name == "beta"
    # Without a preference the name decides.
    assert choose(OP, "fwd", problem(sig(1024))).spec.name == "alpha"


def test_a_miss_without_a_kernel_lists_every_reason():
    with pytest.raises(UnsupportedError) as caught:
        choose(OP, "bwd", problem(sig(1024, dtype="float16")), device=H200)
    for words in ("it has no float16", "it has no bwd", "no_such_module_anywhere", sig(1024)[:15]):
        assert words in str(caught.value)
    with pytest.raises(UnsupportedError, match="no_such_module_anywhere"):
        choose(OP, "fwd", problem(sig(1024)), device=H200, kernel="absent")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"op": "toi"}, "did you mean 'toy'"),
        ({"direction": "back"}, "unknown direction 'back'"),
        ({"kernel": "alhpa"}, "did you mean 'alpha'"),
        ({"problem": "toy/v2 b=1 t=1 h=1 dtype=x"}, "toy/v1"),
        ({"problem": "toy/v1 b=1"}, "needs the field"),
    ],
)
def test_a_wrong_name_is_a_usage_error_with_a_way_out(arguments, words):
    asked = {"op": OP, "direction": "fwd", "problem": sig(1024), "device": H200, **arguments}
    with pytest.raises(UsageError, match=words):
        choose(asked.pop("op"), asked.pop("direction"), asked.pop("problem"), **asked)


def test_explicit_configs_are_checked_and_used():
    asked = problem(sig(1024))
    choice = choose(OP, "fwd", asked, device=H200, config=OtherConfig(block=2))
    assert (choice.spec.name, choice.config.block) == ("beta", 2)
    assert choice.answer.rung is Rung.EXPLICIT
    mapped = choose(OP, "fwd", asked, device=H200, kernel="alpha", config={"block": 16})
    assert mapped.config == Config(block=16)
    with pytest.raises(UnsupportedError, match="block 2000 does not fit"):
        choose(OP, "fwd", asked, device=H200, kernel="alpha", config={"block": 2000})
    with pytest.raises(UnsupportedError, match="no float16"):
        choose(
            OP,
            "fwd",
            problem(sig(1, dtype="float16")),
            device=H200,
            kernel="alpha",
            config=Config(),
        )
    with pytest.raises(UsageError, match="no knob 'blok'"):
        choose(OP, "fwd", asked, device=H200, kernel="alpha", config={"blok": 16})
    with pytest.raises(UsageError, match="kernel="):
        choose(OP, "fwd", asked, device=H200, config={"block": 16})
    with pytest.raises(UsageError, match="is a Config, got OtherConfig"):
        choose(OP, "fwd", asked, device=H200, kernel="alpha", config=OtherConfig())
    # Two kernels share this class: the caller has to say which.
    with pytest.raises(UsageError, match="absent, alpha"):
        choose(OP, "fwd", asked, device=H200, config=Config())


def test_a_tuned_row_answers_with_its_provenance():
    with use_pack(pack(row(sig(1024), 64))) as active:
        choice = choose(OP, "fwd", problem(sig(1024)), device=H200)
        answer = choice.answer
    assert choice.config == Config(block=64)
    assert (answer.rung, answer.level, answer.grade) == (
        Rung.EXACT,
        DeviceLevel.EXACT,
        Grade.VERIFIED,
    )
    assert (answer.source, answer.source_kind) == ("lab 2026.1", SourceKind.OVERLAY)
    assert (answer.pack_digest, answer.regret_ppm) == (active.digest, 4000)
    assert lookup(OP, sig(1024), device=H200).is_miss
