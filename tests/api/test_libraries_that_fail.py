"""Kernels whose libraries cannot be imported, or whose code raises: others answer, and one sentence says so."""

import functools
import logging
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attn_tune
from attn_tune.api.declaration import OutputsError
from attn_tune.runtime.lookup import dispatch
from attn_tune.runtime.lookup.question import failed_configs, left_out
from attn_tune.schema.signals import is_of_handler
from tests.kernels.test_installed import COPY, SIGNATURE, install, site

__all__ = ["site"]

# Where the import fails: as the kernel is traced, and as the module of its call is loaded.
LATE = "def call(problem, config, inputs):\n    import a_library_that_is_not_there\n"
EARLY = "import a_library_that_is_not_there\n"
SPEC = """
searches = {way: dataclasses.replace(s, call="fragile_calls:call") for way, s in XLA.searches.items()}
SPEC = dataclasses.replace(XLA, name="fragile", searches=searches, priority={"cpu": 99})
"""


@pytest.fixture
def installed(site):
    """Installs the kernel ``fragile``, the code of whose calls is given, and the name of their module."""

    def put(code, module):
        # A function that was loaded once is remembered by its path.
        (site / f"{module}.py").write_text(code)
        install(site, "fragile", COPY + SPEC.replace("fragile_calls", module))

    yield put
    left_out.clear()
    failed_configs.clear()


@pytest.fixture(params=[LATE, EARLY], ids=["traced", "loaded"])
def fragile(request, installed):
    installed(request.param, "late_calls" if request.param is LATE else "early_calls")


def operands():
    return (jnp.asarray(np.random.default_rng(i).standard_normal((1, 16, 1, 16), np.float32)) for i in range(3))


def loss(q, k, v, **how):
    return jnp.sum(jnp.sin(attn_tune.flash_attention(q, k, v, **how)))


def test_another_kernel_answers_forward_and_backward(fragile, caplog):
    q, k, v = operands()
    with caplog.at_level(logging.WARNING, "attn_tune"):
        got = jax.jit(jax.grad(loss, (0, 1, 2)))(q, k, v)
        attn_tune.flash_attention(q, k, v)
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.startswith("attn-tune: flash_attention/fragile is left out of this process: ModuleNotFoundError: ")
    want = jax.grad(lambda *x: loss(*x, platform="xla"), (0, 1, 2))(q, k, v)
    jax.tree.map(np.testing.assert_array_equal, got, want)
    explained = str(attn_tune.explain("flash_attention", SIGNATURE))
    assert "it is left out of this process: ModuleNotFoundError: No module named" in explained


def warning_of_a_call(caplog):
    """The one warning of a call that another kernel answers."""
    q, k, v = operands()
    with caplog.at_level(logging.WARNING, "attn_tune"):
        got = attn_tune.flash_attention(q, k, v)
    np.testing.assert_array_equal(got, attn_tune.flash_attention(q, k, v, platform="xla"))
    (warning,) = caplog.messages
    return warning


def test_a_module_that_raises_anything_as_it_is_loaded_is_left_out(installed, caplog):
    installed("raise RuntimeError('no driver')", "calls_without_a_driver")
    assert warning_of_a_call(caplog).endswith("is left out of this process: RuntimeError: no driver")
    q, k, v = operands()
    with pytest.raises(RuntimeError, match="no driver"):
        attn_tune.flash_attention(q, k, v, platform="fragile")


def test_a_kernel_that_would_end_the_job_is_left_out(installed, caplog):
    installed("import sys\ndef call(problem, config, inputs):\n    sys.exit(3)\n", "calls_that_exit")
    warning = warning_of_a_call(caplog)
    assert "flash_attention/fragile is left out of fwd" in warning
    assert warning.endswith("RuntimeError: it called exit(3)")


@pytest.mark.parametrize("error", [SystemExit(7), TypeError("of the handler")], ids=["exit", "type"])
@pytest.mark.parametrize("form", ["function", "method", "partial", "object"])
def test_what_a_signal_handler_raises_is_not_the_kernels_error(installed, error, form):
    class Handler:
        def stop(self, number, frame):
            signal.signal(number, signal.SIG_DFL)
            raise error

        __call__ = stop

    handler = Handler()
    forms = {"function": lambda *received: handler.stop(*received), "method": handler.stop, "object": handler}
    before = signal.signal(signal.SIGUSR1, forms.get(form) or functools.partial(handler.stop))
    installed(
        "import signal\ndef call(problem, config, inputs):\n    signal.raise_signal(signal.SIGUSR1)\n",
        f"calls_that_are_interrupted_{form}_{type(error).__name__}",
    )
    try:
        with pytest.raises(type(error)) as raised:
            attn_tune.flash_attention(*operands())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert raised.value is error


def test_a_handler_may_delete_its_arguments_and_an_error_may_be_its_own_cause(installed):
    def handler(number, frame):
        del number, frame
        raise SystemExit(7)

    before = signal.signal(signal.SIGUSR1, handler)
    installed(
        "import signal\ndef call(problem, config, inputs):\n    signal.raise_signal(signal.SIGUSR1)\n",
        "calls_that_are_interrupted_by_one_that_deletes",
    )
    try:
        with pytest.raises(SystemExit):
            attn_tune.flash_attention(*operands())
    finally:
        signal.signal(signal.SIGUSR1, before)
    error = TypeError("its own cause")
    error.__cause__ = error
    assert not is_of_handler(error)


INTERRUPTED = {
    "loaded": ("import signal\nsignal.raise_signal(signal.SIGUSR1)\n", RuntimeError, RuntimeError),
    "missing": (
        "import signal\ndef call(problem, config, inputs):\n    signal.raise_signal(signal.SIGUSR1)\n",
        ModuleNotFoundError,
        ModuleNotFoundError,
    ),
    "wrapped": (
        "import signal\ndef call(problem, config, inputs):\n    try:\n        signal.raise_signal(signal.SIGUSR1)\n"
        "    except TypeError as error:\n        raise ValueError('wrapped') from error\n",
        TypeError,
        ValueError,
    ),
}


@pytest.mark.parametrize("way", INTERRUPTED)
def test_a_handlers_error_passes_by_every_way_of_a_kernel_that_fails(installed, way):
    code, error, passes = INTERRUPTED[way]

    def handler(number, frame):
        raise error("stop")

    before = signal.signal(signal.SIGUSR1, handler)
    installed(code, f"calls_that_are_interrupted_as_{way}")
    try:
        with pytest.raises(passes):
            attn_tune.flash_attention(*operands())
    finally:
        signal.signal(signal.SIGUSR1, before)


WRONG = {
    "a dict of outputs by name, not a tuple": "return (out, lse)",
    "the output 'out' is missing": "return {'lse': lse}",
    "the output 'out' is float16[1, 16, 1, 16], must be float32[1, 16, 1, 16]": "return {'out': out.astype('float16')}",
    "the output 'out' is float32[16, 1, 16], must be float32[1, 16, 1, 16]": "return {'out': out[0]}",
    "the output 'out' is NoneType, must be": "return {'out': None}",
    "the output 'out' is str, must be": "return {'out': 'text'}",
    "a dict of outputs by name, not a object": "return object()",
}
RIGHT = (
    "import types; return types.MappingProxyType(made)",
    "import collections; return collections.ChainMap(made)",
    "return {**made, 'note': 'text', 3: out, 'none': None}",
    "return dict(reversed(made.items()))",
)


@pytest.fixture
def answer_of(installed, caplog):
    """A function of the last line of ``fragile``, which calls the op and returns the warnings."""
    plain = "from attn_tune.kernels.flash_attention.xla.forward import forward\n"
    body = "    made = forward(problem, config, inputs)\n    out, lse = made['out'], made.get('lse')\n"

    def answer(line):
        module = f"calls_{sorted([*WRONG.values(), *RIGHT]).index(line)}"
        installed(f"{plain}def call(problem, config, inputs):\n{body}    {line}\n", module)
        with caplog.at_level(logging.WARNING, "attn_tune"):
            # A function of its own, which is not traced yet.
            got = jax.jit(lambda *arrays: attn_tune.flash_attention(*arrays))(*operands())
        np.testing.assert_array_equal(got, attn_tune.flash_attention(*operands(), platform="xla"))
        return [record.getMessage() for record in caplog.records]

    return answer


@pytest.mark.parametrize("words", WRONG)
def test_a_kernel_that_returns_what_it_must_not_is_left_out(answer_of, words):
    (said,) = answer_of(WRONG[words])
    assert words in said
    with pytest.raises(attn_tune.UnsupportedError, match="it is left out of this process: OutputsError: "):
        attn_tune.flash_attention(*operands(), platform="fragile")
    left_out.clear()
    with pytest.raises(OutputsError, match="flash_attention/fragile"):
        attn_tune.flash_attention(*operands(), platform="fragile")


@pytest.mark.parametrize("line", RIGHT)
def test_a_kernel_that_returns_what_it_should_in_another_mapping_answers(answer_of, line):
    assert answer_of(line) == []
    assert attn_tune.lookup("flash_attention", SIGNATURE).kernel == "fragile"


def test_the_kernel_that_a_caller_names_is_no_other(fragile):
    q, k, v = operands()
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_there"):
        attn_tune.flash_attention(q, k, v, platform="fragile")
    assert not left_out


def test_processes_of_one_program_choose_alike(fragile, monkeypatch):
    q, k, v = operands()
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ModuleNotFoundError, match="a_library_that_is_not_there"):
        attn_tune.flash_attention(q, k, v)


def test_parts_of_a_mesh_take_another_kernel(fragile):
    mesh = jax.make_mesh((1,), ("x",))
    spec = jax.sharding.PartitionSpec("x")
    call = jax.shard_map(attn_tune.flash_attention, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    q, k, v = (jax.device_put(x, jax.NamedSharding(mesh, spec)) for x in operands())
    want = attn_tune.flash_attention(q, k, v, platform="xla")
    np.testing.assert_array_equal(jax.jit(call)(q, k, v), want)


def test_a_job_that_took_another_kernel_is_frozen_with_that_one(fragile, tmp_path):
    q, k, v = operands()
    attn_tune.flash_attention(q, k, v)
    attn_tune.freeze(tmp_path / "frozen.json")
    assert "fragile" not in (tmp_path / "frozen.json").read_text()
    assert "xla" in (tmp_path / "frozen.json").read_text()


def test_an_answer_that_another_view_remembers_is_asked_again(fragile):
    q, k, v = operands()
    with attn_tune.use_config("flash_attention", "xla", {"chunk_q": 16, "chunk_k": 16}, "bwd"):
        assert attn_tune.lookup("flash_attention", SIGNATURE).kernel == "fragile"
    attn_tune.flash_attention(q, k, v)
    with attn_tune.use_config("flash_attention", "xla", {"chunk_q": 16, "chunk_k": 16}, "bwd"):
        assert attn_tune.lookup("flash_attention", SIGNATURE).kernel == "xla"


def test_a_terminal_does_not_obey_the_text_of_an_error(fragile, caplog):
    with caplog.at_level(logging.WARNING, "attn_tune"):
        dispatch.leave_out("flash_attention/fragile", ImportError("\x1b[31mred\nlines\u202e"))
    (said,) = (record.getMessage() for record in caplog.records)
    assert said.endswith("ImportError: \\x1b[31mred lines\\u202e")


PLAIN = "from attn_tune.kernels.flash_attention.xla.forward import forward\n"
RAISING = {
    "TypeError: an unexpected argument": "raise TypeError('an unexpected argument')",
    "AttributeError: 'NoneType' object has no attribute 'shape'": "None.shape",
    "KeyError: 'block'": "{}['block']",
    "NotImplementedError: no rule": "raise NotImplementedError('no rule')",
    "UnsupportedError: too wide": "import attn_tune; raise attn_tune.UnsupportedError('too wide')",
}


@pytest.fixture
def raising(installed):
    """Installs ``fragile`` with a line that it runs where there are 16 queries."""

    def put(line):
        lines = [*RAISING.values(), *PASSED.values()]
        body = f"    if problem.q_len == 16:\n        {line}\n    return forward(problem, config, inputs)\n"
        module = f"raising_{lines.index(line)}"
        installed(f"{PLAIN}def call(problem, config, inputs):\n{body}", module)

    return put


def answer(*arrays, **how):
    """The output of a call in a program of its own, which was not traced before."""
    return jax.jit(lambda *a: attn_tune.flash_attention(*a, **how))(*arrays)


@pytest.mark.parametrize("words", RAISING)
def test_a_kernel_whose_code_raises_is_left_out_of_that_question(raising, caplog, words):
    raising(RAISING[words])
    with caplog.at_level(logging.WARNING, "attn_tune"):
        got = [answer(*operands()) for _ in range(2)]
    (said,) = (record.getMessage() for record in caplog.records)
    assert said == f"attn-tune: flash_attention/fragile is left out of fwd of {SIGNATURE}: {words}"
    for one in got:
        np.testing.assert_array_equal(one, answer(*operands(), platform="xla"))
    assert f"it failed in this process: {words}" in str(attn_tune.explain("flash_attention", SIGNATURE))
    answer(*(jnp.tile(x, (1, 2, 1, 1)) for x in operands()))
    other = SIGNATURE.replace("t=16 s=16", "t=32 s=32")
    assert attn_tune.lookup("flash_attention", other).kernel == "fragile"
    assert attn_tune.lookup("flash_attention", SIGNATURE).kernel == "xla"
    kind, _, text = words.partition(": ")
    with pytest.raises(Exception, match=text) as caught:
        answer(*operands(), platform="fragile")
    assert caught.type.__name__ == kind


PASSED = {
    "out of memory": "raise RuntimeError('out of memory')",
    "a malformed array": "import attn_tune; raise attn_tune.UsageError('a malformed array')",
}


@pytest.mark.parametrize("words", PASSED)
def test_errors_of_devices_and_of_callers_are_raised(raising, words):
    raising(PASSED[words])
    with pytest.raises((RuntimeError, attn_tune.UsageError), match=words):
        answer(*operands())
    assert not failed_configs
    assert not left_out


def test_the_error_is_raised_where_no_other_kernel_can_answer(raising):
    raising(RAISING["KeyError: 'block'"])
    left_out["flash_attention/xla"] = "a test"
    for _ in range(2):
        with pytest.raises(KeyError, match="block") as caught:
            answer(*operands())
        assert "raising_" in str(caught.traceback[-1].path)
    assert not failed_configs
