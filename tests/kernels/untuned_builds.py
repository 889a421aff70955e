"""Compiles the untuned launches of a Triton kernel without a GPU. For scripts, so that nothing is interpreted."""

import json
import sys

from attn_tune.schema.device import Device
from tests.kernels.triton_lowered import launches


def print_launches(spec, op, builds):
    """Prints a JSON line per launch, in all directions, of the ``builds`` that the command line names, or of all.

    Args:
      builds: the text of a signature and the compute capability, by name.
    """
    for name in sys.argv[1:] or builds:
        text, capability = builds[name]
        problem = op.from_signature(op.parse_signature(text))
        device = Device(platform="cuda", family=f"sm_{capability}", variant="nvidia-test", units=132)
        for direction, search in spec.searches.items():
            config = search.heuristic(problem, device)
            for launch in launches(op, problem, search, config, direction=direction, capability=capability):
                found = {"registers": launch.registers, "spills": launch.spill_bytes, "shared": launch.shared_bytes}
                copies = launch.ptx.count("cp.async.cg")
                print(json.dumps({"name": name, "launch": launch.name, "copies": copies} | found), flush=True)
