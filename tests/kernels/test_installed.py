"""Kernels of installed packages: a broken package is left out with one warning, and everything else works."""

import importlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import attn_tune
from attn_tune.devices.environments import current_environment
from attn_tune.devices.identity import device_from_kind
from attn_tune.kernels import registry
from attn_tune.kernels.installed import GROUP
from attn_tune.ops.registry import get_op
from attn_tune.packs.rows import Row
from attn_tune.runtime.active import settings
from attn_tune.runtime.lookup.dispatch import lookup
from attn_tune.runtime.lookup.question import adapted
from attn_tune.schema import config_to_dict
from attn_tune.tuner.plan.grid import load_grid
from attn_tune.tuner.plan.planner import make_plan

ROOT = Path(__file__).resolve().parents[2]
SIGNATURE = "flash_attention/v1 b=1 t=16 s=16 n=1 k=1 h=16 v=16 dtype=float32"

GOOD = """
import dataclasses
from attn_tune.kernels.flash_attention.xla import SPEC as XLA
SPEC = dataclasses.replace(XLA, name="fine")
"""
COPY = """
import dataclasses
from attn_tune.kernels.flash_attention.xla import SPEC as XLA
"""
BROKEN = {
    "import_error": ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named"),
    "runtime_error": ("raise RuntimeError('no driver')", "RuntimeError: no driver"),
    "exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "base": ("class Odd(BaseException): pass\nraise Odd('odd')", "Odd: odd"),
    "mute": (
        "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute",
        "left out: Mute;",
    ),
    "syntax": ("def SPEC(:", "SyntaxError"),
    "nothing": ("", "AttributeError"),
    "function": ("def SPEC():\n    raise RuntimeError('late')", "RuntimeError: late"),
    "text": ("SPEC = ('a text',)", "a str, not a KernelSpec"),
    "number": ("SPEC = 7", "TypeError"),
    "op": (COPY + "SPEC = dataclasses.replace(XLA, op='decode')", "unknown op 'decode'"),
    "twin": (COPY + "SPEC = XLA", "another kernel 'flash_attention/xla'"),
    "twins": (COPY + "one = dataclasses.replace(XLA, name='a')\nSPEC = (one, one)", "another kernel"),
    "name": (COPY + "SPEC = dataclasses.replace(XLA, name='a b')", "a kernel's name"),
    "searches": (COPY + "SPEC = dataclasses.replace(XLA, name='x', searches=None)", "searches"),
    "direction": (
        COPY + "SPEC = dataclasses.replace(XLA, name='x', searches={'up': XLA.searches['fwd']})",
        "no direction 'up'",
    ),
    "search": (
        COPY
        + "fwd = dataclasses.replace(XLA.searches['fwd'], candidates=None)\n"
        + "SPEC = dataclasses.replace(XLA, name='x', searches={'fwd': fwd})",
        "the search of fwd: candidates must be a table of functions by part, got None",
    ),
    "no search": (
        COPY + "SPEC = dataclasses.replace(XLA, name='x', searches={'fwd': 7})",
        "the search of fwd must be a Search, not a int",
    ),
    "path": (
        COPY
        + "fwd = dataclasses.replace(XLA.searches['fwd'], call='here')\n"
        + "SPEC = dataclasses.replace(XLA, name='x', searches={'fwd': fwd})",
        "the search of fwd: call must be the text MODULE:FUNCTION, got 'here'",
    ),
    "call": (
        COPY
        + "fwd = dataclasses.replace(XLA.searches['fwd'], call='nowhere_at_all:call')\n"
        + "SPEC = dataclasses.replace(XLA, name='x', searches={'fwd': fwd})",
        "'nowhere_at_all' of its call was not found",
    ),
    "outputs": (
        COPY
        + "fwd = dataclasses.replace(XLA.searches['fwd'], outputs='out')\n"
        + "SPEC = dataclasses.replace(XLA, name='x', searches={'fwd': fwd})",
        "the search of fwd: outputs must be a table with a tuple of names of outputs for each part, got 'out'",
    ),
    "outputs of a part": (
        COPY
        + "parts = {'chunk_q': print, 'chunk_k': print}\n"
        + "bwd = dataclasses.replace(XLA.searches['bwd'], candidates=parts, outputs={'chunk_q': ('dq',)})\n"
        + "SPEC = dataclasses.replace(XLA, name='x', searches={'bwd': bwd})",
        "outputs must be a table with a tuple of names of outputs for each part, got {'chunk_q': ('dq',)}",
    ),
    "part": (
        COPY
        + "fwd = dataclasses.replace(XLA.searches['fwd'], candidates={'chunk_q': print, 'dkv': print})\n"
        + "SPEC = dataclasses.replace(XLA, name='x', searches={'fwd': fwd})",
        "the search of fwd: candidates must be of the part '' alone, or of fields of config, got {'chunk_q': ",
    ),
    "priority": (
        COPY + "SPEC = dataclasses.replace(XLA, name='x', priority={'cpu': 'high'})",
        "priority must be a table of integers, or of functions that return one, by platform, got {'cpu': 'high'}",
    ),
    "backend": (
        COPY + "SPEC = dataclasses.replace(XLA, name='x', backend='Triton')",
        "or another word in small letters, got 'Triton'",
    ),
    "libraries": (
        COPY + "SPEC = dataclasses.replace(XLA, name='x', libraries='xy')",
        "libraries",
    ),
    "unsupported": (
        COPY + "SPEC = dataclasses.replace(XLA, name='x', unsupported=None)",
        "unsupported must be a function",
    ),
}  # fmt: skip


def install(folder, name, code):
    """A distribution ``name`` whose one module has ``code``, and its entry point."""
    (folder / f"{name}_module.py").write_text(code)
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {name}_module:SPEC\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path; what is installed there is forgotten again."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(settings, "_current", None)  # with what it remembers of earlier lookups
    registry.clear()
    yield tmp_path
    monkeypatch.undo()
    importlib.invalidate_caches()
    for path in tmp_path.glob("*_module.py"):
        sys.modules.pop(path.stem, None)
    registry.clear()


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_package_is_left_out_with_one_warning(site, kind):
    code, error = BROKEN[kind]
    install(site, "broken", code)
    install(site, "good", GOOD)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = registry.kernels()
        lookup("flash_attention", SIGNATURE)
        attn_tune.explain("flash_attention", SIGNATURE)
    ((category, said),) = [(w.category, str(w.message)) for w in caught]
    assert category is attn_tune.AttnTuneWarning
    assert "package 'broken' (broken = broken_module:SPEC)" in said
    assert error in said
    assert "attn-tune doctor" in said
    assert "\n" not in said
    assert "flash_attention/fine" in found
    assert "flash_attention/xla" in found
    assert not any(spec.entry_point.startswith("broken") for spec in found.values())


def test_a_good_package_warns_of_nothing(site):
    install(site, "good", GOOD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert registry.kernels()["flash_attention/fine"].entry_point == "good_module:SPEC"
    assert registry.broken_packages() == ()


def test_a_check_that_raises_refuses_its_own_kernel_only(site):
    install(
        site,
        "old",
        COPY
        + "def unsupported(problem, direction, device):\n    return problem.a_field_of_another_version\n"
        + "SPEC = dataclasses.replace(XLA, name='old', unsupported=unsupported, priority={'cpu': 99})",
    )
    assert lookup("flash_attention", SIGNATURE).kernel.endswith("xla")
    said = str(attn_tune.explain("flash_attention", SIGNATURE))
    assert "its check of the problem failed: AttributeError" in said


def test_an_unproven_kernel_of_a_package_is_behind_ours_whatever_it_is_called(site):
    install(
        site, "early", COPY.replace("flash_attention", "paged_decode") + "SPEC = dataclasses.replace(XLA, name='aaa')"
    )
    assert registry.get_kernel("paged_decode/aaa").entry_point
    signature = "paged_decode/v1 b=2 t=1 s=64 n=4 k=2 h=32 v=32 page=16 dtype=float32"
    assert lookup("paged_decode", signature).kernel == "xla"


@pytest.mark.parametrize(
    ("field", "code", "words"),
    [
        ("heuristic", "lambda *_: None", "its heuristic must return a ForwardConfig, got None"),
        ("heuristic", "lambda *_: {'step': 1}", "its heuristic must return a ForwardConfig, got {'step': 1}"),
        ("infeasible", "lambda *_: True", "its check of a config must return a reason or None, got True"),
    ],
)
def test_an_installed_search_that_returns_what_it_must_not_leaves_out_its_own_kernel_only(site, field, code, words):
    install(
        site,
        "hostile",
        COPY
        + f"fwd = dataclasses.replace(XLA.searches['fwd'], {field}={code})\n"
        + "SPEC = dataclasses.replace(XLA, name='hostile', searches={'fwd': fwd}, priority={'cpu': 99})",
    )
    assert lookup("flash_attention", SIGNATURE).kernel.endswith("xla")
    assert words in str(attn_tune.explain("flash_attention", SIGNATURE))


def test_an_installed_adapt_may_return_none_and_nothing_else_that_is_no_config(site):
    for name, code in (("without", "lambda *_: None"), ("wrong", "lambda *_: 7")):
        install(
            site,
            name,
            COPY
            + f"fwd = dataclasses.replace(XLA.searches['fwd'], adapt={code})\n"
            + f"SPEC = dataclasses.replace(XLA, name='{name}', searches={{'fwd': fwd}})",
        )
    assert registry.get_kernel("flash_attention/without").searches["fwd"].adapt(1, 2, 3, 4) is None
    with pytest.raises(attn_tune.UnsupportedError, match="its adapt must return a ForwardConfig or None, got 7"):
        registry.get_kernel("flash_attention/wrong").searches["fwd"].adapt(1, 2, 3, 4)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("({'step': 1},)", "must return configs, which are dataclasses, got"),
        (
            "(dataclasses.make_dataclass('C', ['x'])((1, 2)),)",
            r"the knob 'x' must be a number, a text, a truth value or None, got \(1, 2\)",
        ),
        ("itertools.repeat(None)", "makes more than 100,000 configs, or has no end"),
    ],
)
def test_candidates_that_are_no_configs_are_the_result_of_their_kernel(site, made, reason):
    install(
        site,
        "hostile",
        f"import itertools{COPY}"
        + f"fwd = dataclasses.replace(XLA.searches['fwd'], candidates={{'': lambda *_: {made}}})\n"
        + "SPEC = dataclasses.replace(XLA, name='hostile', searches={'fwd': fwd})",
    )
    spec = registry.get_kernel("flash_attention/hostile")
    with pytest.raises(attn_tune.UnsupportedError, match=reason):
        spec.searches["fwd"].candidates[""](None, None)


def test_a_check_that_says_yes_is_no_reason(site):
    install(site, "hostile", COPY + "SPEC = dataclasses.replace(XLA, name='hostile', unsupported=lambda *_: True)")
    reason = registry.get_kernel("flash_attention/hostile").unsupported(None, "fwd", None)
    assert reason == "its check of the problem must return a reason or None, got True"


@pytest.mark.parametrize("place", ["lambda p, d, v: 1 / 0", "lambda p, d, v: 'high'", "lambda: 3"])
def test_a_priority_that_fails_puts_its_kernel_behind_ours(site, place):
    install(site, "late", COPY + f"SPEC = dataclasses.replace(XLA, name='late', priority={{'cpu': {place}}})\n")
    assert lookup("flash_attention", SIGNATURE).kernel == "xla"


@pytest.mark.parametrize("raised", ["SystemExit(3)", "RuntimeError('boo')"])
def test_no_check_of_an_installed_kernel_ends_a_command_or_a_job(site, raised):
    install(
        site,
        "hostile",
        COPY
        + f"def unsupported(problem, direction, device):\n    raise {raised}\n"
        + "SPEC = dataclasses.replace(XLA, name='hostile', unsupported=unsupported)",
    )
    assert lookup("flash_attention", SIGNATURE).kernel.endswith("xla")
    spec = registry.get_kernel("flash_attention/hostile")
    assert "its check of the problem failed" in spec.unsupported(None, "fwd", None)


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("heuristic", "lambda *_: leave()"),
        ("candidates", "{'': lambda *_: (leave() for _ in '1')}"),
        ("infeasible", "lambda *_: leave()"),
    ],
)
def test_an_installed_search_that_exits_leaves_out_its_own_kernel_only(site, field, code):
    install(
        site,
        "hostile",
        COPY
        + "def leave():\n    raise SystemExit(3)\n"
        + f"fwd = dataclasses.replace(XLA.searches['fwd'], {field}={code})\n"
        + "SPEC = dataclasses.replace(XLA, name='hostile', searches={'fwd': fwd}, priority={'cpu': 99})",
    )
    (case,) = make_plan(
        load_grid(SIGNATURE).points,
        kernels=registry.kernels_of("flash_attention"),
        device=device_from_kind("cpu"),
        environment=current_environment(),
        directions=("fwd",),
    ).cases
    plans = {plan.kernel.name: plan for plan in case.kernels}
    assert plans["xla"].runnable
    hostile = plans["hostile"]
    assert hostile.todo == 0
    assert all(trial.reason.endswith("failed: SystemExit: 3") for trial in hostile.pruned)
    assert hostile.pruned
    if field != "candidates":
        assert lookup("flash_attention", SIGNATURE).kernel.endswith("xla")
        assert "failed: SystemExit: 3" in str(attn_tune.explain("flash_attention", SIGNATURE))


def test_an_installed_adapt_that_exits_gives_no_config(site):
    install(
        site,
        "hostile",
        COPY
        + "def leave(*_):\n    raise SystemExit(3)\n"
        + "fwd = dataclasses.replace(XLA.searches['fwd'], adapt=leave)\n"
        + "SPEC = dataclasses.replace(XLA, name='hostile', searches={'fwd': fwd})",
    )
    spec, op = registry.get_kernel("flash_attention/hostile"), get_op("flash_attention")
    problem, device = op.from_signature(op.parse_signature(SIGNATURE)), device_from_kind("cpu")
    config = spec.searches["fwd"].heuristic(problem, device)
    row = Row(
        op=op.name,
        direction="fwd",
        device=device.digest,
        signature=SIGNATURE,
        kernel="hostile",
        rank=0,
        config=config_to_dict(config),
        state="winner",
        env="",
    )
    assert adapted(op, spec, row, problem, device) == "its adapt failed: SystemExit: 3"


def test_the_keyboard_still_interrupts(site):
    install(site, "broken", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        registry.kernels()


@pytest.fixture
def command(tmp_path):
    """Runs a command where one package is broken."""
    install(tmp_path, "broken", "raise SystemExit(3)")

    def run(*words):
        path = os.pathsep.join([str(tmp_path), str(ROOT)])
        return subprocess.run(
            [sys.executable, "-m", "attn_tune", *words],
            env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_commands_show_a_broken_package_on_stderr_and_continue(command):
    done = command("plan", "--grid", SIGNATURE, "--kernel", "flash_attention/xla", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("{")
    assert done.stderr.count("broken_module") == 1
    assert done.stderr.startswith("warning: the kernels of package 'broken'")


def test_prints_of_a_package_are_no_part_of_the_json(command, tmp_path):
    install(
        tmp_path,
        "loud",
        COPY
        + "import os\nprint('as it is imported')\nos.system('echo of a child')\n"
        + "def unsupported(*_):\n    print('as it is asked')\n"
        + "SPEC = dataclasses.replace(XLA, name='loud', unsupported=unsupported)",
    )
    done = command("plan", "--grid", SIGNATURE, "--kernel", "loud", "--json")
    assert json.loads(done.stdout)["kernels"], done.stderr
    for text in ("as it is imported", "of a child", "as it is asked"):
        assert text in done.stderr


def test_the_doctor_fails_on_a_broken_package(command):
    done = command("doctor")
    assert done.returncode == 1
    assert "fail  kernels" in done.stdout
    assert "package 'broken' (broken = broken_module:SPEC)" in done.stdout
    assert "SystemExit: 3" in done.stdout
    assert "warning" not in done.stderr
