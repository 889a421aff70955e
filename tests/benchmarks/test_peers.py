"""The benchmark of peers: every row runs, each library gets the mask that the op means, and what the tables say."""

import importlib.machinery
import json
import re
import sys
import types

import flash_attention_peers
import peers_libraries
import pytest
import table
from earlier_tree import imports_from
from peers import AUTO, CUDNN, EARLIER, TRITON, Peer, peers
from peers_inputs import make_case
from peers_race import Settings, race_case
from peers_report import is_right, markdown, races, versus

from attn_tune.ops.flash_attention.problem import Problem
from tests.chosen import exhaustive

SIZES = {"b": 2, "t": 16, "s": 16, "n": 2, "k": 2, "h": 64, "v": 64, "dtype": "float16"}
ROWS = {
    "gqa": {"causal": 1, "k": 1},
    "window": {"causal": 1, "left": 3},
    "softcap": {"causal": 1, "cap": 1},
    "bias": {"bias": "1nts"},
    "segments": {"causal": 1, "seg": 1},
    "varlen": {"causal": 1, "seg": 1, "ids": 0, "b": 1},
    "padded": {"seg": 1, "len": 1},
    "chunk-causal": {"causal": 1, "t": 8, "s": 24},
    "chunk-window": {"causal": 1, "t": 8, "s": 24, "left": 3},
    "chunk-full": {"t": 8, "s": 24},
}

# Of what others have, one at a time.
SINGLE = ("window", "padded", "chunk-causal", "chunk-full")
NAMES = [exhaustive(name) if name in SINGLE else name for name in ROWS]


def problem(**fields):
    values = SIZES | fields
    text = " ".join(f"{name}={value}" for name, value in values.items())
    from attn_tune.ops.registry import get_op

    return Problem.from_signature(get_op("flash_attention").parse_signature(f"flash_attention/v1 {text}"))


def dense_call(query, key, value, bias=None, mask=None, *, logits_soft_cap=None, **options):
    """Reference for tokamax's documented call: windows are aligned at the top left and may reach ahead of a row."""
    import jax
    import jax.numpy as jnp

    rows, cols = query.shape[1], key.shape[1]
    ahead = jnp.arange(cols)[None] - jnp.arange(rows)[:, None]
    seen = jnp.ones((1, 1, rows, cols), bool) if mask is None else mask
    window, lengths = options.get("local_window_size"), options.get("key_value_seq_lengths")
    if options.get("is_causal"):
        seen = seen & (ahead <= 0)
    if window is not None:
        seen = seen & (ahead <= window[1]) & (ahead >= -window[0])
    if lengths is not None:
        seen = seen & (jnp.arange(cols) < lengths[:, None])[:, None, None]
    key, value = (jnp.repeat(x, query.shape[2] // x.shape[2], axis=2) for x in (key, value))
    logits = options["scale"] * jnp.einsum("btnh,bsnh->bnts", query, key).astype(jnp.float32)
    if logits_soft_cap is not None:
        logits = logits_soft_cap * jnp.tanh(logits / logits_soft_cap)
    logits = logits if bias is None else logits + bias
    weights = jax.nn.softmax(jnp.where(seen, logits, -1e30), axis=-1).astype(value.dtype)
    return jnp.einsum("bnts,bsnh->btnh", weights, value)


def fa4_call(query, key, value, ids=None, *, causal=False, window_size=None, scale):
    """Reference for fa4-jax's documented call: the last query lines up with the last key."""
    import jax.numpy as jnp

    rows, cols = query.shape[1], key.shape[1]
    ahead = jnp.arange(cols)[None] - jnp.arange(rows)[:, None] - (cols - rows)
    left, right = window_size or (None, None)
    seen = jnp.ones((rows, cols), bool) if ids is None else ids[:, None] == ids[None]
    for hidden in (ahead > 0 if causal else None, None if right is None else ahead > right):
        seen = seen if hidden is None else seen & ~hidden
    seen = seen if left is None else seen & (ahead >= -left)
    return dense_call(query, key, value, None, seen[None, None], scale=scale)


def fa4_varlen_call(query, key, value, starts, key_starts, **options):
    """Reference for its call on sequences end to end, given by where they begin and where the last one ends."""
    import jax.numpy as jnp

    ids = jnp.searchsorted(starts, jnp.arange(query.shape[0]), side="right")
    return fa4_call(query[None], key[None], value[None], ids, **options)[0]


def xla_instead(jax_call):
    """jax.nn's own reading of its arguments, without cuDNN."""
    return lambda *arrays, implementation, **options: jax_call(*arrays, implementation="xla", **options)


def use_stand_ins(monkeypatch):
    """The libraries without a GPU: another backend of the same function, or what its documentation says."""
    import jax
    from jax.experimental.pallas.ops.gpu import attention

    interpreted = attention.mha
    monkeypatch.setattr(attention, "mha", lambda *a, **o: interpreted(*a, **o, interpret=True))
    monkeypatch.setattr(jax.nn, "dot_product_attention", xla_instead(jax.nn.dot_product_attention))
    stand_in(monkeypatch, "tokamax", dot_product_attention=dense_call)
    stand_in(monkeypatch, "fa4_jax", flash_attn=fa4_call, flash_attn_varlen=fa4_varlen_call)


def stand_in(monkeypatch, name, **functions):
    fake = types.ModuleType(name)
    fake.__dict__.update(functions)
    fake.__spec__ = importlib.machinery.ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, name, fake)


def dense_answer(case):
    """The output in float64, and how many pairs the arrays leave visible."""
    import numpy as np

    p, x = case.problem, {n: np.asarray(a, np.float64) for n, a in case.arrays.items()}
    ahead = np.arange(p.kv_len)[None] - np.arange(p.q_len)[:, None] - p.offset
    left, right = p.bounds
    seen = np.ones((p.batch, p.q_len, p.kv_len), bool)
    if right is not None:
        seen &= ahead <= right
    if left is not None:
        seen &= ahead >= -left
    if p.has_segments:
        seen &= x["q_segments"][:, :, None] == x["kv_segments"][:, None]
    key, value = (np.repeat(x[n], p.group_size, axis=2) for n in "kv")
    logits = p.scale * np.einsum("btnh,bsnh->bnts", x["q"], key)
    if p.soft_cap is not None:
        logits = p.soft_cap * np.tanh(logits / p.soft_cap)
    weights = np.where(seen[:, None], np.exp(logits + x.get("bias", 0.0)), 0.0)
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("bnts,bsnh->btnh", weights, value), seen.sum()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", NAMES)
def test_each_library_is_asked_for_what_the_op_means(name, monkeypatch):
    import numpy as np

    use_stand_ins(monkeypatch)
    case = make_case(problem(**ROWS[name]))
    exact, pairs = dense_answer(case)
    assert case.pairs == pairs
    assert np.isfinite(exact).all(), "every query sees a key"
    answered = set()
    builds = {
        "cudnn": peers_libraries.cudnn,
        "tokamax": lambda p, x: peers_libraries.tokamax("mosaic", p, x),
        "jax triton": peers_libraries.jax_triton,
        "fa4": peers_libraries.fa4,
    }
    for library, build in builds.items():
        attend = build(case.problem, case.arrays)
        if isinstance(attend, str):
            assert re.search("has no|needs as many|aligns|has one set|end to end", attend)
            continue
        answered.add(library)
        np.testing.assert_allclose(attend(case.arrays), exact, atol=4e-3, err_msg=library)
    assert "tokamax" in answered
    assert ("cudnn" in answered) == (name != "softcap")
    assert ("fa4" in answered) == (name not in ("softcap", "bias", "segments", "padded"))
    assert ("jax triton" in answered) == (name in ("segments", "varlen", "chunk-full"))


def test_flash_attention_3_is_asked_for_windows_by_minus_one_and_for_head_dim_128_alone(monkeypatch):
    asked = []
    stand_in(monkeypatch, "flash_attn3_jax", flash_mha=lambda q, k, v, **options: asked.append(options))
    arrays = dict.fromkeys("qkv")
    peers_libraries.fa3(problem(h=128, v=128, causal=1, left=3), arrays)(arrays)
    peers_libraries.fa3(problem(h=128, v=128), arrays)(arrays)
    assert [(options["is_causal"], options["window_size"]) for options in asked] == [(True, (3, 0)), (False, (-1, -1))]
    assert "head dim 128" in peers_libraries.fa3(problem(), arrays)


@pytest.mark.parametrize("name", ["gqa", "full"])
def test_mosaic_gpu_of_jax_takes_float16_alone(name):
    rows = ROWS | {"full": {}}
    assert callable(peers_libraries.jax_mosaic(problem(**rows[name]), {}))
    reason = peers_libraries.jax_mosaic(problem(**rows[name] | {"dtype": "bfloat16"}), {})
    assert "bfloat16 does not compile" in reason


def test_a_peer_that_raises_is_its_own_row_and_a_wrong_one_says_so():
    import attn_tune

    def raises(error):
        def attend(x):
            raise error

        return attend

    def right(x):
        return attn_tune.flash_attention(x["q"], x["k"], x["v"], causal=True, platform="xla")

    several = [
        Peer(name=AUTO, build=lambda p, x: right),
        Peer(name="wrong", build=lambda p, x: lambda x: 1.1 * right(x)),
        Peer(name="raises", build=lambda p, x: raises(ValueError("no such tile"))),
        Peer(name="not yet", build=lambda p, x: raises(NotImplementedError("soon"))),
        Peer(name="cannot", build=lambda p, x: "it cannot"),
        Peer(name="lost", build=lambda p, x: right),
    ]
    said = []
    lost = {("lost", d): "illegal access" for d in ("fwd", "fwd+bwd")}
    case = make_case(problem(causal=1))
    rows = race_case("x", case, several, Settings(rounds=8, threads=2), lost, said.append)
    assert [row["implementation"] for row in rows] == 2 * [p.name for p in several]
    for auto, wrong, raised, later, cannot, gone in (rows[:6], rows[6:]):
        assert is_right(auto)
        assert auto["kernel"] == "xla"
        assert wrong["error_ratio"] > 1
        assert not is_right(wrong)
        assert raised["failed"] == "ValueError: no such tile"
        assert later["unsupported"] == "NotImplementedError: soon"
        assert cannot["unsupported"] == "it cannot"
        assert "illegal access" in gone["failed"]
    assert set(rows[6]["errors"]) == {"out", "dq", "dk", "dv"}
    assert len(said) == 2 * (1 + len(several))


@pytest.mark.parametrize(("off", "right"), [(0.0, True), (0.5, False)])
def test_gradients_that_are_wider_than_their_operands_are_judged_by_their_numbers(off, right):
    import jax

    import attn_tune

    def plain(q, k, v):
        return attn_tune.flash_attention(q, k, v, causal=True, platform="xla")

    @jax.custom_vjp
    def attention(q, k, v):
        return plain(q, k, v)

    def backward(operands, dout):
        return tuple((1 + off) * g.astype("float32") for g in jax.vjp(plain, *operands)[1](dout))

    attention.defvjp(lambda *x: (plain(*x), x), backward)
    peer = Peer(name="wide", build=lambda p, x: lambda x: attention(x["q"], x["k"], x["v"]))
    settings = Settings(directions=["fwd+bwd"], rounds=2, threads=1)
    (found,) = race_case("x", make_case(problem(causal=1)), [peer], settings, {}, lambda text: None)
    assert found["wider"] == {"dq": "float32", "dk": "float32", "dv": "float32"}
    assert is_right(found) == right
    # Of ours a gradient has its operand's dtype, or it is wrong.
    ours = Peer(name=AUTO, build=peer.build)
    (found,) = race_case("x", make_case(problem(causal=1)), [ours], settings, {}, lambda text: None)
    assert found["error_ratio"] == float("inf")


def test_auto_of_an_earlier_version_is_traced_in_its_own_package(tmp_path, capsys):
    import attn_tune

    folder = tmp_path / "attn_tune"
    folder.mkdir()
    inner = "import jax.numpy as jnp\n\n\ndef answer(v):\n    return 1.1 * v + jnp.zeros_like(v)\n"
    (folder / "inner.py").write_text(inner)
    (folder / "__init__.py").write_text(
        "def flash_attention(q, k, v, *rest, **options):\n"
        "    from attn_tune.inner import answer\n\n"
        "    return answer(v)\n"
    )
    found = [p for p in peers("none", earlier=tmp_path) if p.name in (AUTO, EARLIER)]
    case = make_case(problem(causal=1))
    for _ in range(2):
        rows = race_case("x", case, found, Settings(rounds=2, threads=2), {}, lambda text: None)
        assert [is_right(row) for row in rows] == [True, False, True, False]
        assert "failed" not in rows[1], rows[1]["failed"]
        assert sys.modules["attn_tune"] is attn_tune
    with pytest.raises(ValueError, match="git archive COMMIT attn_tune"), imports_from(folder):
        pass
    assert flash_attention_peers.main(["--grid", "peers", "--earlier", str(folder)]) == 2
    assert "--earlier: " in capsys.readouterr().err


def row(point, direction, name, us, *, error: float | None = 0.5, signature="", **fields):
    samples = [round(us * 1e3) + i for i in range(20)]
    return {
        "point": point,
        "direction": direction,
        "implementation": name,
        "signature": f"flash_attention/v1 {signature}",
        "median_us": us,
        "tflops": 1.0,
        "samples_ns": samples,
        "error_ratio": error,
        **fields,
    }


def test_auto_is_held_against_the_fastest_that_is_right():
    race = {
        r["implementation"]: r
        for r in (
            row("x", "fwd", AUTO, 100.0),
            row("x", "fwd", TRITON, 80.0),
            row("x", "fwd", "wrong", 50.0, error=1.5),
            row("x", "fwd", "not compared", 50.0, error=None),
            row("x", "fwd", CUDNN, 90.0),
            row("x", "fwd", "slow", 200.0),
        )
    }
    found = versus(race)
    assert found.best["implementation"] == CUDNN
    assert found.ratio == pytest.approx(100 / 90, rel=1e-3)
    assert found.low <= found.ratio <= found.high
    assert found.is_slower
    assert not versus(race | {CUDNN: row("x", "fwd", CUDNN, 99.5)}).is_slower
    assert versus({AUTO: race[AUTO], "wrong": race["wrong"]}).best is None


def test_tables_name_what_is_slower_wrong_and_what_features_cost():
    plain = "b=4 t=64 s=64 n=2 k=2 h=64 v=64 dtype=bfloat16 causal=1"
    rows = []
    for direction, factor in (("fwd", 1), ("fwd+bwd", 4)):
        for point, signature, us, pairs in (
            ("p", plain, 100, 200),
            ("w", f"{plain} left=7", 60, 100),
        ):
            rows += [
                row(point, direction, name, us * factor * scale, signature=signature, pairs=pairs)
                for name, scale in ((AUTO, 1.0), (TRITON, 2.0), (CUDNN, 1.0))
            ]
    rows.append(row("p", "fwd", "tokamax mosaic", 50.0, error=7.0, signature=plain, pairs=200))
    text = markdown([rows, rows])
    assert "auto is slower beyond noise in 0 of 4: none" in text
    assert "p fwd: tokamax mosaic (error 7.0)" in text
    assert "| p | 0.500 | 0.500 | 0.500 |" in text
    assert "| head dim 64, geometric mean | 0.500 | 0.500 | 0.500 |" in text
    assert "| w | p | 1.200 | 1.200 |" in text
    assert len(races([rows, rows])) == 4


GRID = """
summary = "tiny"
op = "flash_attention"
[[layer]]
name = "plain"
b = 1
t = 16
s = 16
n = 2
k = 1
h = 64
v = 64
dtype = "bfloat16"
causal = 1
[[layer]]
name = "drop"
b = 1
t = 16
s = 16
n = 2
k = 2
h = 64
v = 64
dtype = "bfloat16"
drop = 1
"""


def test_the_command_saves_resumes_and_its_files_are_joined(tmp_path, capsys):
    grid = tmp_path / "tiny.toml"
    grid.write_text(GRID)
    options = ["--grid", str(grid), "--rounds", "4", "--direction", "fwd", "--ejkernel", "none"]
    outs = [tmp_path / "a.json", tmp_path / "b.json"]
    for part, out in enumerate(outs):
        assert not flash_attention_peers.main(
            [*options, "--shard", f"{part}/2", "--out", str(out), "--markdown", f"{out}.md"]
        )
        report = json.loads(out.read_text())
        assert len(report["seconds"]) == 1
        (auto,) = (r for r in report["rows"] if r["implementation"] == AUTO)
        assert auto["error_ratio"] <= 1
        assert "auto us" in (tmp_path / f"{out.name}.md").read_text()
    assert table.main([str(out) for out in outs]) == 0
    said = capsys.readouterr().out
    assert "| tiny.plain | fwd |" in said
    assert "| tiny.drop | fwd |" in said
    # What is done stays; what ended its process twice is left alone.
    report["begun"]["tiny.plain"] = 2
    outs[1].write_text(json.dumps(report))
    assert not flash_attention_peers.main([*options, "--resume", "--out", str(outs[1])])
    said = capsys.readouterr().out
    assert "tiny.drop: done" in said
    assert "tiny.plain: left out, begun twice" in said
    assert json.loads(outs[1].read_text())["rows"] == report["rows"]


def test_shards_share_what_alternates():
    points = list(range(8))
    parts = [flash_attention_peers.shard(points, i, 2) for i in range(2)]
    assert parts == [[0, 3, 4, 7], [1, 2, 5, 6]]
    assert flash_attention_peers.shard(points, 0, 1) == points
