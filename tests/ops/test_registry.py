"""The registry imports what is asked for, finds ops of installed packages, and survives broken ones."""

import importlib
import subprocess
import sys
import warnings

import pytest

from attn_tune.kernels import registry
from attn_tune.ops.registry import get_op, op_names, ops
from attn_tune.schema import UsageError
from attn_tune.schema.errors import AttnTuneWarning
from tests.probe_ops.foreign import CODE, ENTRY_POINTS, install


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    registry.clear()
    yield tmp_path
    monkeypatch.undo()
    importlib.invalidate_caches()
    for path in tmp_path.glob("*_op.py"):
        sys.modules.pop(path.stem, None)
    registry.clear()


def imported(code):
    """The modules of this package that a fresh interpreter has after ``code``."""
    listing = f"{code}; import sys; print(*[m for m in sys.modules if m.startswith('attn_tune.')])"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.split()


def test_kernels_of_one_op_are_listed_without_importing_another():
    found = imported("from attn_tune.kernels.registry import kernels_of; kernels_of('attention')")
    assert "attn_tune.kernels.attention.xla" in found
    assert not [name for name in found if "flash_attention" in name]


def test_names_of_ops_import_no_op():
    found = imported("from attn_tune.ops.registry import op_names; op_names()")
    assert not [name for name in found if name.startswith("attn_tune.kernels.") and "attention" in name]


def test_ops_are_found_once_file_descriptors_are_free_again():
    """A process that had none at its first call found no op for as long as it lived."""
    code = """
import os, resource
import attn_tune.ops.registry as registry
held, limits = [], resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limits[1]), limits[1]))
try:
    while True:
        held.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
try:
    print(registry.op_names())
except OSError as error:
    print(error.strerror)
for one in held:
    os.close(one)
print("flash_attention" in registry.op_names())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["Too many open files", "True"]


def test_a_place_of_ops_that_is_no_folder_has_none(tmp_path, monkeypatch):
    known, file = op_names(), tmp_path / "file"
    file.touch()
    places = [*importlib.util.find_spec("attn_tune.ops").submodule_search_locations, str(tmp_path / "gone"), str(file)]
    monkeypatch.setattr(importlib.util.find_spec("attn_tune.ops"), "submodule_search_locations", places)
    registry.clear()
    assert op_names() == known
    monkeypatch.undo()
    registry.clear()


def test_an_installed_package_adds_an_op_with_its_own_kernel(site):
    install(site)
    assert "foreign" in op_names()
    assert "foreign_op" not in sys.modules
    assert [spec.id for spec in registry.kernels_of("foreign")] == ["foreign/plain"]
    assert get_op("foreign").summary == "an op of another package"
    assert registry.broken_packages() == ()


def test_a_kernel_named_after_its_op_is_imported_with_that_op_alone(site):
    install(site)
    registry.kernels_of("attention")
    assert "foreign_op" not in sys.modules


BROKEN = {
    "raises": ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
    "no op": ("OP = 7\nSPEC = ()", "it offers a int, not an Op"),
    "another name": (CODE.replace('name="foreign"', 'name="other"'), "called like the op, 'other'"),
    "axes": (CODE.replace('Axis(field="t")', 'Axis(field="u")'), "unknown field of an axis"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_op_is_left_out_with_a_warning_and_named_when_asked_for(site, kind):
    code, said = BROKEN[kind]
    install(site, code=code)
    with pytest.warns(AttnTuneWarning, match="ops of package 'foreign'"):
        assert "foreign" not in ops()
    with pytest.raises(UsageError, match="op 'foreign' cannot be used"):
        get_op("foreign")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert any(said in str(package) for package in registry.broken_packages())
        assert "flash_attention/xla" in registry.kernels()


def test_an_installed_op_cannot_take_the_place_of_one_here(site):
    install(
        site,
        code=CODE.replace('name="foreign"', 'name="attention"'),
        entry_points=ENTRY_POINTS.replace("foreign =", "attention ="),
    )
    assert get_op("attention").summary == "dense attention that also returns its weights"


def test_a_kernel_whose_entry_point_names_another_op_is_broken(site):
    install(site, entry_points=ENTRY_POINTS.replace("foreign.plain", "attention.plain"))
    with pytest.warns(AttnTuneWarning, match="is not of 'attention', as its entry point's name says"):
        registry.kernels_of("attention")
