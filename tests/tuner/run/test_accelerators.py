"""Discovery of GPUs from the drivers' files, and the choice among them."""

import pytest

from attn_tune.devices.cuda_driver import DriverFacts
from attn_tune.schema.errors import UsageError
from attn_tune.tuner.run.fleet import accelerators as module
from attn_tune.tuner.run.fleet.accelerators import accelerators, choose_accelerators


@pytest.fixture
def nvidia(monkeypatch):
    """Three GPUs as the CUDA driver numbers them."""
    monkeypatch.setattr(
        module.cuda_driver,
        "driver_facts",
        lambda i: DriverFacts(uuid=f"GPU-{i}" if i < 3 else ""),
    )


@pytest.fixture
def kfd(tmp_path):
    """Two processors and two GPUs, one of which is another container's."""
    for node, simds in enumerate([0, 0, 1216, 1216]):
        folder = tmp_path / str(node)
        folder.mkdir()
        text = f"cpu_cores_count 0\nsimd_count {simds}\nunique_id {node + 10}\nlocation_id {node}\ndomain 0\n"
        (folder / "properties").write_text(text)
    (tmp_path / "4").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({}, ["0", "1", "2"]),
        ({"CUDA_VISIBLE_DEVICES": "5,3,7"}, ["5", "3", "7"]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-a, MIG-b,MIG-c"}, ["MIG-a", "MIG-b", "MIG-c"]),
        ({"JAX_PLATFORMS": "cuda,cpu"}, ["0", "1", "2"]),
        ({"JAX_PLATFORMS": "cpu"}, []),
    ],
)
def test_nvidia(nvidia, environ, shown, tmp_path):
    found = accelerators(environ, tmp_path)
    assert [one.environment["CUDA_VISIBLE_DEVICES"] for one in found] == shown
    assert [one.key for one in found] == [f"GPU-{i}" for i in range(len(shown))]


@pytest.mark.parametrize(
    ("environ", "shown"),
    [({}, ["0", "1"]), ({"ROCR_VISIBLE_DEVICES": "1"}, ["1"]), ({"JAX_PLATFORMS": "tpu"}, [])],
)
def test_amd(environ, shown, kfd, monkeypatch):
    monkeypatch.setattr(module.cuda_driver, "driver_facts", lambda i: DriverFacts())
    found = accelerators(environ, kfd)
    assert [one.environment["ROCR_VISIBLE_DEVICES"] for one in found] == shown
    assert len({one.key for one in found}) == len(shown)
    assert all(one.environment["HIP_VISIBLE_DEVICES"] == "0" for one in found)


@pytest.mark.parametrize(
    ("wanted", "indices"),
    [(None, [0]), ("all", [0, 1, 2]), ("2", [2]), ("2, 0,2", [2, 0])],
)
def test_choice(nvidia, tmp_path, wanted, indices):
    chosen = choose_accelerators(wanted, accelerators({}, tmp_path))
    assert [one.index for one in chosen] == indices


@pytest.mark.parametrize("wanted", ["3", "0,,1", "first", "", "-1"])
def test_a_choice_that_is_not_there(nvidia, tmp_path, wanted):
    with pytest.raises(UsageError, match="there are 0, 1, 2, or 'all'"):
        choose_accelerators(wanted, accelerators({}, tmp_path))


def test_a_host_without_gpus():
    assert choose_accelerators(None, ()) == ()
    with pytest.raises(UsageError, match="this host has no GPU"):
        choose_accelerators("all", ())
