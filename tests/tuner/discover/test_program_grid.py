"""Grids of programs: the functions and files that are read, errors about others, and grids that survive a file."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from attn_tune.schema import StorageError, UsageError
from attn_tune.tuner.discover.program_grid import calls_of_file, calls_of_function, grid_of
from attn_tune.tuner.plan.case import make_cases
from attn_tune.tuner.plan.grid import load_grid
from attn_tune.tuner.plan.grid_file import grid_text, write_grid
from tests.tuner.discover.programs import KV, PROGRAMS, Q, causal, ours, trained

TEXT = "flash_attention/v1 b=2 t=64 s=64 n=4 k=2 h=16 v=16 dtype=bfloat16 causal=1"
HERE = "tests.tuner.discover.test_program_grid"


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


@pytest.mark.parametrize("name", ["pair", "keywords", "jitted", "traced", "jaxpr", "lowered", "exported"])
def test_a_function_may_return_a_call_or_a_program(name):
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
def test_a_function_that_gives_no_program_is_one_sentence(path):
    with pytest.raises(UsageError, match=BROKEN[path]):
        calls_of_function(path)


def test_a_program_without_a_known_call_makes_no_grid():
    with pytest.raises(UsageError, match="no call of an op"):
        grid_of(calls_of_function(f"{HERE}:plain"), "x", "a program")


def test_a_program_file_is_read_in_every_form(tmp_path):
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


def test_an_optimised_program_counts_the_calls_of_its_loops(tmp_path):
    path = tmp_path / "optimised.txt"
    function, arguments, _, counts = PROGRAMS["ours in a scan"]
    path.write_text(jax.jit(function).lower(*arguments).compile().as_text())
    assert {c.direction: c.count for c in calls_of_file(path).calls} == counts


def test_an_optimised_program_does_not_count_the_loops_of_a_launch(tmp_path):
    path = tmp_path / "optimised.txt"
    long = jax.ShapeDtypeStruct((1, 1024, 2, 16), jnp.bfloat16)
    text = jax.jit(trained(ours)).lower(long, long, long).compile().as_text()
    assert re.search(r"\.end\)/while/body", text)
    path.write_text(text)
    assert {c.direction: c.count for c in calls_of_file(path).calls} == {"fwd": 1, "bwd": 1}


def test_an_optimised_gpu_program_gives_marks_and_library_calls():
    """Has the forms of a GPU program: fusions, async and collective starts, a command buffer, custom calls."""
    found = calls_of_file(Path(__file__).parent / "gpu_optimised.hlo")
    assert [(c.found_as, c.direction, c.count) for c in found.calls] == [
        ("attn_tune.flash_attention", "fwd", 1),
        ("cuDNN", "fwd", 1),
    ]
    assert not found.unread


def test_an_hlo_text_that_xla_aborts_on_is_one_sentence(tmp_path):
    path = tmp_path / "broken.txt"
    text = jax.jit(causal).lower(Q, KV, KV).as_text(dialect="hlo")
    assert "parameter(2)" in text
    path.write_text(text.replace("parameter(2)", "parameter(9)"))
    with pytest.raises(UsageError, match=r"broken.txt: not HLO text .*parameter"):
        calls_of_file(path)


def test_products_of_an_optimised_program_are_not_read(tmp_path):
    path = tmp_path / "optimised.txt"
    path.write_text(jax.jit(causal).lower(Q, KV, KV).compile().as_text())
    found = calls_of_file(path)
    assert not found.calls
    assert any("before_optimizations" in remark for remark in found.remarks)


@pytest.mark.parametrize("data", [b"", b"hello", b"ML\xefR", b"\xff\xfe", b"HloModule m\n", b"module { nonsense }"])
def test_a_file_that_holds_no_program_is_one_sentence(tmp_path, data):
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
    write_grid(grid, path, overwrite=True)
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
