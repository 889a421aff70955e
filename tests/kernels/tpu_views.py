"""Views of references for Pallas' TPU interpreter, which indexes them but neither reshapes nor bitcasts them.

A view is an array of places: of each element the bytes of the buffer that it is made of. A change of the shape or of
the dtype changes that array, and so reads and writes need no other rule.
"""

import functools

import jax
import numpy as np
from jax._src.pallas.mosaic.interpret import interpret_pallas_call as interpreter
from jax._src.state import indexing
from jax._src.state.types import BitcastTransform, ReshapeTransform


def allow_views(monkeypatch):
    """Let the interpreter read and write through reshaped and bitcast references, whose races it does not see."""
    for name, view in {"get": _get, "store": _store, "swap": _swap}.items():
        monkeypatch.setattr(interpreter, name, _either(getattr(interpreter, name), view))


def _either(plain, view):
    """``plain`` for references that are indexed alone, else ``view``."""

    @functools.wraps(plain)
    def call(*args, function=plain, **kwargs):
        if all(isinstance(transform, indexing.NDIndexer) for transform in args[5]):
            return function(*args, **kwargs)
        return view(*args)

    # Copies take the function without its guard against errors.
    call.__wrapped__ = functools.partial(call, function=plain.__wrapped__)
    return call


def _get(token, device, core, space, buffer, transforms, *_):
    content, places, dtype = _viewed(device, core, space, buffer, transforms)
    return token, _read(content, places, dtype)


def _store(token, device, core, space, buffer, transforms, value, *_):
    content, places, _ = _viewed(device, core, space, buffer, transforms)
    _write(content, places, value)
    return token


def _swap(token, device, core, space, buffer, transforms, value, mask):
    assert mask is None
    content, places, dtype = _viewed(device, core, space, buffer, transforms)
    before = _read(content, places, dtype)
    _write(content, places, value)
    return token, before


def _read(content, places, dtype):
    return np.ascontiguousarray(content[places]).view(dtype)[..., 0]


def _write(content, places, value):
    value = np.ascontiguousarray(np.asarray(value))
    content[places] = value.reshape(places.shape[:-1])[..., None].view(np.uint8)


def _viewed(device, core, space, buffer, transforms):
    """The bytes of a buffer, the places in them of a view's elements, and their dtype."""
    memory = interpreter._get_shared_memory()
    space = interpreter.TPU_MEMORY_SPACE_NAMES[int(space)]
    core = interpreter._local_core_id_or_zero_if_hbm(int(core), space)
    array = memory.mem[space, int(buffer), int(device), core].content
    assert array.flags["C_CONTIGUOUS"]
    dtype = array.dtype
    places = np.arange(array.nbytes).reshape(*array.shape, dtype.itemsize)
    for transform in jax.tree.map(int, transforms):
        if isinstance(transform, ReshapeTransform):
            places = places.reshape(*transform.shape, dtype.itemsize)
        elif isinstance(transform, BitcastTransform):
            # Elements of several rows make one, or the other way round; the first is the lowest.
            places, dtype = _bitcast(places, np.dtype(transform.dtype)), np.dtype(transform.dtype)
        else:
            places = places[tuple(map(_index, transform.indices))]
    return array.reshape(-1).view(np.uint8), places, dtype


def _index(index):
    if not isinstance(index, indexing.Slice):
        return index
    stop = index.start + (index.size - 1) * index.stride + 1 if index.size else index.start
    return slice(index.start, stop, index.stride)


def _bitcast(places, dtype):
    *outer, rows, columns, size = places.shape
    if dtype.itemsize >= size:
        packed = dtype.itemsize // size
        parts = places.reshape(*outer, rows // packed, packed, columns, size)
        return parts.swapaxes(-3, -2).reshape(*outer, rows // packed, columns, dtype.itemsize)
    packed = size // dtype.itemsize
    parts = places.reshape(*outer, rows, columns, packed, dtype.itemsize)
    return parts.swapaxes(-3, -2).reshape(*outer, rows * packed, columns, dtype.itemsize)
