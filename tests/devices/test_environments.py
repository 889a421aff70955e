"""Versions without importing what they are versions of."""

import dataclasses
import importlib.metadata
import subprocess
import sys

import pytest

from attn_tune.devices import environments
from attn_tune.devices.environments import current_environment


def test_versions_are_those_installed():
    found = current_environment()
    assert found.jax == importlib.metadata.version("jax")
    assert found.jaxlib == importlib.metadata.version("jaxlib")
    assert found.source_hash == ""


def test_a_package_that_is_not_installed_has_no_version(monkeypatch):
    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(environments.cuda_driver, "driver_cuda_version", lambda: "13.0")
    found = environments.current_environment.__wrapped__()
    assert (found.jax, found.triton) == ("", "")
    assert found.compiler == "cuda-driver 13.0"


@pytest.mark.parametrize("variable", ["TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"])
def test_another_assembler_of_triton_is_part_of_the_compiler(monkeypatch, tmp_path, variable):
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    tool.chmod(0o755)
    for name in environments.ASSEMBLER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    own = current_environment.__wrapped__()
    monkeypatch.setenv(variable, str(tool))
    other = current_environment.__wrapped__()
    assert other.compiler.removeprefix(own.compiler).removeprefix(", ") == "ptxas 13.0.88 for Triton"
    assert dataclasses.replace(own, source_hash="x").grade(dataclasses.replace(other, source_hash="x")) == "portable"


def test_options_of_the_assembler_are_part_of_the_compiler(monkeypatch):
    monkeypatch.delenv("PTXAS_OPTIONS", raising=False)
    own = current_environment.__wrapped__()
    monkeypatch.setenv("PTXAS_OPTIONS", "--regAllocOptLevel=5")
    other = current_environment.__wrapped__()
    assert other.compiler.removeprefix(own.compiler).removeprefix(", ") == "--regAllocOptLevel=5 for Triton"


TOOLS = {
    "missing": None,
    "folder": "",
    "not_executable": "echo 'release 13.0, V13.0.88'",
    "fails": "echo 'release 13.0, V13.0.88'; exit 1",
    "says_nothing": "true",
    "says_it_elsewhere": "echo 'release 13.0, V13.0.88' >&2",
    "binary": "printf '\\377\\376'",
    "reads": "read line; test $? = 0",
}


@pytest.mark.parametrize("name", TOOLS)
def test_what_triton_takes_for_no_assembler_is_no_part_of_the_compiler(name, monkeypatch, tmp_path):
    tool = tmp_path / "ptxas"
    if name == "folder":
        tool.mkdir()
    elif TOOLS[name] is not None:
        tool.write_text(f"#!/bin/sh\n{TOOLS[name]}\n")
        tool.chmod(0o644 if name == "not_executable" else 0o755)
    assert environments.assembler(str(tool)) == ""
    own = current_environment.__wrapped__()
    monkeypatch.setenv("TRITON_PTXAS_PATH", str(tool))
    assert current_environment.__wrapped__() == own


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    return done.stdout.split()


def test_the_environment_loads_nothing_heavy():
    code = (
        "import sys; from attn_tune.devices.environments import current_environment;"
        "current_environment(); print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    )
    assert not {"jax", "jaxlib", "triton", "numpy"} & set(run(code))
