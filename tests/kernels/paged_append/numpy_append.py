"""Updates of a cache in numpy, one token after the other; shares no code with the op, its reference or a kernel."""

import numpy as np

_LARGEST = {"float8_e4m3fn": 448, "int8": 127}


def at(layout, page, slot):
    """The index of a token's rows, ``[heads, ...]``."""
    return {"hnd": (page, slice(None), slot), "head_first": (slice(None), page, slot)}.get(layout, (page, slot))


def places(problem, operands):
    """``(number of the token, page, slot)`` of every token that is stored."""
    o = operands
    lengths = np.asarray(o.kv_lens).tolist()
    if o.cu_q_lens is None:
        starts = [i * o.new_k.shape[1] for i in range(len(lengths) + 1)]
    else:
        starts = np.asarray(o.cu_q_lens).tolist()
    axes = {"hnd": (0, 2), "head_first": (1, 2)}.get(problem.layout, (0, 1))
    pages, slots = (o.k.shape[axis] for axis in axes)
    table = None if o.page_table is None else np.asarray(o.page_table).tolist()
    for row, length in enumerate(lengths):
        for token in range(starts[row], starts[row + 1]):
            position = length - (starts[row + 1] - token)
            columns = [row] if table is None else table[row]
            if 0 <= position < slots * len(columns) and 0 <= columns[position // slots] < pages:
                yield token, columns[position // slots], position % slots


def append(problem, operands):
    """The caches and scales after the call, by name; and quotients that nothing has rounded where codes are written."""
    p, o = problem, operands
    joint = p.layout == "interleaved"
    names = ("k", "v", "k_scale", "v_scale")
    caches = {name: np.array(getattr(o, name)) for name in names if getattr(o, name) is not None}
    quotients = {name: np.full(caches[name].shape, np.nan) for name in ("k", "v") if name in caches}
    new = {name: np.asarray(x).reshape(-1, *x.shape[-2:]) for name, x in (("k", o.new_k), ("v", o.new_v))}
    for token, page, slot in places(p, o):
        for half, name in enumerate(("k", "v")):
            row, scale = new[name][token], None
            place = (page, slot, slice(half, None, 2)) if joint else at(p.layout, page, slot)
            cache = "k" if joint else name
            if p.kv_dtype != "same":
                largest = _LARGEST[p.kv_dtype]
                wide = row.astype(np.float32)
                if p.kv_scale == "token":
                    scale = np.maximum(np.abs(wide).max(-1), np.float32(2.0**-60)) / np.float32(largest)
                    wide = wide / scale[:, None]
                elif p.kv_scale != "none":
                    given = caches[f"{name}_scale"]
                    wide = wide / (given[:, None] if p.kv_scale == "head" else given)
                wide = np.clip(wide, -largest, largest)
                row = (np.rint(wide) if p.kv_dtype == "int8" else wide).astype(caches["k"].dtype)
                quotients[cache][place] = wide
            caches[cache][place] = row
            if scale is not None:
                caches[f"{name}_scale"][at("nhd" if joint else p.layout, page, slot)] = scale
    return caches, quotients


def assert_right(problem, operands, outputs):
    """Every byte of every output; of codes whose scale is made, the nearest ones, of which there may be two."""
    wanted, quotients = append(problem, operands)
    names = ["k"] if problem.layout == "interleaved" else ["k", "v"]
    names += ["k_scale", "v_scale"] if problem.kv_scale == "token" else []
    assert sorted(outputs) == sorted(names)
    for name in names:
        found, right = np.asarray(outputs[name]), wanted[name]
        assert found.dtype == right.dtype
        assert found.shape == right.shape
        same = (found.view(np.uint8) == right.view(np.uint8)).reshape(*found.shape, -1).all(-1)
        if problem.kv_scale == "token":
            # Quotients differ in their last bits: a compiler may multiply by a reciprocal.
            if name in quotients:
                exact = quotients[name]
                off, least = (np.abs(x.astype(np.float64) - exact) for x in (found, right))
                near = off <= least * 1.0001 + 1e-5 * np.abs(exact)
            else:
                near = ~np.isnan(right) & (np.abs(found - right) <= 1e-6 * right)
                near &= right != np.asarray(getattr(operands, name))
            same |= near
        assert same.all(), f"{name}: {(~same).sum()} of {same.size} elements differ"
