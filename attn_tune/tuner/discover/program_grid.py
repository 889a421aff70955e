"""Make a grid of a program: of a function that is traced, or of a file that a program was written to."""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attn_tune.ops.program_graph import Graph
from attn_tune.ops.registry import get_op
from attn_tune.schema.errors import UsageError
from attn_tune.tuner.discover.calls import Call, Calls, find_calls
from attn_tune.tuner.plan.case import GridPoint
from attn_tune.tuner.plan.grid import Grid


def calls_of_function(path: str) -> Calls:
    """Find the calls in what ``module:function`` returns: ``(fn, args)``, ``(fn, args, kwargs)``, or something traced
    or lowered. The function is called without arguments; the program is traced, never run or compiled.

    Raises:
      UsageError: there is no such function, it fails, or it returns something else.
    """
    return find_calls(_graph_of(_call(path), path))


def calls_of_file(path: Path) -> Calls:
    """Find the calls of a program in a file: StableHLO as text or bytecode, or HLO text.

    Raises:
      UsageError: the file cannot be read, or holds something else.
    """
    from attn_tune.tuner.discover.hlo import is_hlo, read_hlo
    from attn_tune.tuner.discover.stablehlo import BYTECODE, read_stablehlo

    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"program {path}: cannot be read: {error.strerror}") from None
    where = f"program {path}"
    if not data.startswith(BYTECODE) and is_hlo(data):
        return find_calls(read_hlo(data.decode("utf-8", errors="replace"), where))
    return find_calls(read_stablehlo(data, where))


def grid_of(calls: Calls, name: str, source: str) -> Grid:
    """Make a grid of calls: one point a signature, with the directions that the program has.

    Raises:
      UsageError: there is none; the message says what was seen instead.
    """
    if not calls.calls:
        seen = "; ".join(f"{u.what}: {u.reason}" for u in calls.unread)
        raise UsageError(f"{source}: no call of an op that has a signature" + (f"; {seen}" if seen else ""))
    points: dict[Any, GridPoint] = {}
    for call in calls.calls:
        old = points.get(call.signature)
        points[call.signature] = GridPoint(
            name=old.name if old else f"{name}.{len(points) + 1}",
            op=call.signature.op,
            signature=call.signature,
            source=source,
            directions=_ordered(call, old.directions if old else ()),
            calls=call.count + (old.calls if old else 0),
        )
    return Grid(
        name=name,
        summary=f"the calls of {source}",
        source=source,
        points=tuple(points.values()),
    )


def _ordered(call: Call, others: Sequence[str]) -> tuple[str, ...]:
    """The direction of ``call`` and ``others`` in the order of their op."""
    directions = get_op(call.signature.op).directions
    return tuple(d for d in directions if d == call.direction or d in others)


def _call(path: str) -> Any:
    module, colon, name = path.partition(":")
    if not colon or not module or not name:
        raise UsageError(f"function {path!r} must be MODULE:FUNCTION")
    # As with 'python -m': what lies in the working directory can be named.
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"function {path!r} cannot be imported: {error}") from error
    if not callable(found):
        raise UsageError(f"function {path!r} is not callable")
    try:
        return found()
    except Exception as error:
        # The user's code: for any error the user must see which function it was.
        raise UsageError(f"function {path!r} failed: {type(error).__name__}: {error}") from error


def _devices_that_share(arguments: Any) -> int:
    """The most devices over which an argument is cut along axes that its type does not name; 1 if none is."""
    import jax
    from jax.sharding import AxisType, NamedSharding

    counts = [1]
    for leaf in jax.tree.leaves(arguments):
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding) or sharding.is_fully_replicated:
            continue
        kinds = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_types, strict=True))
        named = {name for entry in sharding.spec for name in (entry if isinstance(entry, tuple) else (entry,))}
        if any(kinds.get(name) == AxisType.Auto for name in named):
            counts.append(len(sharding.device_set))
    return max(counts)


def _graph_of(made: Any, path: str) -> Graph:
    import jax

    from attn_tune.tuner.discover.jaxpr import read_jaxpr
    from attn_tune.tuner.discover.stablehlo import read_module, read_stablehlo

    program: Any = made
    if isinstance(made, tuple) and 2 <= len(made) <= 3 and callable(made[0]):
        function, args, *rest = made
        kwargs = dict(rest[0]) if rest else {}
        if not isinstance(args, tuple | list):
            raise UsageError(f"function {path!r}: args must be a tuple, got {type(args).__name__}")
        jitted = function if hasattr(function, "trace") else jax.jit(function)
        try:
            program = jitted.trace(*args, **kwargs)
        except Exception as error:
            raise UsageError(f"function {path!r}: tracing failed: {type(error).__name__}: {error}") from error
    if hasattr(program, "jaxpr") and hasattr(program.jaxpr, "eqns"):
        graph = read_jaxpr(program.jaxpr)
        if made is not program and (count := _devices_that_share(made[1:])) > 1:
            graph.remark(
                f"the arguments lie on {count} devices and XLA cuts the program: outside shard_map shapes are those of "
                "the whole, and the job looks up those of a shard: read the compiled program (--from-hlo)"
            )
        return graph
    if hasattr(program, "eqns") and hasattr(program, "consts"):
        return read_jaxpr(program)
    if hasattr(program, "compiler_ir"):
        return read_module(program.compiler_ir("stablehlo"))
    if isinstance(serialized := getattr(program, "mlir_module_serialized", None), bytes):
        return read_stablehlo(serialized, f"function {path!r}")
    raise UsageError(
        f"function {path!r} must return (fn, args), (fn, args, kwargs), jax.jit(fn).trace(...) or .lower(...), "
        f"or a jax.export.Exported; got {type(made).__name__}"
    )
