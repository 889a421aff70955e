"""Cascades over sharded heads on eight devices; prints each that is right and gathers nothing. A script."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import attn_tune
from tests.api.cascades import assert_like, attended, draw
from tests.api.sharded_cases import asked_for

OWN = [3, 5, 1, 4]
ENDS = np.array([0, 1, 6, 7, 9])
CASES = {
    "equal": draw(OWN, [([9, 6], None)], queries=(4,), heads=16, kv_heads=8),
    "uneven": draw(OWN, [([7], None), ([5, 3], [1, 2])], queries=(4,), heads=16, kv_heads=8),
    "ragged": draw([max(n, 5) for n in OWN], [([9, 6], [3, 1])], queries=(10,), heads=16, kv_heads=8),
}


def main():
    for name, axis_type in asked_for():
        case, ends = CASES[name], jnp.asarray(ENDS) if name == "ragged" else None
        mesh = jax.make_mesh((8,), ("x",), axis_types=(axis_type,))
        cache = NamedSharding(mesh, P(None, None, "x", None))
        with jax.set_mesh(mesh):
            query = jax.device_put(case.query, NamedSharding(mesh, P(None, "x", None)))
            pages = [jax.device_put(x, cache) for x in (case.k_pages, case.v_pages)]
            rest = jax.device_put((case.kv_lens, case.page_table, case.levels, ends), NamedSharding(mesh, P()))

            def attend(query, pages, rest):
                kv_lens, table, levels, ends = rest
                return attn_tune.cascade_attention(
                    query, *pages, kv_lens, table, levels, cu_q_lens=ends, return_lse=True
                )

            compiled = jax.jit(attend).lower(query, pages, rest).compile()
            out, lse = compiled(query, pages, rest)
        assert "all-gather" not in compiled.as_text()
        assert "x" in tuple(out.sharding.spec), out.sharding
        assert_like((np.asarray(out), np.asarray(lse)), attended(case, None if ends is None else ENDS))
        print(f"{name}-{axis_type.name}")


if __name__ == "__main__":
    main()
