"""Functions and files: what may be given, what is said about what may not, and grids that survive a file."""

import jax
import jax.numpy as jnp
import pytest

from attn_tune.schema import NoDataError, StorageError, UsageError
from attn_tune.tuner.case import make_cases
from attn_tune.tuner.grid import load_grid
from attn_tune.tuner.grid_file import grid_text, write_grid
from attn_tune.tuner.sources.misses import grid_of_misses, read_spool
from attn_tune.tuner.sources.model import calls_of_file, calls_of_function, grid_of
from tests.runtime.test_spool import line
from tests.tuner.sources.programs import KV, Q, causal, ours, trained

TEXT = "flash_attention/v1 b=2 t=64 s=64 n=4 k=2 h=16 v=16 dtype=bfloat16 causal=1"
HERE = "tests.tuner.sources.test_model"


def pair():
    return (trained(causal), (Q, KV, KV))


def keywords():
    return (lambda q, *, k: causal(q, k, k), (Q,), {"k": KV})


def jitted():
    return (jax.jit(causal), [Q, KV, KV])


def traced():
    return jax.jit(causal).trace(Q, KV, KV)


def jaxpr():
    return jax.make_jaxpr(causal)(Q, KV, KV)


def lowered():
    return jax.jit(causal).lower(Q, KV, KV)


def exported():
    return jax.export.export(jax.jit(causal))(Q, KV, KV)


def failing():
    raise ValueError("no such checkpoint")


def untraceable():
    return (lambda x: float(x), (jax.ShapeDtypeStruct((), jnp.float32),))


def a_number():
    return 3


def plain():
    return (lambda x: x + 1, (Q,))


@pytest.mark.parametrize(
    "name", ["pair", "keywords", "jitted", "traced", "jaxpr", "lowered", "exported"]
)
def test_what_a_function_may_return(name):
    calls = calls_of_function(f"{HERE}:{name}")
    assert {c.signature.text for c in calls.calls} == {TEXT}


BROKEN = {
    "nowhere": "must be MODULE:FUNCTION",
    "no_such_module_at_all:f": "cannot be imported",
    f"{HERE}:nothing": "cannot be imported",
    f"{HERE}:TEXT": "not callable",
    f"{HERE}:failing": "failed: ValueError: no such checkpoint",
    f"{HERE}:untraceable": "tracing failed: ConcretizationTypeError",
    f"{HERE}:a_number": "must return .* got int",
}


@pytest.mark.parametrize("path", BROKEN)
def test_a_function_that_will_not_do_is_one_sentence(path):
    with pytest.raises(UsageError, match=BROKEN[path]):
        calls_of_function(path)


def test_a_program_without_attention_is_said_to_be_one():
    with pytest.raises(UsageError, match="no attention call"):
        grid_of(calls_of_function(f"{HERE}:plain"), "x", "a program")


def test_files_in_every_form(tmp_path):
    function = jax.jit(trained(ours))
    program = function.lower(Q, KV, KV)
    forms = {
        "text.mlir": program.as_text().encode(),
        "located.mlir": program.as_text(debug_info=True).encode(),
        "exported.bc": jax.export.export(function)(Q, KV, KV).mlir_module_serialized,
        "program.hlo": program.as_text(dialect="hlo").encode(),
        "optimised.txt": program.compile().as_text().encode(),
    }
    for name, data in forms.items():
        (tmp_path / name).write_bytes(data)
        found = calls_of_file(tmp_path / name)
        counts = {(c.signature.text, c.direction): c.count for c in found.calls}
        assert counts == {(TEXT, "fwd"): 1, (TEXT, "bwd"): 1}, name


def test_an_optimised_program_is_not_guessed_at(tmp_path):
    path = tmp_path / "optimised.txt"
    path.write_text(jax.jit(causal).lower(Q, KV, KV).compile().as_text())
    found = calls_of_file(path)
    assert not found.calls
    assert any("before_optimizations" in remark for remark in found.remarks)


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"ML\xefR", b"\xff\xfe", b"HloModule m\n", b"module { nonsense }"]
)
def test_another_file_is_one_sentence(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"program .*file|no function"):
        calls_of_file(path)
    with pytest.raises(UsageError, match="cannot be read"):
        calls_of_file(tmp_path / "absent")


def test_a_grid_file_reads_as_what_was_written(tmp_path):
    grid = grid_of(calls_of_function(f"{HERE}:pair"), "mine", 'a "model"')
    path = tmp_path / "found.toml"
    write_grid(grid, path)
    (point,) = load_grid(str(path)).points
    (made,) = grid.points
    assert (point.signature, point.directions, point.calls) == (made.signature, ("fwd", "bwd"), 2)
    assert point.source == 'a "model"'
    with pytest.raises(UsageError, match="exists"):
        write_grid(grid, path)
    write_grid(grid, path, force=True)
    with pytest.raises(UsageError, match=r"\.toml"):
        write_grid(grid, tmp_path / "found.json")
    (tmp_path / "plain").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        write_grid(grid, tmp_path / "plain" / "found.toml")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["found.toml", "plain"]


def test_a_point_has_only_its_directions(tmp_path):
    grid = grid_of(calls_of_function(f"{HERE}:jitted"), "inference", "a model")
    path = tmp_path / "found.toml"
    write_grid(grid, path)
    points = load_grid(str(path)).points
    assert [c.direction for c in make_cases(points, ("fwd", "bwd"))] == ["fwd"]
    assert make_cases(points, ("bwd",)) == ()


@pytest.mark.parametrize(
    ("line_of", "message"),
    [
        ('directions = ["up"]', "unknown direction of flash_attention 'up'"),
        ("calls = -1", "natural number"),
    ],
)
def test_a_bad_layer_is_named(tmp_path, line_of, message):
    path = tmp_path / "bad.toml"
    text = grid_text(grid_of(calls_of_function(f"{HERE}:pair"), "mine", "m"))
    key = line_of.split()[0]
    rest = [one for one in text.splitlines() if not one.startswith(f"{key} ")]
    path.write_text("\n".join([*rest, line_of]))
    with pytest.raises(UsageError, match=message):
        load_grid(str(path))


def spool_of(folder, *lines):
    from attn_tune.runtime.spool import append

    for one in lines:
        assert append(folder, one)
    return read_spool(folder)


def test_counts_are_the_largest_of_each_process(tmp_path):
    spool = spool_of(
        tmp_path,
        line(1, count=1),
        line(1, count=4),
        line(1, count=2),
        line(1, count=8, process="2-bb", nearest="", time=9),
        line(1, direction="bwd"),
    )
    first, second = spool.rows
    assert (first.count, first.processes, first.first, first.last) == (12, 2, 1, 9)
    assert first.nearest == "no pack holds rows"
    assert second.direction == "bwd"
    grid, refused = grid_of_misses(spool, "missed")
    (point,) = grid.points
    assert (point.directions, point.calls, refused) == (("fwd", "bwd"), 13, ())


def test_misses_of_several_devices_are_not_mixed(tmp_path):
    spool = spool_of(tmp_path, line(1), line(2, device="nvidia-h200"))
    with pytest.raises(UsageError, match=r"cpu-x86_64, nvidia-h200.*--missed-on"):
        grid_of_misses(spool, "missed")
    grid, _ = grid_of_misses(spool, "missed", device="nvidia-h200")
    assert [p.signature.values["left"] for p in grid.points] == [2]
    with pytest.raises(UsageError, match="nvidia-h200"):
        grid_of_misses(spool, "missed", device="nvidia-h20")


def test_what_cannot_be_tuned_is_told(tmp_path):
    spool = spool_of(tmp_path, line(1), line(2, op="of_another_version"), line(3, direction="up"))
    grid, refused = grid_of_misses(spool, "missed")
    assert len(grid.points) == 1
    assert len(refused) == 2
    with pytest.raises(NoDataError, match="ATTN_TUNE_ON_MISS=record"):
        grid_of_misses(read_spool(tmp_path / "empty"), "missed")
