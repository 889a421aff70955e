"""Cases of kernels that a script runs in Triton's interpreter, in a process of its own, for the tests of one file."""

import os
import subprocess
import sys


def run_selected(request, module):
    """The lines that the script ``module`` prints for the cases which this session tests in the file of ``request``.

    The interpreter is chosen before the kernels are imported.
    """
    mine = (item for item in request.session.items if item.path == request.path)
    names = [item.callspec.params["name"] for item in mine if "name" in getattr(item, "fixturenames", ())]
    done = subprocess.run(
        [sys.executable, "-m", module, *names],
        env=os.environ | {"TRITON_INTERPRET": "1", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=3600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()
