"""From what compilers and drivers say to a status."""

import errno
import shutil

import pytest

from attn_tune.schema.errors import UnsupportedError
from attn_tune.schema.trial import Status, lacks_a_library
from attn_tune.tuner.protocol import Phase
from attn_tune.tuner.work.faults import DiskFullError, outcome_of, short


class OutOfResources(Exception):
    """As Triton's and the bridge's are called."""


@pytest.mark.parametrize(
    ("error", "phase", "status"),
    [
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes"), "validate", "memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Shared memory size limit exceeded"), "validate", "oor"),
        (OutOfResources("needs 300000 of shared memory"), "compile", "oor"),
        (MemoryError(), "measure", "memory"),
        (RuntimeError("CpuCallback: numpy.core._ArrayMemoryError: Unable to allocate"), "validate", "memory"),
        (ValueError("no lowering"), "compile", "compile"),
        (ValueError("bad launch"), "measure", "runtime"),
        (UnsupportedError("sm_70 is too old"), "compile", "unsupported"),
        (RuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access"), "validate", "sticky"),
        (RuntimeError("CUDA_ERROR_MISALIGNED_ADDRESS: misaligned address"), "measure", "sticky"),
    ],
)  # fmt: skip
def test_words_decide(error, phase, status):
    outcome = outcome_of(error, Phase(phase))
    expected = {
        "oor": Status.OUT_OF_RESOURCES,
        "memory": Status.OUT_OF_RESOURCES,
        "compile": Status.COMPILE_ERROR,
        "runtime": Status.RUNTIME_ERROR,
        "unsupported": Status.UNSUPPORTED,
        "sticky": Status.CRASHED,
    }[status]
    assert outcome.status is expected
    assert outcome.sticky is (status in ("sticky", "memory"))
    assert outcome.reason.startswith(phase)
    assert str(error) in outcome.reason


def test_the_cause_counts():
    error = ValueError("lowering failed")
    error.__cause__ = RuntimeError("ptxas: uses too much shared data (0x40000 bytes)")
    assert outcome_of(error, Phase.COMPILE).status is Status.OUT_OF_RESOURCES


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device", "/cache/kernel.cubin"),
        OSError(errno.EDQUOT, "Disk quota exceeded", "/cache/kernel.cubin"),
        RuntimeError("ptxas: cannot write /cache/kernel.cubin: No space left on device"),
    ],
    ids=lambda error: str(error)[:20],
)
def test_a_full_disk_is_no_configs_fault(error):
    wrapped = RuntimeError("lowering failed")
    wrapped.__cause__ = error
    with pytest.raises(DiskFullError, match=r"/cache/kernel\.cubin") as caught:
        outcome_of(wrapped, Phase.COMPILE)
    assert caught.value.exit_code == 4
    assert "run the same command again" in str(caught.value)


def test_the_full_folder_is_found_when_the_error_names_none(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr("attn_tune.tuner.work.faults.shutil.disk_usage", lambda folder: usage)
    with pytest.raises(DiskFullError, match=str(tmp_path)):
        outcome_of(OSError(errno.ENOSPC, "No space left on device"), Phase.COMPILE)


def test_the_place_is_named():
    def launch_with_a_bug():
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as caught:
        launch_with_a_bug()
    reason = outcome_of(caught.value, Phase.COMPILE).reason
    assert "launch_with_a_bug, test_faults.py" in reason


def test_long_texts_keep_both_ends():
    text = short("a" * 5000 + "z" * 5000, 100)
    assert len(text) < 120
    assert text.startswith("aaa")
    assert text.endswith("zzz")


class OwnImportError(ImportError):
    """As a library may call its own."""


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (ImportError("libgone.so"), True),
        (ModuleNotFoundError("No module named 'gone'"), True),
        (OwnImportError("no driver"), True),
        (ValueError("ImportError: a word"), False),
    ],
)
def test_a_library_that_cannot_be_imported_is_known_by_its_error(error, lacks):
    outcome = outcome_of(error, Phase.COMPILE)
    assert lacks_a_library(outcome.status, outcome.reason) == lacks
    assert lacks_a_library(outcome.status, f"on the feature problem attention/v1 b=1: {outcome.reason}") == lacks
    assert not lacks_a_library(Status.RUNTIME_ERROR, outcome.reason)
