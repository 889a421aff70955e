"""Small problems that are hard to get right."""

from attn_tune.ops.fields.cache import LATENT
from attn_tune.ops.fields.cache_samples import FLOAT8, PAGES, samples_of, shrunk, two_key_heads, unsaid_window
from attn_tune.ops.fields.unusual_values import BITING_CAP, OTHER_SCALE
from attn_tune.ops.paged_decode.problem import Problem

# Ten sequences have every length of ``Problem.at_edges`` once; of more than one block of any kernel, and no multiple.
BATCH, LENGTH = 10, 389


def features(problem: Problem) -> tuple[Problem, ...]:
    """Variants of a problem on which a config of it must also be right.

    Flags, dtypes, layout, page size, head dims, groups and queries are the problem's own. Sequences are empty, of one
    token, as long as a page, longer than expected, and of impossible lengths; lengths are ragged, odd, or shorter than
    the queries. Windows and caps shrink until they bite. Without a window one problem has one that hides nothing of
    sequences as long as expected, which no signature says.
    """
    page = problem.page_size or 16
    short = 2 * page + 1
    return (
        shrunk(problem, LENGTH, batch=BATCH, at_edges=True),
        shrunk(problem, LENGTH, batch=BATCH, workload="uni", scale=OTHER_SCALE * problem.scale),
        shrunk(problem, short, batch=3, at_edges=True, **two_key_heads(problem)),
        shrunk(problem, 1, batch=1),
        *unsaid_window(problem, short, batch=BATCH, at_edges=True),
    )


def samples() -> dict[str, Problem]:
    """Tiny problems by name: each feature alone, then combinations that have gone wrong in real kernels."""
    tiny, common = samples_of(Problem, {"batch": BATCH, "q_len": 1})
    heads = {"num_q_heads": 10, "has_sinks": True, "soft_cap": BITING_CAP}
    latent = {"layout": LATENT, "num_q_heads": 6, "num_kv_heads": 1, "head_dim": 48, "scale": 0.2}
    return common | {
        "four_queries": tiny(q_len=4, **PAGES),
        "eight_queries": tiny(q_len=8, num_q_heads=10, **PAGES),
        "window_queries": tiny(window=11, q_len=4, **PAGES),
        "sinks_window_queries": tiny(has_sinks=True, window=19, q_len=3, **PAGES),
        "everything": tiny(kv_scale="token", q_len=3, window=23, **heads, **FLOAT8),
        "latent": tiny(**latent, **PAGES),
        "latent_contiguous": tiny(q_len=2, at_edges=True, **latent),
        "latent_large_pages": tiny(q_len=4, workload="exp", page_size=64, **latent),
        "latent_long": tiny(kv_len=LENGTH, **latent | {"scale": 0.6}, **PAGES),
        "latent_float32": tiny(dtype="float32", **latent, **PAGES),
        "latent_without_rope": tiny(**latent | {"head_dim": 32}, **PAGES),
        "latent_float8": tiny(kv_scale="tensor", **latent, **FLOAT8),
        "latent_everything": tiny(
            kv_scale="token", q_len=3, window=23, has_sinks=True, soft_cap=BITING_CAP, **latent, **FLOAT8
        ),
    }
