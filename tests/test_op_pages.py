"""The pages of ops list every array that any problem has, with the values of fields that bring it."""

import re
from pathlib import Path

import pytest

from attn_tune.ops.contract import load
from attn_tune.ops.registry import get_op, ops
from attn_tune.schema.signature import REQUIRED

PAGES = Path(__file__).resolve().parent.parent / "docs" / "ops"


def rows(op: str, title: str) -> dict[str, list[str]]:
    """The rows of the table below ``title`` on the page of ``op``, by their first cell."""
    section = (PAGES / f"{op}.md").read_text().split(f"\n## {title}\n")[1].split("\n## ")[0]
    cells = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in section.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row[1:] for row in cells}


@pytest.mark.parametrize("name", [*ops()])
def test_every_array_of_every_sample_is_listed(name):
    import jax

    op = ops()[name]
    operands, outputs = rows(op.name, "Operands"), rows(op.name, "Outputs")
    for problem in load(op.samples)().values():
        for direction in op.directions:
            assert {one.name for one in op.outputs(problem, direction)} <= outputs.keys()
            tree = jax.eval_shape(lambda seed, at=(problem, direction): load(op.inputs)(*at, seed), 0)
            for path, _ in jax.tree_util.tree_leaves_with_path(tree):
                array = jax.tree_util.keystr(path[-1:], simple=True)
                assert direction in operands[array][0].split(", "), array


@pytest.mark.parametrize("name", [*ops()])
def test_every_named_choice_is_one(name, monkeypatch):
    op = ops()[name]
    monkeypatch.syspath_prepend(PAGES.parent)
    from op_arrays import cases, choices

    tried = {(case.field.name, case.value) for case in cases(op)}
    # Those of a cache that the op does not have; what is not in code marks is a size.
    not_here = {"paged_append": {("layout", "latent"), ("kvscale", "block")}, "paged_decode": {("kvscale", "block")}}
    for field in op.fields:
        if field.default != REQUIRED and field.name != "workload" and re.search(r"`\w+`", field.doc):
            missing = {(field.name, value) for value in choices(field) if value != field.default} - tried
            assert missing <= not_here.get(op.name, set())
        if field.name == "workload":
            assert choices(field) == tuple(one.name for one in op.workloads)


def test_rows_say_on_which_values_they_depend():
    operands, outputs = rows("linear_attention", "Operands"), rows("linear_attention", "Outputs")
    assert operands["initial_state"][:2] == ["fwd, bwd", "`state=in`, `both` or `pool`"]
    assert operands["g"][1:4] == [
        "`gate=head` or `constant`",
        "`b` x `t` x `n`; with `gate=constant`: `n`; with `ragged=1`: 1 x `t` x `n`",
        "float32",
    ]
    assert operands["q"][3] == "`dtype`"
    in_place = "with `state=pool`: initial_state"
    assert outputs["state"] == ["fwd", "`state=out`, `both` or `pool`", "state", "", in_place]
    assert outputs["dinitial_state"] == ["bwd", "`state=in` or `both`", "gradient", "initial_state", ""]
    assert rows("gated_delta_rule", "Operands")["beta"][1] == "`beta=1`"
    cached = rows("paged_decode", "Operands")
    assert cached["page_table"][1:3] == ["`page`", "`b` x `s / page`"]
    assert cached["v"][1] == "`layout=nhd`, `hnd` or `head_first`"
    assert cached["k"][3] == "`dtype`; with `kv=float8_e4m3fn` or `int8`: `kv`"
    assert cached["k_scale"][1] == "`kvscale=tensor`, `head` or `token`"


@pytest.mark.parametrize("op", ["gated_delta_rule", "linear_attention", "gla", "kda"])
def test_each_recurrence_is_that_of_its_op(op):
    formula = (PAGES / f"{op}.md").read_text().split("\n## The formula\n")[1].split("\n## ")[0]
    (recurrence,) = re.findall(r"```text\n(.*?)\n```", formula, re.DOTALL)
    assert ("beta" in recurrence) == (op in ("gated_delta_rule", "kda"))
    assert ("diag" in recurrence) == (op in ("gla", "kda"))
    source = {
        "gated_delta_rule": "2412.06464",
        "linear_attention": "2405.21060",
        "gla": "2312.06635",
        "kda": "2510.26692",
    }
    assert source[op] in formula
    assert not any(other in formula for name, other in source.items() if name != op)


@pytest.mark.parametrize("op", [*ops()])
def test_no_two_feature_problems_look_alike(op):
    section = (PAGES / f"{op}.md").read_text().split("must also be right on:\n\n")[1].split("\n\n")[0]
    lines = section.splitlines()
    assert len({*lines}) == len(lines) > 0
    assert len(lines) == len({*load(get_op(op).features)(_plain(op))})


def _plain(op: str):
    text = (PAGES / f"{op}.md").read_text()
    (signature,) = re.findall(r"^A config of `(.*)` must also", text, re.MULTILINE)
    return get_op(op).from_signature(get_op(op).parse_signature(signature))
