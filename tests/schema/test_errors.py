"""Words of messages: short values, arrays by dtype, shape and first entry, and names that were perhaps meant."""

import jax
import numpy as np

from attn_tune.schema.errors import near_names, short, shown


def test_an_array_is_shown_by_dtype_shape_and_first_entry():
    assert shown(np.arange(2000.0)) == "an array float64[2000], the first of them 0.0"
    assert shown(np.full((2, 3), 7, np.int32)) == "an array int32[2, 3], the first of them 7"
    assert shown(np.zeros((0, 3))) == "an array float64[0, 3]"
    assert shown(np.float32(1.5)) == "an array float32[] of 1.5"


def test_a_traced_array_is_shown_without_its_values():
    said = []
    jax.eval_shape(lambda x: said.append(shown(x)) or x, jax.ShapeDtypeStruct((4,), "float32"))
    assert said[0].startswith("an array float32[4]")
    assert len(said[0]) < 200


def test_text_that_utf_8_has_not_is_escaped():
    assert short("file \udcff") == "file \\udcff"


def test_other_values_are_short():
    assert shown("soft") == "'soft'"
    assert len(shown(list(range(1000)))) < 120


def test_a_class_of_numbers_is_no_array():
    assert shown(np.float64) == "<class 'numpy.float64'>"


def test_names_that_begin_with_what_was_typed_come_before_similar_ones():
    known = ["nvidia-h800", "nvidia-v100", "nvidia-h100-sxm5", "nvidia-h100-pcie", "nvidia-h100-nvl"]
    said = "did you mean 'nvidia-h100-nvl' or 'nvidia-h100-sxm5' or 'nvidia-h100-pcie'?"
    assert near_names("nvidia-h100", known) == said
    assert near_names("nvidia-v10", known, most=2) == "did you mean 'nvidia-v100' or 'nvidia-h800'?"
    assert near_names("", known) == ""
