"""A faster interpreter of Triton, for scripts that run many cases."""


def prepare_language_once() -> None:
    """Lets the interpreter patch Triton's language once, not at every device call, which is half of its time."""
    from triton import language
    from triton.runtime import interpreter

    prepare, prepared = interpreter._patch_lang, set()

    def prepare_once(fn):
        # What is patched are those of the two modules that the function's own module knows.
        modules = {id(v) for v in fn.__globals__.values() if v is language or v is language.core}
        if not modules <= prepared:
            prepared.update(modules)
            prepare(fn)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = prepare_once
