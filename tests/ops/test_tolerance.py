"""The rule of proof of each kind of output."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attn_tune.ops.contract import Output, OutputKind
from attn_tune.ops.tolerance import compare
from attn_tune.schema.errors import UsageError

RNG = np.random.default_rng(0)
MATRIX = jnp.asarray(RNG.normal(size=(2, 16, 8)), jnp.float32)
# So many rows that one of them hardly moves the norm of all.
TALL = jnp.asarray(RNG.normal(size=(2, 2048, 8)), jnp.float32)


def ratio(output, x, exact, plain=None, originals=None, **more):
    """The ratio of ``x`` under the rule of ``output``; ``more`` are other arrays that all three have."""
    answers = [{output.name: y, **more} for y in (exact, exact if plain is None else plain)]
    (error,) = compare({output.name: x}, *answers, [output], originals)
    return error.ratio


@pytest.mark.parametrize("kind", ["value", "logsumexp", "state", "scalar"])
def test_floats_of_every_kind_pass_with_a_few_roundings_and_fail_with_many(kind):
    output = Output(name="x", kind=kind)
    assert ratio(output, MATRIX * (1 + 1e-6), MATRIX) <= 1
    assert ratio(output, MATRIX * 1.01, MATRIX) > 1
    assert ratio(output, MATRIX.at[0, 0, 0].set(jnp.nan), MATRIX) == np.inf


def test_one_wrong_row_of_a_value_fails_where_a_gradient_may_cancel():
    wrong = TALL.at[0, 3].multiply(1 + 3e-5)
    assert ratio(Output(name="x"), wrong, TALL) > 1
    assert ratio(Output(name="x", kind="gradient", of="q"), wrong, TALL) <= 1


def test_an_output_whose_sums_cancel_may_have_more_roundings_in_float32_alone():
    exact = TALL.at[0, 3].multiply(1e-3)
    small_row, all_rows = exact.at[0, 3].add(2e-6), exact * (1 + 5e-6)
    for wrong in (small_row, all_rows):
        assert ratio(Output(name="x"), wrong, exact) > 1
        assert ratio(Output(name="x", cancels=True), wrong, exact) <= 1
    # One pass of tf32 fails all the same, and so does one wrong row of a usual size.
    coarse = jax.lax.reduce_precision(TALL, exponent_bits=8, mantissa_bits=10)
    assert ratio(Output(name="x", cancels=True), coarse, TALL) > 10
    assert ratio(Output(name="x", cancels=True), TALL.at[0, 3].multiply(1 + 1e-4), TALL) > 1
    # Other dtypes have the rule of their kind.
    values = exact.astype(jnp.bfloat16)
    wrong = values.at[0, 3].add(jnp.bfloat16(3e-3))
    assert ratio(Output(name="x", cancels=True), wrong, values) == ratio(Output(name="x"), wrong, values) > 1
    with pytest.raises(UsageError, match="cancels"):
        Output(name="x", kind="index", cancels=True)


def test_the_name_of_an_output_decides_nothing():
    wrong = TALL.at[0, 3].multiply(1 + 3e-5)
    assert ratio(Output(name="decay"), wrong, TALL) > 1
    small = TALL * 1e-3
    assert ratio(Output(name="lse"), small + 1e-6, small) > 1
    assert ratio(Output(name="other", kind="logsumexp"), small + 1e-6, small) <= 1


@pytest.mark.parametrize(("dtype", "is_right"), [("bfloat16", True), ("float16", False), ("float32", False)])
def test_an_lse_may_be_off_by_a_small_part_of_the_rounding_of_the_values_beside_it(dtype, is_right):
    out, lse = Output(name="out"), Output(name="lse", kind="logsumexp")
    values = TALL.astype(dtype)

    def judged(lses, right):
        beside = {"out": values, "lse": lses}, {"out": values, "lse": right}, {"out": values, "lse": right}
        return compare(*beside, [out, lse])[1].ratio

    right = jnp.abs(TALL[..., 0]) + 4.0
    of_tanh = right.at[0, 3].multiply(1 + 2e-5)
    assert (judged(of_tanh, right) <= 1) == is_right
    # One key of five thousand lost in a row, and one of some twenty thousand lost in all.
    assert judged(right.at[0, 3].add(-2e-4), right) > 1
    assert judged(right * (1 + 1e-5), right) > 1
    # By itself, or beside indices, it has its own rounding alone.
    assert ratio(lse, of_tanh, right) > 1


def test_a_decayed_row_of_a_state_is_judged_beside_its_matrix():
    decayed = TALL.at[0, 3].multiply(1e-6)
    wrong = decayed.at[0, 3].add(3e-5 * 0.5)
    assert ratio(Output(name="s", kind="state"), wrong, decayed) <= 1
    assert ratio(Output(name="s"), wrong, decayed) > 1
    lost = decayed.at[0, 4].set(0.0)
    assert ratio(Output(name="s", kind="state"), lost, decayed) > 1


def test_a_row_of_a_cumulative_gradient_has_the_errors_of_the_others():
    steps = np.asarray(TALL).astype(np.float64)
    sums = jnp.asarray(np.cumsum(steps[:, ::-1], axis=1)[:, ::-1], jnp.float32)
    # A row whose sum is zero but for a little, with the rounding of the sums before it.
    passing = sums.at[0, 3].multiply(1e-5)
    off = passing.at[0, 3].add(1e-5 * 20)
    own, cumulative = (Output(name="dg", kind="gradient", of="g", cumulative=x) for x in (False, True))
    assert ratio(own, off, passing) > 1
    assert ratio(cumulative, off, passing) <= 1
    assert ratio(cumulative, sums.at[0, 2000].set(0.0), sums) > 1
    with pytest.raises(UsageError, match="of kind value, without 'cumulative'"):
        Output(name="x", cumulative=True)


def test_a_scalar_may_have_the_roundings_of_the_dtype_it_is_computed_in():
    loss = jnp.float32(3.0)
    assert ratio(Output(name="loss", kind="scalar"), loss * 1.001, loss) > 1
    coarse = Output(name="loss", kind="scalar", working_dtype="bfloat16")
    assert ratio(coarse, loss * 1.001, loss) <= 1
    assert ratio(coarse, loss * 1.01, loss) > 1
    many = jnp.array([1e-3, 1e3], jnp.float32)
    assert ratio(Output(name="loss", kind="scalar"), many * jnp.array([1, 1.01]), many) > 1


def test_integers_and_booleans_must_be_equal():
    counts = jnp.array([3, 1, 2])
    assert ratio(Output(name="n"), counts, counts) == 0
    assert ratio(Output(name="n"), counts[::-1], counts) > 1
    flags = jnp.array([True, False])
    assert ratio(Output(name="f"), ~flags, flags) > 1
    assert ratio(Output(name="n", kind="scalar"), jnp.int32(4), jnp.int32(5)) > 1
    assert ratio(Output(name="n", kind="scalar"), jnp.int32(5), jnp.int32(5)) == 0


def test_indices_are_sets_unless_their_order_counts():
    chosen = jnp.array([[4, 1, 7], [0, 2, 9]])
    turned = chosen[:, ::-1]
    assert ratio(Output(name="i", kind="index"), turned, chosen) == 0
    assert ratio(Output(name="i", kind="index", ordered=True), turned, chosen) > 1
    assert ratio(Output(name="i", kind="index"), chosen.at[0, 0].set(5), chosen) > 1
    # The same numbers, but in the other row.
    assert ratio(Output(name="i", kind="index"), chosen[::-1], chosen) > 1


SCORES = jnp.array([[5.0, 4.0, 4.0, 1.0], [9.0, 8.0, 7.0, 6.0]])
BEST = jnp.array([[0, 1], [0, 1]])


@pytest.mark.parametrize(
    ("found", "is_right"),
    {
        "the same": ([[0, 1], [0, 1]], True),
        "in another order": ([[1, 0], [1, 0]], True),
        "a tie": ([[0, 2], [0, 1]], True),
        "a lesser one": ([[0, 3], [0, 1]], False),
        "one twice": ([[0, 0], [0, 1]], False),
        "out of range": ([[0, 4], [0, 1]], False),
        "one too few": ([[0, -1], [0, 1]], False),
    }.values(),
)
def test_indices_are_judged_by_the_scores_that_they_select(found, is_right):
    output = Output(name="i", kind="index", scores="scores")
    found = jnp.asarray(found, BEST.dtype)
    assert (ratio(output, found, BEST, scores=SCORES) <= 1) == is_right


def test_rows_with_fewer_candidates_than_places_hold_as_many_negative_indices():
    output = Output(name="i", kind="index", scores="scores")
    best = jnp.array([[2, -1], [-1, -1]])
    scores = jnp.array([[-jnp.inf, -jnp.inf, 1.0], [-jnp.inf] * 3])
    assert ratio(output, best[:, ::-1], best, scores=scores) == 0
    assert ratio(output, jnp.array([[2, 1], [-1, -1]]), best, scores=scores) > 1


def quantise(x, levels=127):
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / levels
    return jnp.round(x / scale).astype(jnp.int8), scale


def test_codes_are_judged_together_with_their_scales():
    output = Output(name="codes", kind="quantised", scale="scale")
    codes, scale = quantise(MATRIX)
    exact, plain = {"codes": MATRIX, "scale": scale}, {"codes": codes, "scale": scale}
    halved = {"codes": (codes // 2).astype(jnp.int8), "scale": scale * 2}

    def judge(outputs):
        errors = compare(outputs, exact, plain, [output, Output(name="scale")])
        return next(e.ratio for e in errors if e.output == "codes")

    assert judge(plain) <= 1
    assert judge({"codes": codes, "scale": scale * 1.1}) > 1
    assert judge(halved) > 1
    assert judge({"codes": codes}) == np.inf


ROW = np.arange(4)[:, None]
CACHE = jnp.asarray(np.where(ROW == 3, np.nan, RNG.normal(size=(4, 8))), jnp.float32)
WRITTEN = jnp.asarray(np.where(ROW == 1, 2.5, CACHE), jnp.float32)
UPDATED = Output(name="cache", updates="cache")


@pytest.mark.parametrize("row", [0, 2, 3])
def test_a_row_that_the_reference_leaves_must_keep_its_bits(row):
    originals = {"cache": CACHE}
    assert ratio(UPDATED, WRITTEN, WRITTEN, originals=originals) == 0
    changed = WRITTEN.at[row, 7].set(0.0)
    assert ratio(UPDATED, changed, WRITTEN, originals=originals) == np.inf
    if row != 3:
        nearly = WRITTEN.at[row, 7].multiply(1 + 1.2e-7)
        assert ratio(UPDATED, nearly, WRITTEN, originals=originals) == np.inf


def test_a_row_that_was_to_be_written_is_judged_by_the_rule():
    originals = {"cache": CACHE}
    assert ratio(UPDATED, WRITTEN.at[1].multiply(1 + 1e-6), WRITTEN, originals=originals) <= 1
    assert ratio(UPDATED, WRITTEN.at[1].multiply(1.01), WRITTEN, originals=originals) > 1
    assert ratio(UPDATED, CACHE, WRITTEN, originals=originals) > 1


@pytest.mark.parametrize("row", [0, 2, 3])
def test_codes_written_into_a_cache_are_judged_and_all_others_keep_their_bits(row):
    output = Output(name="cache", kind="quantised", updates="cache")
    exact = WRITTEN.at[1].set(jnp.arange(8) * 40.3)
    cache, plain = CACHE.astype("float8_e4m3fn"), exact.astype("float8_e4m3fn")
    originals = {"cache": cache}
    wide = jnp.where(ROW == 1, exact, cache.astype(jnp.float32))
    assert ratio(output, plain, wide, plain=plain, originals=originals) <= 1
    # Codes that are cut off instead of rounded are off by twice as much.
    cut = plain.at[1].set((exact[1] * 0.96).astype(plain.dtype))
    assert ratio(output, cut, wide, plain=plain, originals=originals) > 1
    changed = plain.at[row, 7].set(1.0)
    assert ratio(output, changed, wide, plain=plain, originals=originals) == np.inf


def test_of_scalars_in_a_buffer_every_other_entry_keeps_its_bits():
    output = Output(name="cache", kind="scalar", updates="cache")
    originals = {"cache": CACHE}
    written = CACHE.at[1, 2].set(2.5)
    assert ratio(output, written, written, originals=originals) == 0
    assert ratio(output, written.at[1, 3].multiply(1 + 1.2e-7), written, originals=originals) == np.inf
    assert ratio(output, CACHE, written, originals=originals) > 1


def test_a_baseline_that_is_not_finite_allows_nothing():
    broken = jnp.full_like(MATRIX, jnp.inf)
    assert ratio(Output(name="x"), MATRIX * 1.5, MATRIX, plain=broken) > 1


def test_an_output_that_no_op_declares_is_no_output():
    with pytest.raises(KeyError):
        compare({"y": MATRIX}, {"y": MATRIX}, {"y": MATRIX}, [Output(name="x")])


def test_another_dtype_or_shape_is_wrong():
    assert ratio(Output(name="x"), MATRIX.astype(jnp.bfloat16), MATRIX) == np.inf
    assert ratio(Output(name="x"), MATRIX[:1], MATRIX) == np.inf


def test_every_kind_has_a_rule():
    tried = {"value", "gradient", "logsumexp", "state", "scalar", "index", "quantised"}
    assert tried == set(OutputKind)
