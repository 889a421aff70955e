"""A faster interpreter of Triton, for scripts that run many cases."""

import dataclasses
import sys


def name_of(case) -> str:
    """The name of a case: itself, or the words of a tuple."""
    return case if isinstance(case, str) else " ".join(map(str, case))


def asked_for(cases) -> list:
    """Those of ``cases`` whose names are the arguments of this process; all if it has none."""
    return [case for case in cases if not sys.argv[1:] or name_of(case) in sys.argv[1:]]


def prepare_language_once() -> None:
    """Lets the interpreter leave out four things that take three quarters of its time and change no result.

    It patches Triton's language once, not at every device call. It computes no test for overflow of integers, whose
    result it would throw away: only in debug mode is there an assertion. It finds the numpy dtype of a type once, and
    checks and writes out a shape once. What counts a loop is a tensor, as in compiled code, and no Python integer.
    """
    from triton import language
    from triton.runtime import interpreter

    prepare, prepared = interpreter._patch_lang, set()

    def prepare_once(fn):
        # What is patched are those of the two modules that the function's own module knows.
        modules = {id(v) for v in fn.__globals__.values() if v is language or v is language.core}
        if not modules <= prepared:
            prepared.update(modules)
            prepare(fn)
            language.range = _counted
        return interpreter._LangPatchScope()

    interpreter._patch_lang = prepare_once
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    find, found = interpreter._get_np_dtype, {}

    def find_once(tt_dtype):
        if tt_dtype.name not in found:
            found[tt_dtype.name] = find(tt_dtype)
        return found[tt_dtype.name]

    interpreter._get_np_dtype = find_once
    _make_shapes_once(language.core)


def _counted(start, stop=None, step=None, **hints):
    import numpy as np
    from triton import language
    from triton.runtime import interpreter

    bounds = (int(bound) for bound in (start, stop, step) if bound is not None)
    for number in range(*bounds):
        yield language.tensor(interpreter.TensorHandle(np.array([number], np.int32), language.int32), language.int32)


def _make_shapes_once(core) -> None:
    """Lets types of blocks of one shape and element share what they say, and so the tensors of one type."""
    of_types, of_tensors = {}, {}
    make_type, make_tensor = core.block_type.__init__, core.tensor.__init__

    def type_once(self, element_ty, shape):
        key = (type(element_ty), element_ty.name, *(getattr(size, "value", size) for size in shape))
        if key not in of_types:
            make_type(self, element_ty, shape)
            of_types[key] = dict(vars(self), key=key)
        vars(self).update(of_types[key])

    def tensor_once(self, handle, type):
        key = vars(type).get("key")
        if key not in of_tensors:
            make_tensor(self, handle, type)
            if key is not None:
                of_tensors[key] = {name: x for name, x in vars(self).items() if name not in ("handle", "type")}
            return
        vars(self).update(of_tensors[key], handle=handle, type=type)

    core.block_type.__init__, core.tensor.__init__ = type_once, tensor_once
