"""Small problems that are hard to get right."""

from attn_tune.ops.fields.cache import BLOCK, LATENT
from attn_tune.ops.fields.cache_samples import FLOAT8, PAGES, samples_of, shrunk, two_key_heads, unsaid_window
from attn_tune.ops.fields.unusual_values import BITING_CAP, OTHER_SCALE
from attn_tune.ops.ragged_paged.problem import Problem

# Sequences have every length of ``Problem.at_edges`` once; of more than one block of any kernel, and no multiple.
BATCH, LENGTH, TOKENS = 13, 389, 150


def features(problem: Problem) -> tuple[Problem, ...]:
    """Variants of a problem on which a config of it must also be right.

    Flags, dtypes, layout, page size, head dims and groups are the problem's own. Sequences are empty, without new
    tokens, of one token, whole prompts and chunks, longer than expected, with more new tokens than they have; some
    queries are padding, and there are as many queries as sequences. Windows and caps shrink until they bite. Without a
    window one problem has one that hides nothing of sequences as long as expected, which no signature says.
    """
    page = problem.page_size or 16
    short = 2 * page + 1
    return (
        shrunk(problem, LENGTH, batch=BATCH, tokens=TOKENS, at_edges=True),
        shrunk(problem, LENGTH, batch=BATCH, tokens=LENGTH, workload="mix", scale=OTHER_SCALE * problem.scale),
        shrunk(problem, short, batch=BATCH, tokens=BATCH, at_edges=True, **two_key_heads(problem)),
        shrunk(problem, 1, batch=1, tokens=1),
        *(unsaid_window(problem, short, batch=BATCH, tokens=page + 3, at_edges=True) if problem.causal else ()),
    )


def samples() -> dict[str, Problem]:
    """Tiny problems by name: each feature alone, then combinations that have gone wrong in real kernels."""
    tiny, common = samples_of(Problem, {"batch": BATCH, "tokens": 60})
    heads = {"num_q_heads": 10, "has_sinks": True, "soft_cap": BITING_CAP}
    latent = {"layout": LATENT, "num_q_heads": 6, "num_kv_heads": 1, "head_dim": 48, "scale": 0.2}
    return common | {
        "prompts": tiny(tokens=77 * BATCH, page_size=8),
        "decodes": tiny(tokens=BATCH, page_size=8, workload="mix"),
        "mixed": tiny(workload="mix", page_size=8),
        "window_queries": tiny(window=11, tokens=90, **PAGES),
        "sinks_window_queries": tiny(has_sinks=True, window=19, tokens=40, **PAGES),
        "not_causal": tiny(causal=False, tokens=90, **PAGES),
        "not_causal_contiguous": tiny(causal=False, workload="uni"),
        "not_causal_mixed": tiny(causal=False, workload="mix", has_sinks=True, **FLOAT8, kv_scale="token"),
        "queries_float8": tiny(q_scale="token", kv_scale="tensor", **FLOAT8),
        "queries_float8_mixed": tiny(q_scale="tensor", workload="mix", has_sinks=True, **{**FLOAT8, "at_edges": False}),
        "queries_int8": tiny(q_scale="token", kv_dtype="int8", kv_scale="head", window=19, tokens=90, **PAGES),
        "queries_int8_contiguous": tiny(
            q_scale="tensor", kv_dtype="int8", kv_scale="tensor", causal=False, workload="uni"
        ),
        "queries_everything": tiny(
            q_scale="token", kv_scale="token", window=23, layout="interleaved", dtype="float16", **heads, **FLOAT8
        ),
        "everything": tiny(kv_scale="token", window=23, **heads, **FLOAT8),
        "latent": tiny(**latent, **PAGES),
        "latent_contiguous": tiny(at_edges=True, **latent),
        "latent_mixed": tiny(workload="mix", page_size=64, **latent),
        "latent_float32": tiny(dtype="float32", causal=False, **latent, **PAGES),
        "latent_without_rope": tiny(**latent | {"head_dim": 32}, **PAGES),
        "latent_float8": tiny(kv_scale="tensor", **latent, **FLOAT8),
        "latent_blocks": tiny(kv_scale=BLOCK, **latent | {"head_dim": 144, "v_head_dim": 128, "scale": 0.03}, **FLOAT8),
        "latent_blocks_everything": tiny(
            kv_scale=BLOCK,
            has_sinks=True,
            window=23,
            soft_cap=BITING_CAP,
            dtype="float16",
            **latent | {"head_dim": 256, "v_head_dim": 256, "scale": 0.05},
            **FLOAT8,
        ),
        "latent_everything": tiny(
            kv_scale="token", window=23, has_sinks=True, soft_cap=BITING_CAP, tokens=90, **latent, **FLOAT8
        ),
    }
