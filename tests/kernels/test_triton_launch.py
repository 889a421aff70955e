"""Calls that do not fit the kernel's parameters, refused in one sentence when tracing."""

import re
import subprocess
import sys

import jax.numpy as jnp
import pytest
import triton
import triton.language as tl

from attn_tune.kernels.lang.triton.call import triton_call
from attn_tune.schema.errors import UnsupportedError, UsageError
from tests.kernels.triton_lowered import lower


@triton.jit
def add_kernel(x, y, out, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    pass


@triton.jit
def constant_first_kernel(LENGTH: tl.constexpr, x, out):
    pass


BAD_CALLS = {
    "has 3 pointer parameters (x, y, out) but was given 2 operands and outputs": (
        add_kernel,
        1,
        {"LENGTH": 4, "BLOCK": 4},
        (1,),
    ),
    "has no constexpr 'LENGHT'; it has: LENGTH, BLOCK": (
        add_kernel,
        2,
        {"LENGHT": 4, "BLOCK": 4},
        (1,),
    ),
    "needs the constexpr 'BLOCK', which has no default": (
        add_kernel,
        2,
        {"LENGTH": 4},
        (1,),
    ),
    "constexpr 'BLOCK' of kernel 'add_kernel' is a object": (
        add_kernel,
        2,
        {"LENGTH": 4, "BLOCK": object()},
        (1,),
    ),
    "grid axis y is 70000, outside 1 to 65535": (
        add_kernel,
        2,
        {"LENGTH": 4, "BLOCK": 4},
        (1, 70_000),
    ),
    "grid axis x is 0, outside 1 to": (add_kernel, 2, {"LENGTH": 4, "BLOCK": 4}, (0,)),
    "a grid has 1 to 3 axes, not 4": (
        add_kernel,
        2,
        {"LENGTH": 4, "BLOCK": 4},
        (1, 1, 1, 1),
    ),
    "'LENGTH' stands before a pointer": (constant_first_kernel, 1, {"LENGTH": 4}, (1,)),
    "is not a Triton kernel; decorate it with triton.jit": (len, 1, {}, (1,)),
}


@pytest.mark.parametrize("sentence", BAD_CALLS)
def test_a_call_that_does_not_fit(sentence):
    kernel, operands, constexprs, grid = BAD_CALLS[sentence]
    x = jnp.zeros(4)
    with pytest.raises(UsageError, match=re.escape(sentence)):
        triton_call(kernel, *[x] * operands, out_types=[x], grid=grid, constexprs=constexprs)


BAD_ALIASES = {
    "kernel 'add' has no operand 2 to update in place": ({2: 0}, (False,), 4),
    "kernel 'add' has no operand 1 to update in place": ({1: 0}, (False,), 4),
    "kernel 'add' has 1 outputs, and none with number 1": ({0: 1}, (False,), 4),
    "kernel 'add' cannot start output 0 at zero: it holds operand 0": ({0: 0}, (True,), 4),
    "cannot make output 0, float32[5], in place of an operand that is float32[4]": (
        {0: 0},
        (False,),
        5,
    ),
}


@pytest.mark.parametrize("sentence", BAD_ALIASES)
def test_an_operand_that_cannot_be_updated_in_place(sentence):
    aliases, zeroed, length = BAD_ALIASES[sentence]
    with pytest.raises(UsageError, match=re.escape(sentence)):
        triton_call(
            add_kernel,
            jnp.zeros(4),
            None,
            out_types=[jnp.zeros(length)],
            grid=(1,),
            constexprs={"LENGTH": 4, "BLOCK": 4},
            name="add",
            zeroed=zeroed,
            input_output_aliases=aliases,
        )


@pytest.mark.parametrize(("cluster", "programs", "ctas"), [(3, 4, 1), (16, 16, 1), (0, 4, 1), (2, 4, 2)])
def test_a_cluster_that_does_not_fit_the_grid(cluster, programs, ctas):
    sentence = f"cannot have cluster={cluster} on a grid of {programs} with num_ctas={ctas}"
    with pytest.raises(UsageError, match=re.escape(sentence)):
        triton_call(
            add_kernel,
            *[jnp.zeros(4)] * 2,
            out_types=[jnp.zeros(4)],
            grid=(programs,),
            constexprs={"LENGTH": 4, "BLOCK": 4},
            num_ctas=ctas,
            cluster=cluster,
        )


def test_clusters_are_refused_where_no_device_has_them():
    def call(x):
        sizes = {"LENGTH": 4, "BLOCK": 4}
        return triton_call(add_kernel, x, x, out_types=[x], grid=(2,), constexprs=sizes, cluster=2)

    with pytest.raises(UnsupportedError, match="kernel 'add_kernel' needs clusters, which sm_89 does not have"):
        lower(call, jnp.zeros(4), capability=89)


def test_compile_errors_are_known_without_jax_or_triton():
    program = (
        "import sys, attn_tune.kernels.lang.triton.compile as t; t.OutOfResources, t.CompileError; "
        "sys.exit(', '.join({'jax', 'triton', 'numpy'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
