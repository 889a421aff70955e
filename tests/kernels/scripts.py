"""Scripts that the tests of kernels run in a process of their own, with the interpreter of Triton or without it."""

import json
import os
import subprocess
import sys

import pytest

from tests.chosen import exhaustive, values_asked_for


def run_selected(request, module):
    """The lines that the script ``module`` prints for the cases which this session tests in the file of ``request``.

    Triton's interpreter is chosen before the kernels are imported.
    """
    return _lines(module, values_asked_for(request, "name"), {"TRITON_INTERPRET": "1"})


def builds(kept, every):
    """The parameter ``names`` of a test: the builds that ``make test`` compiles, and as an exhaustive one all."""
    kept, every = list(kept), list(every)
    assert set(kept) < set(every), "what is kept is a part of all builds"
    return pytest.mark.parametrize("names", [kept, exhaustive(every)], ids=["kept", "every"])


def built(module, *names):
    """A record of each launch that the script ``module`` compiles of the builds ``names``, or of all."""
    return [json.loads(line) for line in _lines(module, names, {})]


def _lines(module, names, environment):
    inherited = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", module, *names],
        env=inherited | {"JAX_PLATFORMS": "cpu"} | environment,
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
