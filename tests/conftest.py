"""Before anything of jax is imported: tests run on the CPU by default, and compile without optimising.

Where libtpu is installed, to compile for TPUs that are not there, jax would look for a TPU first.
"""

import contextlib
import gc
import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("JAX_PLATFORMS", "cuda,cpu" if os.path.exists("/dev/nvidiactl") else "cpu")
# Workers of pytest-xdist get a width, by which output of commands would be folded.
os.environ.pop("COLUMNS", None)
# Programs of tests are compiled once and run once: LLVM's passes take longer than they save. Children inherit this.
os.environ["XLA_FLAGS"] = " ".join(
    (
        "--xla_backend_optimization_level=0",
        "--xla_llvm_disable_expensive_passes=true",
        # More threads than cores only wait for one another.
        "--xla_cpu_multi_thread_eigen=false",
        os.environ.get("XLA_FLAGS", ""),
    )
)
# Two thirds of the time of a test that runs a program is XLA's: what one process, or an earlier run, has compiled the
# next one reads. JAX's key has the program, the flags and the versions.
CACHE = Path(__file__).parents[1] / ".pytest_cache/jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
MOST_AGE_S = 14 * 86_400


# A machine that is busy with other work makes no example wrong.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(items):
    """Files with slow tests come first: the other workers wait for the file that is begun last."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_configure():
    """Drop programs that were compiled long ago, and the files of processes that were killed before they wrote."""
    for file in CACHE.glob("*-cache"):
        with contextlib.suppress(FileNotFoundError):  # another worker was faster
            found = file.stat()
            if not found.st_size or found.st_mtime < time.time() - MOST_AGE_S:
                file.unlink()


def pytest_collection_finish():
    """Leave out of collections of garbage all that is imported and collected by now, for it stays.

    Much of what JAX makes as it traces stays too: to look for garbage as often as Python does by itself takes a
    twentieth of the time.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session", autouse=True)
def own_directories(tmp_path_factory):
    """Nothing of the real user is read or written: no database, pack, override, key or spool."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("DATA", "CONFIG", "STATE"):
            patch.setenv(f"XDG_{name}_HOME", str(tmp_path_factory.mktemp(name.lower())))
        yield
