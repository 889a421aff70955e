"""Attention is found, whatever it is written with: traced, lowered, exported and printed as HLO."""

import jax
import pytest

from attn_tune.tuner.discover.calls import find_calls
from attn_tune.tuner.discover.hlo import read_hlo
from attn_tune.tuner.discover.jaxpr import read_jaxpr
from attn_tune.tuner.discover.stablehlo import read_stablehlo
from tests.tuner.discover.programs import NO_ATTENTION, PROGRAMS, UNREAD

READERS = {
    "jaxpr": lambda traced: read_jaxpr(traced.jaxpr),
    "stablehlo": lambda traced: read_stablehlo(traced.lower().as_text().encode(), "test"),
    "hlo": lambda traced: read_hlo(traced.lower().as_text(dialect="hlo"), "test"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_form_of_a_program_gives_its_signature_and_counts(name):
    function, arguments, rest, counts = PROGRAMS[name]
    traced = jax.jit(function).trace(*arguments)
    for form, read in READERS.items():
        found = find_calls(read(traced))
        assert not found.unread, form
        assert {c.signature.text for c in found.calls} == {f"flash_attention/v1 {rest}"}, form
        assert {c.direction: c.count for c in found.calls} == counts, form


@pytest.mark.parametrize("name", NO_ATTENTION)
def test_other_softmaxes_are_not_attention(name):
    function, arguments = NO_ATTENTION[name]
    traced = jax.jit(function).trace(*arguments)
    for form, read in READERS.items():
        found = find_calls(read(traced))
        assert (found.calls, found.unread) == ((), ()), form


@pytest.mark.parametrize("name", UNREAD)
def test_what_has_no_signature_is_listed_with_the_reason(name):
    function, arguments, reason = UNREAD[name]
    traced = jax.jit(function).trace(*arguments)
    for form, read in READERS.items():
        found = find_calls(read(traced))
        assert not found.calls, form
        assert [reason in u.reason for u in found.unread] == [True], (form, found.unread)
