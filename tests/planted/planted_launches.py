"""Launches of the planted kernels: the op's plain computation, followed by the config's defect."""

import ctypes
import dataclasses
import itertools
import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from attn_tune.ops.flash_attention.reference import baseline

HEAVY_WORK = 8
_poisoned = False
_traced = set()
ENOUGH_OTHERS = 2


def forward(problem, config, operands):
    """``{"out", "lse"}``, with the config's defect."""
    global _poisoned
    _traced.add((config.defect, config.turn))
    if _poisoned and config.defect != "poison":
        os._exit(9)
    outputs = dict(baseline(problem, "fwd", operands))
    match config.defect:
        case "none":
            # The heuristic is slow, so that a fast wrong config is the best so far and still owes the feature problems.
            return {**outputs, "out": _slowed(outputs["out"], 0 if config.turn else HEAVY_WORK)}
        case "wrong" | "poison":
            _poisoned |= config.defect == "poison"
            return {name: jnp.zeros_like(x) for name, x in outputs.items()}
        case "wrong_on_odd":
            return {**outputs, "out": outputs["out"] * (1.0 if problem.q_len % 8 == 0 else 1.05)}
        case "wrong_alone":
            return {**outputs, "out": outputs["out"] * (1.0 if len(_traced) > ENOUGH_OTHERS else 2)}
        case "nan":
            return {**outputs, "out": outputs["out"].at[0, -1, 0, 0].set(jnp.nan)}
        case "missing_lse":
            return {"out": outputs["out"]}
        case "raise_in_trace":
            raise RuntimeError("this tile has no lowering")
        case "exit_in_trace":
            print("last words of a dying compiler", flush=True)
            os._exit(7)
        case "sys_exit_in_trace":
            sys.exit("no such tile")
        case "hang_in_compile":
            time.sleep(3600)
        case "loop_in_compile":
            while True:
                pass
        case "write_out_of_bounds" | "spin":
            import planted_gpu

            return {**outputs, "out": planted_gpu.harm(config.defect, outputs["out"])}
        case "global_x64":
            jax.config.update("jax_enable_x64", True)
            return outputs
        case "left_open":
            jax.enable_x64(True).__enter__()
            return outputs
        case "debugs":
            jax.debug.callback(lambda x: None, outputs["lse"][0, 0, 0])
            return outputs
        case "slips" | "wavers" | "cache_cheat":
            return {**outputs, "out": _counted(config.defect, config.turn, outputs["out"])}
        case "out_of_memory":
            huge = jax.lax.optimization_barrier(jnp.full((2**45,), outputs["lse"][0, 0, 0]))
            return {**outputs, "lse": outputs["lse"] + huge[-1]}
    return {**outputs, "out": _tamper(config.defect, outputs["out"])}


def top_left(problem, config, operands):
    """``{"out", "lse"}`` with query ``i`` at position ``i``, as other libraries have it."""
    more_queries = problem.q_len - problem.kv_len
    if problem.causal and more_queries < 0:
        problem = dataclasses.replace(problem, kv_len=problem.q_len)
        operands = operands._replace(k=operands.k[:, : problem.q_len], v=operands.v[:, : problem.q_len])
    elif problem.causal and more_queries > 0:
        problem = dataclasses.replace(problem, causal=False, window=(None, more_queries))
    return dict(baseline(problem, "fwd", operands))


def backward(problem, config, inputs):
    """``{"dq", "dk", "dv"}``, with the part's defect."""
    outputs = dict(baseline(problem, "bwd", inputs))
    for name, part in (("dq", config.dq), ("dk", config.dkv), ("dv", config.dkv)):
        outputs[name] = _slowed(outputs[name], part.work)
    if config.dkv.defect == "wrong_dk":
        outputs["dk"] = outputs["dk"] * jnp.asarray(1.1, outputs["dk"].dtype)
    return outputs


def _slowed(x, work):
    """``x``, after ``work`` matrix products whose result decides nothing."""
    if not work:
        return x
    y = jnp.full((256, 256), 1e-6, jnp.float32) + x.ravel()[0].astype(jnp.float32) * 1e-9
    y = jax.lax.fori_loop(0, work, lambda _, y: jnp.tanh(y @ y), y)
    return jnp.where(jnp.isnan(y[0, 0]), jnp.nan, x)


def _counted(defect, turn, x):
    """Harm in one call only: zeros for ``slips``, another last bit in one element for ``wavers``."""
    calls = itertools.count()

    def harm(x):
        x = np.array(x)
        if defect == "cache_cheat" or next(calls) != turn:
            return x
        if defect == "slips":
            return np.zeros_like(x)
        x.view(f"u{x.dtype.itemsize}").reshape(-1)[0] ^= 1
        return x

    return jax.pure_callback(harm, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


_calls = 0


def _tamper(defect, x):
    """Harm that happens when the program runs, not when it is made."""

    def harm(x):
        global _calls
        _calls += 1
        match defect:
            case "flaky":
                return np.asarray(x) * np.asarray(1 + _calls % 2, x.dtype)
            case "raise_in_run":
                raise RuntimeError("the launch was refused")
            case "segfault_in_run":
                ctypes.string_at(0)
            case "abort_in_run":
                os.abort()
            case "killed_in_run":
                os.kill(os.getpid(), signal.SIGKILL)
            case "memory_error":
                return np.asarray(x) + bytearray(2**60)[0]
            case "memory_eater":
                # One GiB too much, and no more: who must stop it may be slow to look.
                too_much_gib = float(os.environ["PLANTED_GIB"]) + 1
                eaten = [b"x" * 2**26 for _ in range(round(too_much_gib * 16))]
                time.sleep(3600 * len(eaten))
            case "illegal_access":
                raise jax.errors.JaxRuntimeError(
                    "INTERNAL: CUDA error: Failed call to cuEventSynchronize: "
                    "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"
                )
            case "disk_full":
                with open("/dev/full", "w") as file:
                    file.write("a cubin")
            case "chatter":
                for _ in range(2**11):
                    os.write(1, b"x" * 2**12)
                return np.asarray(x)
            case "child_stays":
                _child()
                return np.asarray(x)
            case "child_survives":
                _child()
                os._exit(5)
            case "hang_in_run":
                # Through PyDLL the interpreter lock stays held: nothing else in the process moves again.
                ctypes.PyDLL(None).pause()
        raise AssertionError(defect)

    return jax.pure_callback(harm, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def _child():
    """A child in a session of its own, with everything that it inherited: socket, pipe, memory."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(3600)
        os._exit(0)
