"""Checks of the arguments that public ops over a cache share."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from attn_tune.ops.contract import Workload
from attn_tune.ops.fields.arguments import check_array, check_not_empty
from attn_tune.ops.fields.cache import CODES, JOINT, LATENT, LAYOUTS, SAME, axes, sizes_of
from attn_tune.ops.fields.integers import as_integer, saturated, window_bound
from attn_tune.schema.errors import UsageError, shown, unknown_name

# Letters of the axes of a cache in declarations of calls.
LETTERS = {"page": "p", "slot": "s", "head": "k"}


def cache_letters(layout: str, *, is_paged: bool) -> str:
    """The letters of a cache's axes but the last; the pages of one without a table are its sequences."""
    letters = LETTERS if is_paged else LETTERS | {"page": "b"}
    return "".join(letters[axis] for axis in axes(layout))


def remedy(layout: str, *, cuts_sequences: bool) -> str:
    """The advice of messages on a cache that is sharded along another axis than it can be cut along."""
    if layout == "interleaved":
        return "it has to be whole on each device; keep keys and values apart (layout 'nhd') to shard heads"
    apart = "shard heads or sequences" if cuts_sequences else "shard heads"
    return f"it has to be whole on each device; {apart} instead, or call it in jax.shard_map, each device with its own"


def check_count(name: str, given: Any) -> Int[Array, ""]:
    """A number of sequences: a Python integer, or an array of one.

    Raises:
      UsageError: it is something else.
    """
    array = check_array(name, saturated(given))
    if array.size != 1 or not jnp.issubdtype(array.dtype, jnp.integer):
        raise UsageError(f"{name} must be an integer, or an array of one, got {shown(given)}")
    return array.reshape(())


def check_caches(
    k_pages: Any, v_pages: Any, layout: str, *, dtype: Any, whose: str, sequences: int | None
) -> tuple[Array, Array | None]:
    """Both caches as arrays that fit each other.

    Args:
      dtype: the dtype that they have unless they hold codes.
      whose: the argument that has it, for messages.
      sequences: how many a contiguous cache must have; None for a paged one.

    Raises:
      UsageError: an unknown layout, a missing or superfluous array, or shapes or dtypes that do not fit.
    """
    if layout not in LAYOUTS and layout != LATENT:
        raise unknown_name("layout", str(layout), LAYOUTS)
    if (v_pages is None) != (layout in JOINT):
        wanted = "must be None: k_pages holds them" if v_pages is not None else "is missing"
        raise UsageError(f"v_pages {wanted} (layout {layout!r})")
    k, v = check_array("k_pages", k_pages), None if v_pages is None else check_array("v_pages", v_pages)
    for name, cache in (("k_pages", k), ("v_pages", v)):
        if cache is None:
            continue
        if cache.ndim != 4 or 0 in cache.shape:
            wanted = f"four axes ({', '.join(axes(layout))}, width), none of them empty"
            raise UsageError(f"{name} must have {wanted}, got shape {cache.shape}")
        if cache.dtype != dtype and cache.dtype.name not in CODES:
            raise UsageError(f"{name} must be {dtype} as {whose}, or {' or '.join(CODES)}, got {cache.dtype}")
    if v is not None and (k.shape[:3] != v.shape[:3] or k.dtype != v.dtype):
        raise UsageError(
            f"k_pages and v_pages must agree in dtype and all axes but the last, got {k.dtype}{list(k.shape)} and "
            f"{v.dtype}{list(v.shape)}"
        )
    if layout == "interleaved" and k.shape[2] % 2:
        raise UsageError(f"k_pages of layout 'interleaved' must have an even number of heads, got shape {k.shape}")
    found = sizes_of(layout, k.shape)["page"]
    if sequences is not None and found != sequences:
        raise UsageError(
            f"k_pages has {found} sequences in layout {layout!r}, not {sequences}; a cache in pages needs page_table"
        )
    return k, v


def check_integers(name: str, given: Any, shape: tuple[int | None, ...], beside: str = "kv_lens") -> Int[Array, "..."]:
    """An array of int32 with this shape; None is any size of a row of a page table.

    The number of sequences in ``shape`` is that of the argument ``beside``, which the message names unless it is this.

    Raises:
      UsageError: another shape, no integers, or no elements.
    """
    array = check_not_empty(name, check_array(name, saturated(given)))
    fits = array.ndim == len(shape) and all(n in (None, size) for n, size in zip(shape, array.shape, strict=True))
    if not fits or not jnp.issubdtype(array.dtype, jnp.integer):
        wanted = ", ".join("pages of a sequence" if n is None else str(n) for n in shape)
        reason = f" beside {beside}" if beside != name else ""
        raise UsageError(f"{name} must be integers [{wanted}]{reason}, got {array.dtype}{list(array.shape)}")
    return array.astype(jnp.int32)


def check_ends(
    name: str,
    given: Any,
    shape: tuple[int, ...],
    beside: str = "kv_lens",
    *,
    most: tuple[int, str],
    num_seqs: Any = None,
    from_zero: bool = True,
) -> Int[Array, " ends"]:
    """Beginnings of sequences that lie end to end, and the end of the last, as ``check_integers``.

    What Python or numpy holds must not decrease, as far as ``num_seqs`` says that sequences count, must begin with 0 if
    it is to be ``from_zero``, and must end within ``most``: a number, and what is counted. What JAX holds is on the
    device and is not looked at. ``num_seqs`` has passed ``check_count``.

    Raises:
      UsageError: as ``check_integers``, or an end comes before the one that it follows, the first is not 0, or the last
        is beyond ``most``.
    """
    ends = check_integers(name, given, shape, beside)
    if _is_on_host((given, num_seqs)):
        counted = None if num_seqs is None else np.asarray(num_seqs).item()
        known = np.asarray(given)[: None if counted is None else max(counted, 0) + 1]
        if (at := np.flatnonzero(known[1:] < known[:-1])).size:
            raise UsageError(f"{name} must not decrease, got {known[at[0] + 1]} after {known[at[0]]}")
        if from_zero and known[0] != 0:
            raise UsageError(f"{name} must begin with 0, got {known[0]}: {most[1]} before it would belong to none")
        if known[0] < 0:
            raise UsageError(f"{name} must not begin before 0, got {known[0]}")
        if known[-1] > most[0]:
            raise UsageError(f"{name} ends at {known[-1]}, but there are {most[0]} {most[1]}")
    return ends


def _is_on_host(given: Any) -> bool:
    """Whether Python or numpy holds all of it."""
    return all(isinstance(leaf, int | float | np.generic | np.ndarray) for leaf in jax.tree.leaves(given))


def check_factors(name: str, given: Any) -> None:
    """Check factors of codes that Python or numpy holds. Those of JAX are on the device and are not looked at.

    Raises:
      UsageError: one is zero, negative or not finite.
    """
    if not _is_on_host(given):
        return
    with np.errstate(over="ignore"):  # they are float32 in the end
        known = np.asarray(given).astype(np.float32)
    if not (np.isfinite(known) & (known > 0)).all():
        raise UsageError(f"{name} must be positive and finite in float32, got {shown(given)}")


def check_scales(
    kv_dtype: str, layout: str, k: Array, given: tuple[Any, Any]
) -> tuple[str, tuple[Array | None, Array | None]]:
    """The kind of scales, and both as float32.

    Raises:
      UsageError: one is missing, the cache has no codes, a shape that no kind has, or a factor that ``check_factors``
        refuses.
    """
    if (given[0] is None) != (given[1] is None):
        raise UsageError(f"{'v_scale' if given[1] is None else 'k_scale'} is missing: give both scales, or none")
    if given[0] is None and kv_dtype == "int8":
        raise UsageError("k_scale and v_scale are missing: a cache of int8 needs them, as paged_append returns them")
    if given[0] is None:
        return "none", (None, None)
    if kv_dtype == SAME:
        raise UsageError(f"k_scale and v_scale belong to a cache of {' or '.join(CODES)}, not of {k.dtype}")
    sizes = sizes_of(layout, k.shape)
    tokens = tuple(sizes[axis] for axis in axes(layout))
    kinds = {(): "tensor", (sizes["head"],): "head", tokens: "token"}
    scales = tuple(
        check_array(name, scale).astype(jnp.float32) for name, scale in zip(("k_scale", "v_scale"), given, strict=True)
    )
    for name, scale in zip(("k_scale", "v_scale"), scales, strict=True):
        if scale.shape not in kinds:
            raise UsageError(f"{name} must be one number, [{sizes['head']}] or {list(tokens)}, got {list(scale.shape)}")
    if scales[0].shape != scales[1].shape:
        raise UsageError(f"k_scale and v_scale must have one shape, got {scales[0].shape} and {scales[1].shape}")
    kind = kinds[scales[0].shape]
    for name, scale in zip(("k_scale", "v_scale"), given, strict=True):
        # Those of tokens that no query sees may be anything.
        if kind != "token":
            check_factors(name, scale)
    return kind, (scales[0], scales[1])


def check_heads(query: Array, k: Array, layout: str) -> None:
    """Check the heads of queries ``[..., N, H]`` beside those of a cache.

    Raises:
      UsageError: another head dim, or a number of heads that is no multiple.
    """
    heads, (num_q_heads, head_dim) = sizes_of(layout, k.shape)["head"], query.shape[-2:]
    if k.shape[3] != head_dim:
        raise UsageError(f"query and k_pages must have one head dim, got {head_dim} and {k.shape[3]}")
    if num_q_heads % heads:
        raise UsageError(
            f"query heads ({num_q_heads}) must be a multiple of key/value heads ({heads} in layout {layout!r})"
        )


def check_workload(workload: Any, workloads: Iterable[Workload]) -> None:
    """Check the name of the profile that a caller expects of the lengths.

    Raises:
      UsageError: it is no text, or the op has none of this name.
    """
    known = [w.name for w in workloads]
    if not isinstance(workload, str):
        raise UsageError(f"workload must be one of {', '.join(known)}, got {shown(workload)}")
    if workload not in known:
        raise unknown_name("workload", workload, known)


def check_window(window: int | None) -> int | None:
    """The window; one of 2**30 tokens or more hides nothing and is None.

    Raises:
      UsageError: no number of tokens, nor None.
    """
    tokens = as_integer(window)
    if window is not None and (tokens is None or tokens < 0):
        raise UsageError(f"sliding_window must be a number of tokens, 0 or more, or None, got {shown(window)}")
    return None if tokens is None else window_bound(tokens)


def count_sequences(kv_lens: Any) -> int:
    """The number of sequences.

    Raises:
      UsageError: no array of one axis, or no sequence.
    """
    shape = check_not_empty("kv_lens", check_array("kv_lens", kv_lens)).shape
    if len(shape) != 1:
        raise UsageError(f"kv_lens must be integers [B], got shape {shape}")
    return shape[0]


def first_sequences(num_seqs: Any, kv_lens: Int[Array, " B"]) -> Int[Array, " B"]:
    """Lengths where sequences from ``num_seqs`` on are empty; None is all.

    Raises:
      UsageError: ``num_seqs`` is no integer.
    """
    if num_seqs is None:
        return kv_lens
    return jnp.where(jnp.arange(kv_lens.shape[0]) < check_count("num_seqs", num_seqs), kv_lens, 0)


def first_ends(num_seqs: Any, cu_q_lens: Int[Array, " ends"]) -> Int[Array, " ends"]:
    """Ends of sequences where those from ``num_seqs`` on have no new tokens; None is all.

    Raises:
      UsageError: ``num_seqs`` is no integer.
    """
    if num_seqs is None:
        return cu_q_lens
    count, ends = check_count("num_seqs", num_seqs), cu_q_lens.shape[0]
    return jnp.where(jnp.arange(ends) <= count, cu_q_lens, cu_q_lens[jnp.clip(count, 0, ends - 1)])
