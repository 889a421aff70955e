"""The probe ops on the path, as installed distributions, and the command line on them."""

import importlib
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from attn_tune.cli import app
from attn_tune.kernels import registry
from attn_tune.runtime import misses
from attn_tune.runtime.active import settings

SITE = Path(__file__).parent / "site"


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    """Workers inherit the path; the four devices of one CPU are for the op of a mesh."""
    from tests.probe_ops.foreign import install

    site = tmp_path_factory.mktemp("site")
    install(site)
    flags = os.environ.get("XLA_FLAGS", "")
    with pytest.MonkeyPatch.context() as patch:
        for folder in (SITE, site):
            patch.syspath_prepend(str(folder))
        patch.setenv("XLA_FLAGS", f"{flags} --xla_force_host_platform_device_count=8")
        importlib.invalidate_caches()
        registry.clear()
        yield
    for path in (*SITE.glob("*.py"), *site.glob("*.py")):
        sys.modules.pop(path.stem, None)
    registry.clear()


@pytest.fixture(scope="session")
def command():
    """Runs one command as a process of its own would: nothing that an earlier one read is active."""

    def run(*words, fails=False):
        settings._current = misses._mode = None
        result = CliRunner().invoke(app, [str(word) for word in words], prog_name="attn-tune")
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert fails or result.exit_code == 0, result.output
        return result

    return run
