"""A loss over a vocabulary: a scalar, the best words of each token as integers, and gradients."""

from dataclasses import dataclass

import probe_common as common

from attn_tune.ops.contract import Axis, Op, Operand, Output, OutputKind

NAME = "probe_loss"
FIELDS = (
    common.size("t", "tokens"),
    common.exact("h", "width of a token"),
    common.size("w", "words"),
    common.exact("top", "words chosen"),
    common.exact("dtype", "dtype of the operands", is_int=False),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem(common.Sizes):
    NAME = NAME
    FIELDS = FIELDS

    t: int
    h: int
    w: int
    top: int
    dtype: str = "float32"


def outputs(problem, direction):
    if direction == "fwd":
        loss = Output(name="loss", kind=OutputKind.SCALAR, working_dtype=problem.dtype)
        return (loss, Output(name="best", kind=OutputKind.INDEX, scores="logits"))
    return (
        Output(name="grad_x", kind=OutputKind.GRADIENT, of="x"),
        Output(name="grad_words", kind=OutputKind.GRADIENT, of="words"),
    )


def operands(problem, direction):
    p = problem
    return (
        Operand(name="x", shape=(p.t, p.h), dtype=p.dtype, differentiable=True),
        Operand(name="words", shape=(p.w, p.h), dtype=p.dtype, differentiable=True),
        Operand(name="labels", shape=(p.t,), dtype="int32"),
    )


OP = Op(
    name=NAME,
    version=1,
    directions=("fwd", "bwd"),
    fields=FIELDS,
    problem=Problem,
    outputs=outputs,
    operands=operands,
    flops=lambda p, direction: (2 if direction == "fwd" else 6) * p.t * p.h * p.w,
    bytes_moved=lambda p, direction: 4 * (p.t + p.w) * p.h,
    inputs="probe_loss:make_inputs",
    reference="probe_loss:reference",
    baseline="probe_loss:baseline",
    features="probe_loss:features",
    axes=(Axis(field="t"),),
    summary="cross entropy and the best words",
)


def features(problem):
    """One token, and an odd number of them."""
    return tuple(common.small(problem, t=t, w=max(problem.top, 67)) for t in (1, 29))


def make_inputs(problem, direction, seed):
    import jax
    import jax.numpy as jnp

    p, dtype = problem, jnp.dtype(problem.dtype)
    keys = jax.random.split(jax.random.key(seed), 3)
    return {
        "x": jax.random.normal(keys[0], (p.t, p.h)).astype(dtype),
        "words": jax.random.normal(keys[1], (p.w, p.h)).astype(dtype),
        "labels": jax.random.randint(keys[2], (p.t,), 0, p.w),
    }


def reference(problem, direction, inputs):
    import jax
    import jax.numpy as jnp

    x, words = (inputs[n].astype(jnp.float32) for n in ("x", "words"))
    logits = jnp.matmul(x, words.T, precision="highest") * problem.h**-0.5
    right = jax.nn.one_hot(inputs["labels"], problem.w)
    if direction == "fwd":
        loss = jnp.mean(jax.nn.logsumexp(logits, axis=-1) - jnp.sum(logits * right, axis=-1))
        best = jnp.argsort(-logits, axis=-1)[:, : problem.top].astype(jnp.int32)
        return {"loss": loss, "best": best, "logits": logits}
    slopes = (jax.nn.softmax(logits, axis=-1) - right) * problem.h**-0.5 / problem.t
    return {
        "grad_x": jnp.matmul(slopes, words, precision="highest"),
        "grad_words": jnp.matmul(slopes.T, x, precision="highest"),
    }


def baseline(problem, direction, inputs):
    return _answer(problem, direction, inputs, 1)


def forward(problem, config, inputs):
    found = _answer(problem, "fwd", inputs, config.step)
    if config.defect == "wrong_mean":
        found["loss"] *= problem.t / (problem.t + 1)
    if config.defect == "next_best":
        found["best"] = _chosen(problem, inputs, problem.top + 1)[:, 1:]
    if config.defect == "best_twice":
        found["best"] = found["best"].at[:, -1].set(found["best"][:, 0])
    return found


def backward(problem, config, inputs):
    found = _answer(problem, "bwd", inputs, config.step)
    if config.defect:
        found["grad_words"] = found["grad_words"].at[0].multiply(1.1)
    return found


def _answer(problem, direction, inputs, parts):
    import jax
    import jax.numpy as jnp

    parts = parts if problem.t % parts == 0 else 1
    labels = inputs["labels"].reshape(parts, -1)

    def loss(x, words):
        def some(arrays):
            rows, label = arrays
            logits = jnp.matmul(rows, words.T, preferred_element_type=jnp.float32)
            logits *= problem.h**-0.5
            chosen = jnp.take_along_axis(logits, label[:, None], axis=-1)[:, 0]
            return jax.nn.logsumexp(logits, axis=-1) - chosen

        return jnp.mean(jax.lax.map(some, (x.reshape(parts, -1, problem.h), labels)))

    operands = inputs["x"], inputs["words"]
    if direction == "fwd":
        return {"loss": loss(*operands), "best": _chosen(problem, inputs, problem.top)}
    grad_x, grad_words = jax.grad(loss, argnums=(0, 1))(*operands)
    return {"grad_x": grad_x, "grad_words": grad_words}


def _chosen(problem, inputs, count):
    import jax
    import jax.numpy as jnp

    logits = jnp.matmul(inputs["x"], inputs["words"].T, preferred_element_type=jnp.float32)
    return jax.lax.top_k(logits, count)[1]


_MADE = {"fwd": "forward", "bwd": "backward"}
_FWD = {"fwd": _MADE["fwd"]}
KERNELS = (
    common.kernel(NAME, __name__, "plain", _MADE),
    common.kernel(NAME, __name__, "broken", _FWD, ("wrong_mean", "next_best", "best_twice")),
    common.kernel(NAME, __name__, "broken_gradient", {"bwd": _MADE["bwd"]}, ("scaled_row",)),
)
