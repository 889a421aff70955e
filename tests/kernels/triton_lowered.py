"""Lowers functions for CUDA on any machine, and reads back the launches in the module. Not a test itself."""

import functools
import zlib
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from attn_tune.kernels.lang.triton.compile import record_compiles
from attn_tune.kernels.lang.triton.target import compile_target
from attn_tune.ops.contract import load


def array(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


def lower(f, *arrays, capability=90):
    """The lowered module and what was compiled for it."""
    with compile_target(capability), record_compiles() as compiled:
        lowered = jax.jit(f).trace(*arrays).lower(lowering_platforms=("cuda",))
    return lowered, compiled


def launches(op, problem, search, config, *, direction="fwd", capability=90):
    """The launches of a kernel's call with a config, compiled for inputs as the op makes them."""
    made = functools.partial(load(op.inputs), problem, direction)
    call = functools.partial(load(search.call), problem, config)
    return lower(call, jax.eval_shape(made, jax.ShapeDtypeStruct((), jnp.int32)), capability=capability)[1]


@dataclass
class Message:
    """A protobuf message as its fields by number: integers, or bytes."""

    fields: dict[int, list[int | bytes]]

    @classmethod
    def parse(cls, data: bytes) -> "Message":
        fields, at = {}, 0

        def varint():
            nonlocal at
            value = shift = 0
            while True:
                byte, at = data[at], at + 1
                value, shift = value | (byte & 0x7F) << shift, shift + 7
                if byte < 0x80:
                    return value

        while at < len(data):
            number, kind = divmod(varint(), 8)
            assert kind in (0, 2), kind
            value = varint()
            if kind == 2:
                value, at = data[at : at + value], at + value
            fields.setdefault(number, []).append(value)
        return cls(fields)

    def __getitem__(self, number):
        return self.fields.get(number, [0])[0]


@dataclass
class Call:
    """One custom call of a lowered module, read back from the bytes that jaxlib's launcher gets."""

    name: str
    grid: tuple[int, int, int]
    parameters: int
    kernel: str
    num_warps: int
    shared_bytes: int
    ptx: bytes
    capability: int
    zeroed_bytes: list[int]


def _zeroed_bytes(parameter):
    # Parameter.array.bytes_to_zero
    return Message.parse(Message.parse(parameter)[1])[1]


def custom_calls(lowered):
    # Field numbers: jaxlib/gpu/triton.proto.
    calls = []

    def visit(op):
        if op.name == "stablehlo.custom_call":
            assert op.attributes["call_target_name"].value == "triton_kernel_call_ffi"
            opaque = op.attributes["mhlo.backend_config"]["opaque"]
            any_call = Message.parse(zlib.decompress(opaque.value_bytes))
            call = Message.parse(any_call[1])
            kernel = Message.parse(call[1])
            calls.append(
                Call(
                    name=any_call[4].decode(),
                    grid=(call[2], call[3], call[4]),
                    parameters=len(call.fields[5]),
                    kernel=kernel[1].decode(),
                    num_warps=kernel[2],
                    shared_bytes=kernel[3],
                    ptx=kernel[4],
                    capability=kernel[6],
                    zeroed_bytes=[_zeroed_bytes(parameter) for parameter in call.fields[5]],
                )
            )
        for region in op.regions:
            for block in region:
                for inner in block:
                    visit(inner.operation)

    visit(lowered.compiler_ir("stablehlo").operation)
    return calls
