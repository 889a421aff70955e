"""An op says its directions, outputs, workloads and axes; what cannot be used is refused where it is declared."""

import dataclasses

import pytest

from attn_tune.ops.contract import Axis, Output, Workload, workload_field
from attn_tune.ops.registry import op_names
from attn_tune.ops.workloads import LENGTHS, profile_lengths
from attn_tune.schema import UsageError
from tests.runtime.lookup.toy_op import TOY


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"kind": "gradient"}, "`of` must name its operand"),
        ({"kind": "value", "of": "q"}, "is of kind value, without 'of'"),
        ({"kind": "value", "scores": "s"}, "without 'scores'"),
        ({"kind": "index", "scores": "s", "ordered": True}, "not both"),
        ({"kind": "logsumexp", "updates": "cache"}, "without 'updates'"),
    ],
)
def test_an_output_with_an_attribute_that_its_kind_lacks_is_refused(attributes, said):
    with pytest.raises(UsageError, match=said):
        Output(name="x", **attributes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "Toy op"}, "lower-case"),
        ({"directions": ("FWD",)}, "directions are words"),
        ({"directions": ()}, "directions are words"),
        ({"axes": (Axis(field="no_field"),)}, "unknown field of an axis 'no_field'"),
        ({"workloads": LENGTHS}, "workload_field"),
    ],
)
def test_an_op_that_cannot_be_used_is_refused(changes, said):
    with pytest.raises(UsageError, match=said):
        dataclasses.replace(TOY, **changes)


def test_a_workload_is_a_categorical_field_that_is_left_out_at_its_default():
    field = workload_field((Workload(name="eq"), Workload(name="uni")))
    assert (field.name, str(field.kind), field.default) == ("workload", "categorical", "eq")


@pytest.mark.parametrize("profile", [w.name for w in LENGTHS])
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_a_profile_of_lengths_has_its_largest_and_none_beyond(profile, count):
    lengths = profile_lengths(profile, count, 4096)
    assert len(lengths) == count
    assert list(lengths) == sorted(lengths)
    assert lengths[-1] == 4096
    assert lengths[0] >= 1


def test_profiles_differ_in_how_much_they_hold():
    sums = [sum(profile_lengths(name, 64, 4096)) for name in ("eq", "uni", "exp", "one")]
    assert sums == sorted(sums, reverse=True)
    assert len(set(sums)) == 4
    with pytest.raises(UsageError, match="unknown workload 'exq'; did you mean 'eq' or 'exp'"):
        profile_lengths("exq", 4, 16)


def test_a_signature_without_its_op_is_refused_with_the_word_that_it_lacks():
    with pytest.raises(UsageError, match=f"'b=2 t=1' must start with {TOY.name}/v{TOY.version}"):
        TOY.parse_signature("b=2 t=1")
    for nothing in ("", " "):
        with pytest.raises(UsageError, match="must start with OP/vN"):
            TOY.parse_signature(nothing)


def test_names_of_ops_are_known_without_importing_one():
    assert {"attention", "flash_attention"} <= set(op_names())
