"""Calls are found in every form of a program: traced, lowered, and printed as HLO."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from attn_tune.ops.program_graph import Found, Unread
from attn_tune.ops.registry import get_op
from attn_tune.tuner.discover.calls import find_calls
from attn_tune.tuner.discover.hlo import read_hlo
from attn_tune.tuner.discover.jaxpr import read_jaxpr
from attn_tune.tuner.discover.stablehlo import read_stablehlo
from tests.chosen import exhaustive
from tests.tuner.discover.programs import BASE, NO_ATTENTION, PROGRAMS, UNREAD, shape

READERS = {
    "jaxpr": lambda traced: read_jaxpr(traced.jaxpr),
    "stablehlo": lambda traced: read_stablehlo(traced.lower().as_text().encode(), "test"),
    "hlo": lambda traced: read_hlo(traced.lower().as_text(dialect="hlo"), "test"),
}

# What they have others have too, with more besides.
PLAIN = ("stock causal", "stock window", "scan", "ours", "remat")
NAMES = [exhaustive(name) if name in PLAIN else name for name in PROGRAMS]


@pytest.mark.parametrize("name", NAMES)
def test_every_form_of_a_program_gives_its_signature_and_counts(name):
    function, arguments, rest, counts = PROGRAMS[name]
    traced = jax.jit(function).trace(*arguments)
    for form, read in READERS.items():
        found = find_calls(read(traced))
        assert not found.unread, form
        assert {c.signature.text for c in found.calls} == {f"flash_attention/v1 {rest}"}, form
        assert {c.direction: c.count for c in found.calls} == counts, form


@pytest.mark.parametrize("name", NO_ATTENTION)
def test_softmaxes_outside_attention_are_not_found(name):
    function, arguments = NO_ATTENTION[name]
    traced = jax.jit(function).trace(*arguments)
    for form, read in READERS.items():
        found = find_calls(read(traced))
        assert (found.calls, found.unread) == ((), ()), form


@pytest.mark.parametrize("name", UNREAD)
def test_attention_without_a_signature_is_listed_with_the_reason(name):
    function, arguments, reason = UNREAD[name]
    traced = jax.jit(function).trace(*arguments)
    for form, read in READERS.items():
        found = find_calls(read(traced))
        assert not found.calls, form
        assert [reason in u.reason for u in found.unread] == [True], (form, found.unread)


def recognise_exponentials(graph):
    """A recogniser of another op: every ``exp`` is a call, and every ``log`` one without a signature."""
    for value in graph.values:
        if value.kind == "exp":
            problem = get_op("flash_attention").from_signature(SIGNATURE)
            yield Found(problem=problem, direction="fwd", count=value.runs, found_as="an exp")
        elif value.kind == "log":
            yield Unread(what="log", reason="not of this op", count=value.runs)


SIGNATURE = get_op("flash_attention").parse_signature(f"flash_attention/v1 {BASE}")


def test_every_op_recognises_its_own_calls(monkeypatch):
    path = f"{__name__}:recognise_exponentials"
    own = dataclasses.replace(get_op("flash_attention"), recognise=path)
    silent = dataclasses.replace(own, recognise="")
    monkeypatch.setattr("attn_tune.tuner.discover.calls.ops", lambda: {"a": own, "b": silent})
    traced = jax.jit(lambda x: jnp.log(jnp.exp(x) + jnp.exp(2 * x))).trace(shape(4))
    found = find_calls(read_jaxpr(traced.jaxpr))
    assert [(c.signature, c.count, c.found_as) for c in found.calls] == [(SIGNATURE, 2, "an exp")]
    assert [(u.what, u.count) for u in found.unread] == [("log", 1)]
