"""Read HLO text, as ``XLA_FLAGS=--xla_dump_to`` and ``as_text(dialect="hlo")`` write it, into a ``Graph``.

jaxlib parses the text and converts it to StableHLO. Before optimisation everything is there. After it products have
merged axes, so that their sizes say little: then only custom calls and this package's own names are read.
"""

import re
import subprocess
import sys
from typing import Any

from attn_tune.ops.marker import find_mark, mark_name
from attn_tune.ops.program_graph import Graph, Value
from attn_tune.schema.errors import UsageError
from attn_tune.tuner.discover import hlo_to_stablehlo
from attn_tune.tuner.discover.stablehlo import ModuleReader, parse_module

_PARTITIONS = re.compile(r"num_partitions=(\d+)")
_OPTIMISED = re.compile(r"is_scheduled=true|[\]})] fusion\(")


def is_hlo(data: bytes) -> bool:
    """Whether ``data`` is HLO text."""
    return data.lstrip()[:9] == b"HloModule"


def read_hlo(text: str, where: str) -> Graph:
    """Read the text of a module.

    Raises:
      UsageError: this jaxlib cannot read it; ``where`` names it.
    """
    reader_type = _OptimisedReader if _OPTIMISED.search(text) else ModuleReader
    reader = reader_type(parse_module(_converted(text, where), where))
    # The conversion leaves this out.
    partitions = _PARTITIONS.search(text.lstrip().partition("\n")[0])
    reader.partitions = int(partitions[1]) if partitions else 1
    return reader.read()


def _converted(text: str, where: str) -> bytes:
    """The program as StableHLO, in MLIR bytecode."""
    command = [sys.executable, "-P", hlo_to_stablehlo.__file__]
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=False)
    if done.returncode:
        raise UsageError(
            f"{where}: not HLO text that this jaxlib reads: {_complaint(done.stderr)}; "
            "write the program as StableHLO: jax.jit(fn).lower(*args).as_text()"
        )
    return done.stdout


def _complaint(stderr: bytes) -> str:
    """The line that names the fault: of XLA's abort, or of Python's exception."""
    lines = stderr.decode("utf-8", errors="replace").strip().splitlines()
    for number, line in enumerate(lines):
        if "Check failed" in line:
            return line.partition("] ")[2].strip()
        if "Error: " in line:
            return " ".join(lines[number : number + 2])
    return lines[-1] if lines else "no reason given"


class _OptimisedReader(ModuleReader):
    """Keeps the names of this package's ops, once a place, and custom calls."""

    def __init__(self, module: Any):
        super().__init__(module)
        # How often each mark runs, by the path in front of it and what it says: a call is in its operations' names.
        self.marks: dict[tuple[str, str, str], int] = {}
        self.has_other_products = False

    def visit(self, op: Any, runs: int) -> None:
        """Note the mark in the name of an operation, or that it is a product without one."""
        if op.name == "func.call" and find_mark(str(op.attributes["callee"])):
            return  # It makes a value of its own.
        name = str(op.location)
        mark = find_mark(name)
        # Operations that the partitioner adds around the shards' launches are no launches.
        if mark is not None and not mark.is_cut:
            place = name[: name.find("attn_tune.")], mark.signature, mark.direction
            self.marks[place] = max(runs, self.marks.get(place, 0))
        elif mark is None and op.name == "stablehlo.dot_general" and _has_batch(op):
            self.has_other_products = True

    def _operation(self, op: Any, inputs: list[Value], runs: int, known: dict[Any, Value]) -> list[Value]:
        # Loops and custom calls of a launch are parts of it.
        if op.name.endswith((".while", ".custom_call")) and find_mark(str(op.location)):
            return self._opaque(op, inputs, runs)
        return super()._operation(op, inputs, runs, known)

    def read(self) -> Graph:
        """The marks and custom calls of the program."""
        # After the partitioner every shape is that of one device.
        self.has_manual_shapes = True
        graph = super().read()
        graph.values = [v for v in graph.values if v.kind in ("marker", "custom_call")]
        for (_, signature, direction), runs in self.marks.items():
            graph.add("marker", (), "opaque", runs=runs, name=mark_name(signature, direction))
        if self.marks:
            graph.remark("an optimised program: equal calls made at one place are counted once")
        if self.has_other_products:
            graph.remark(
                "an optimised program: calls that are written out in products are not read, their axes are merged; "
                "use the dump from before_optimizations"
            )
        return graph


def _has_batch(op: Any) -> bool:
    from jaxlib.mlir.dialects import stablehlo

    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    return bool(numbers.lhs_batching_dimensions)
