"""NVIDIA's CuTe DSL below JAX: the GPU it compiles for, and the versions of what is written in it.

``cutlass.jax`` compiles a function of the DSL while JAX lowers the call, and puts the object file into the program. Its
compiler asks for no device.
"""

import functools
import importlib.metadata


def compile_for(architecture: str) -> None:
    """Compile for ``architecture`` ("sm_90a") from here on; a process that has no GPU would take another by default.

    It is a setting of the process: calls are compiled when they are lowered, outside of any context of their tracing.
    """
    from cutlass.cutlass_dsl import CuTeDSL

    settings = CuTeDSL._get_dsl().envar
    if settings.arch != architecture:
        settings.arch = architecture


@functools.cache
def wrong_version(library: str, least: tuple[int, ...], below: tuple[int, ...], extra: str) -> str | None:
    """The reason that the installed ``library`` cannot be used, with what installs one that can; None if it can."""
    remedy = f"pip install 'attn-tune[{extra}]'"
    try:
        version = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return f"{library} is not installed; {remedy}"
    parts = tuple(int(part) for part in version.split(".")[: len(least)] if part.isdigit())
    if least <= parts < below:
        return None
    first, end = (".".join(map(str, number)) for number in (least, below))
    return f"{library} {version} is not known, {first} and later below {end} are; {remedy}"
