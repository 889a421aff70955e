"""Every op, those of the probes included: its problems, inputs and answers, and the kernels that run here."""

import functools
import pickle
from pathlib import Path

import jax
import numpy as np
import pytest

from attn_tune.kernels.registry import specs_of
from attn_tune.ops.contract import Problem, load
from attn_tune.ops.registry import get_op, ops
from attn_tune.ops.tolerance import compare
from attn_tune.schema import UsageError
from tests.chosen import chosen
from tests.ops.cases import CPU, OF_EACH_OP, SIGNATURES
from tests.probe_ops.conftest import installed as installed

pytestmark = pytest.mark.slow

KERNELS = Path(__file__).parents[1] / "kernels"

CASES = pytest.mark.parametrize("text", SIGNATURES)
# Ops whose XLA kernel has tests of its own: they hold inputs, baseline and kernel against each other on more problems.
OWN = {path.parent.name for name in ("test_xla", "test_samples") for path in KERNELS.glob(f"*/{name}.py")}
# One problem of each other op, and of one whose operands are updated in place.
KEPT = [text for text in OF_EACH_OP if (op := text.partition("/")[0]) not in OWN or op == "paged_append"]
COMPUTED = pytest.mark.parametrize("text", chosen(SIGNATURES, KEPT))
SEED = 3


def problem_of(text):
    op = get_op(text.partition("/")[0])
    return op, op.from_signature(op.parse_signature(text))


@functools.cache
def maker(text):
    """A program that makes the inputs of all directions, which have most arrays in common."""
    op, problem = problem_of(text)
    return jax.jit(lambda seed: {d: load(op.inputs)(problem, d, seed) for d in op.directions})


@functools.cache
def inputs_of(text, seed=SEED):
    return maker(text)(seed)


@functools.cache
def answers(text):
    """By direction the answers of the reference and of the baseline: one program, in which they share the forward."""
    op, problem = problem_of(text)

    def run(inputs):
        return {d: tuple(load(path)(problem, d, inputs[d]) for path in (op.reference, op.baseline)) for d in inputs}

    return jax.jit(run)(inputs_of(text))


def errors_of(text, direction, outputs):
    op, problem = problem_of(text)
    wanted = op.outputs(problem, direction)
    updated = {o.name: by_name(inputs_of(text)[direction])[o.updates] for o in wanted if o.updates}
    return compare(outputs, *answers(text)[direction], wanted, updated)


def by_name(inputs):
    """The inputs by the last word of their paths."""
    flat, _ = jax.tree_util.tree_flatten_with_path(inputs)
    return {str(getattr(p[-1], "key", getattr(p[-1], "name", p[-1]))): x for p, x in flat}


def bits(array):
    is_key = jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(array) if is_key else array).tobytes()


def test_every_op_of_one_device_has_a_case():
    known = {text.partition("/")[0] for text in SIGNATURES}
    assert known == ops().keys() - {"probe_ring"}, "tests/ops/cases.py has a problem of each op"
    assert {text.partition("/")[0] for text in OF_EACH_OP} == known


@CASES
def test_a_problem_is_a_hashable_and_picklable_value_with_a_signature(text):
    op, problem = problem_of(text)
    assert isinstance(problem, Problem)
    assert hash(problem) == hash(pickle.loads(pickle.dumps(problem)))
    signature = op.to_signature(problem)
    assert signature.text == text
    assert op.parse_signature(text) == signature
    assert op.to_signature(op.from_signature(signature)) == signature
    with pytest.raises(UsageError):
        op.parse_signature(f"{text} nonsense=1")


@CASES
def test_gradients_and_updates_are_those_of_the_operands(text):
    op, problem = problem_of(text)
    for direction in op.directions:
        outputs = op.outputs(problem, direction)
        assert {o.updates for o in outputs if o.updates} == set(op.in_place(problem, direction))
        differentiable = {o.name for o in op.operands(problem, direction) if o.differentiable}
        if direction == "bwd":
            assert {o.of for o in outputs if o.of} == differentiable


@CASES
def test_inputs_have_the_declared_operands(text):
    op, problem = problem_of(text)
    for direction in op.directions:
        arrays = by_name(jax.eval_shape(functools.partial(load(op.inputs), problem, direction), 0))
        for operand in op.operands(problem, direction):
            array = arrays[operand.name]
            assert operand.shape in (None, array.shape), operand
            assert operand.dtype in ("", array.dtype.name), operand


@COMPUTED
def test_inputs_are_those_of_their_seed(text):
    op, _ = problem_of(text)
    for direction in op.directions:
        first, again, other = (
            [bits(x) for x in jax.tree.leaves(inputs[direction])]
            for inputs in (inputs_of(text), maker(text)(SEED), inputs_of(text, SEED + 1))
        )
        assert first == again
        assert first != other


@COMPUTED
def test_the_baseline_has_the_outputs_of_the_op_and_passes_its_own_rule(text):
    op, problem = problem_of(text)
    for direction in op.directions:
        _, baseline = answers(text)[direction]
        required = {o.name for o in op.outputs(problem, direction) if not o.optional}
        assert required <= set(baseline)
        assert all(error.ratio <= 1 for error in errors_of(text, direction, baseline))


@COMPUTED
def test_kernels_that_run_here_are_right(text):
    op, problem = problem_of(text)
    tried = 0
    for spec in specs_of(op.name):
        for direction, search in spec.searches.items():
            if spec.name.startswith("broken") or spec.unsupported(problem, direction, CPU) is not None:
                continue
            made = {output.name for output in op.outputs(problem, direction) if not output.optional}
            config = config_of(search, problem)
            outputs = jax.jit(functools.partial(load(search.call), problem, config))(inputs_of(text)[direction])
            errors = errors_of(text, direction, outputs)
            assert {error.output for error in errors} >= made
            assert all(error.ratio <= 1 for error in errors), (spec.id, config, errors)
            tried += 1
    assert tried


def config_of(search, problem):
    """A config in which every part is another candidate than the untuned one, which calls of the API run."""
    start = other = search.heuristic(problem, CPU)
    for part, make in search.candidates.items():
        choice = getattr(start, part) if part else start
        more = (c for c in make(problem, CPU) if c != choice)
        other = search.whole(other, part, next(more, choice))
    return other if search.infeasible(problem, CPU, other) is None else start
