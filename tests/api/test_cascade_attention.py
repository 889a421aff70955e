"""``cascade_attention`` beside attention over whole sequences: groups, levels, padding, sinks, codes, refusals."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.api.cascades import assert_like, attended, cascade, draw
from tests.api.sharded_cases import kept
from tests.several_devices import run_with_devices

OWN = [3, 12, 5, 1, 9, 4]
# Of each level the lengths of prefixes, and the sizes of groups where they differ.
LEVELS = {
    "equal_groups": [([13, 6], None)],
    "uneven_groups": [([13, 7, 4], [1, 4, 1])],
    "some_without": [([9, 0, 5, 8], [2, 1, 0, 2])],
    "two_levels": [([11], None), ([5, 0, 6], [2, 2, 1])],
    "four_levels": [([0], None), ([2, 5], None), ([1, 2, 3, 4, 5, 6], None), ([4, 1, 2], None)],
}


# The other levels are those of tests below.
@pytest.mark.parametrize("name", ["some_without", "four_levels"])
def test_decoding_is_that_over_whole_sequences(name):
    case = draw(OWN, LEVELS[name], queries=(6,))
    assert_like(cascade(case), attended(case))


def test_several_new_tokens_are_causal_among_themselves():
    case = draw([max(n, 3) for n in OWN], LEVELS["two_levels"], queries=(6, 3))
    assert_like(cascade(case), attended(case))


def test_groups_of_more_sequences_than_a_tile_has():
    # A tile holds 128 rows of a key head: eight sequences of these.
    case = draw([1 + i % 3 for i in range(21)], [([9, 4, 5], [18, 1, 2])], queries=(21,), heads=32)
    assert_like(cascade(case), attended(case))


def test_a_prefix_of_whole_pages_may_stand_in_one_table_with_the_own_pages():
    case = draw(OWN, [([8, 12], [4, 2])], queries=(6,))
    (level,) = case.levels
    lengths = level.kv_lens[case.owners[0]]
    table = np.full((6, 8), -1, np.int32)
    for row, owner in enumerate(case.owners[0]):
        pages = [*level.page_table[owner][: lengths[row] // 4], *case.page_table[row]]
        table[row, : len(pages)] = pages
    decode = jax.jit(functools.partial(attn_tune.paged_decode, return_lse=True))
    assert_like(cascade(case), decode(case.query, case.k_pages, case.v_pages, lengths + case.kv_lens, table))


def test_one_sequence_alone_has_a_prefix_of_its_own():
    case = draw([2], [([7], None)], queries=(1,))
    assert_like(cascade(case), attended(case))


def test_sequences_without_own_tokens_see_their_prefix():
    case = draw([0, 4, 0], [([6, 9], [2, 1])], queries=(3,))
    out, lse = cascade(case)
    assert_like((out, lse), attended(case))
    assert np.isfinite(lse).all()


def test_sequences_from_num_seqs_on_are_empty():
    case = draw(OWN, LEVELS["some_without"], queries=(6,))
    wild = case._replace(kv_lens=np.where(np.arange(6) < 4, case.kv_lens, 2**31 - 1))
    out, lse = cascade(wild, num_seqs=jnp.array(4))
    wanted = attended(case)
    assert_like((out[:4], lse[:4]), (wanted[0][:4], wanted[1][:4]))
    assert not np.asarray(out[4:]).any()
    assert np.isneginf(lse[4:]).all()


def test_sinks_count_once_and_the_cap_and_the_scale_everywhere():
    case = draw(OWN, LEVELS["two_levels"], queries=(6,))
    options = {"softmax_aux": jnp.array([0.5, 3.0, -1.0, 2.0]), "logits_soft_cap": 1.5, "softmax_scale": 0.4}
    wanted = attended(case, scale=0.4, cap=1.5, sinks=np.array([0.5, 3.0, -1.0, 2.0]))
    assert_like(cascade(case, **options), wanted)


def test_codes_have_their_scales_in_every_part():
    case = draw(OWN, LEVELS["uneven_groups"], queries=(6,))
    scales = {"k_scale": jnp.array([0.01, 0.03]), "v_scale": jnp.array([0.02, 0.01])}
    codes = [
        np.nan_to_num(np.clip(np.round(x / np.asarray(scale)[:, None]), -127, 127)).astype(np.int8)
        for x, scale in zip((case.k_pages, case.v_pages), scales.values(), strict=True)
    ]
    coded = case._replace(k_pages=codes[0], v_pages=codes[1])
    wide = [x * np.asarray(scale, np.float32)[:, None] for x, scale in zip(codes, scales.values(), strict=True)]
    assert_like(cascade(coded, **scales), attended(case._replace(k_pages=wide[0], v_pages=wide[1])))


def test_keys_and_values_may_be_one_array():
    case = draw(OWN, LEVELS["equal_groups"], queries=(6,))
    k = np.stack([case.k_pages, case.v_pages], axis=3).reshape(*case.k_pages.shape[:2], -1, case.k_pages.shape[-1])
    assert_like(cascade(case._replace(k_pages=k, v_pages=None), layout="interleaved"), attended(case))


ENDS = np.array([0, 2, 10, 15, 15, 23, 24])


def test_prompts_and_chunks_are_those_over_whole_sequences():
    case = draw(OWN, LEVELS["two_levels"], queries=(26,))
    out, lse = cascade(case, cu_q_lens=ENDS)
    assert_like((out, lse), attended(case, ENDS))
    assert not np.asarray(out[24:]).any()
    assert np.isneginf(lse[24:]).all()


def test_prompts_of_sequences_from_num_seqs_on_count_for_nothing():
    case = draw(OWN, LEVELS["uneven_groups"], queries=(26,))
    wild = np.array([*ENDS[:5], 2**31 - 1, 0])
    found = cascade(case, cu_q_lens=wild, num_seqs=jnp.array(4))
    assert_like(found, attended(case, np.minimum(ENDS, 15)))


def test_16_bit_queries_give_16_bit_outputs():
    case = draw(OWN, LEVELS["uneven_groups"], queries=(6,))
    names = ("query", "k_pages", "v_pages")
    narrow = case._replace(**{name: getattr(case, name).astype(jnp.bfloat16) for name in names})
    out, lse = cascade(narrow)
    assert (out.dtype, lse.dtype) == (jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(np.asarray(out, np.float32), attended(case)[0], atol=3e-2)


def test_each_part_is_looked_up_as_what_it_is():
    case = draw(OWN, LEVELS["two_levels"], queries=(6,))
    asked = []
    remove = attn_tune.add_listener(lambda answer: asked.append(answer.signature))
    try:
        jax.eval_shape(lambda: cascade(case))
    finally:
        remove()
    # The own tokens, one prefix for all, three of them in tiles of the six sequences, and the merge.
    assert [text.split(" k=")[0] for text in asked] == [
        "paged_decode/v1 b=6 t=1 s=16 n=4",
        "paged_decode/v1 b=1 t=1 s=16 n=24",
        "paged_decode/v1 b=3 t=1 s=12 n=24",
        "merge_attention/v1 r=6 n=4 v=16 parts=3 dtype=float32",
    ]


# Its parts are calls of other ops, each of which has such a test.
@pytest.mark.slow
@pytest.mark.exhaustive
@kept("equal-Auto", "uneven-Explicit", "ragged-Auto", of=("equal", "uneven", "ragged"))
def test_sharded_heads_gather_no_cache(cases):
    assert run_with_devices(8, "-m", "tests.api.cascade_attention_sharded", *cases).split() == cases


@functools.cache
def plain():
    return draw(OWN, LEVELS["equal_groups"], queries=(6,))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"query": jnp.zeros((5, 4, 16))}, "query has a batch of 5 and kv_lens one of 6"),
        ({"query": jnp.zeros((0, 4, 16))}, r"query is empty, its shape is \(0, 4, 16\)"),
        ({"query": jnp.zeros((6, 16))}, r"query must be \[B, N, H\] or \[B, T, N, H\]"),
        ({"query": jnp.zeros((6, 9, 4, 16))}, "query has 9 new tokens"),
        ({"query": jnp.zeros((6, 3, 16))}, r"query heads \(3\) must be a multiple"),
        ({"query": jnp.zeros((6, 1, 4, 16)), "cu_q_lens": jnp.arange(7)}, r"query must be \[tokens, N, H\] with cu_q"),
        ({"cu_q_lens": jnp.arange(6)}, r"cu_q_lens must be integers \[7\]"),
        ({"page_table": None}, "page_table is missing: prefixes are shared by their pages"),
        ({"prefixes": ()}, "prefixes is empty: give a SharedPrefix, or call paged_decode"),
        ({"prefixes": jnp.zeros(3)}, "prefixes must be a SharedPrefix"),
        ({"num_seqs": 2.5}, "num_seqs must be an integer"),
        ({"max_prefix_len": 0}, "max_prefix_len must be a positive integer, got 0"),
        ({"platform": "cuda"}, "unknown kernel of paged_decode 'cuda'"),
        ({"platform": {"merge_attention": "cuda"}}, "unknown kernel of merge_attention 'cuda'"),
        ({"platform": {"merge": "xla"}}, "platform has the key 'merge'"),
    ],
)
def test_a_malformed_argument_is_named(change, words):
    c = plain()
    given = {"query": c.query, "k_pages": c.k_pages, "v_pages": c.v_pages, "kv_lens": c.kv_lens}
    given |= {"page_table": c.page_table, "prefixes": c.levels} | change
    with pytest.raises(UsageError, match=words):
        jax.eval_shape(lambda: attn_tune.cascade_attention(**given))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_lens": np.zeros((2, 2), np.int32)}, r"prefixes\[0\].kv_lens must be integers \[G\]"),
        ({"kv_lens": np.ones(4, np.int32)}, r"4 prefixes for 6 sequences; unequal groups need cu_seqs \[5\]"),
        ({"kv_lens": np.ones(3, np.int32)}, r"prefixes\[0\].page_table must be integers \[3, pages of a sequence\]"),
        ({"cu_seqs": np.zeros(2, np.int32)}, r"prefixes\[0\].cu_seqs must be integers \[3\]"),
    ],
)
def test_a_malformed_prefix_is_named(change, words):
    case = plain()
    with pytest.raises(UsageError, match=words):
        cascade(case._replace(levels=[case.levels[0]._replace(**change)]))


def test_a_window_and_a_derivative_are_refused_with_the_way_out():
    case = plain()
    with pytest.raises(UnsupportedError, match=r"sliding_window=3: of a shared prefix .* call paged_decode"):
        cascade(case, sliding_window=3)
    with pytest.raises(UnsupportedError, match=r"train with attn_tune\.flash_attention"):
        jax.grad(lambda q: cascade(case._replace(query=q))[0].sum())(jnp.asarray(case.query))
