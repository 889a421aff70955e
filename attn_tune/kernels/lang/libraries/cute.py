"""NVIDIA's CuTe DSL below JAX: the GPU it compiles for.

``cutlass.jax`` compiles a function of the DSL while JAX lowers the call, and puts the object file into the program. Its
compiler asks for no device.
"""


def compile_for(architecture: str) -> None:
    """Compile for ``architecture`` ("sm_90a") from here on; a process that has no GPU would take another by default.

    It is a setting of the process: calls are compiled when they are lowered, outside of any context of their tracing.
    """
    from cutlass.cutlass_dsl import CuTeDSL

    settings = CuTeDSL._get_dsl().envar
    if settings.arch != architecture:
        settings.arch = architecture
