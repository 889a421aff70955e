"""Those who listen to lookups, and what their failures do: nothing."""

import pytest

from attn_tune.runtime import answer_listeners, lookup_counters
from attn_tune.runtime.active.layers import use_pack
from attn_tune.runtime.answer_listeners import add_listener
from attn_tune.runtime.lookup.answer import Rung
from attn_tune.runtime.lookup.dispatch import lookup
from attn_tune.schema.errors import UsageError
from tests.patience import PATIENCE_S
from tests.runtime.lookup.toy_op import pack
from tests.runtime.packbuilder import H200, OP, row, sig


@pytest.fixture(autouse=True)
def nobody():
    yield
    assert answer_listeners.active == ()


def ask(t=1024):
    return lookup(OP, sig(t), device=H200)


def test_every_lookup_calls_the_listener_warm_or_not():
    heard = []
    remove = add_listener(heard.append)
    with use_pack(pack(row(sig(1024), 64))):
        answers = [ask(), ask(), ask(9000)]
    remove()
    ask()
    assert heard == answers
    assert [a.rung for a in heard] == [Rung.EXACT, Rung.EXACT, Rung.UNTUNED]
    remove()


def test_an_exception_never_reaches_the_job_and_is_logged_once(caplog):
    def fails(answer):
        raise ZeroDivisionError("mine")

    heard = []
    removes = [add_listener(fails), add_listener(heard.append)]
    for _ in range(3):
        ask()
    for remove in removes:
        remove()
    assert len(heard) == 3
    assert len([r for r in caplog.records if "listener" in r.getMessage()]) == 1


def test_a_listener_may_look_up_and_may_take_itself_away():
    heard = []

    def curious(answer):
        heard.append(ask(2048))
        remove()

    remove = add_listener(curious)
    ask()
    ask()
    assert len(heard) == 1


def test_a_listener_is_called_outside_every_lock():
    """A listener may wait for a thread that takes locks: it reloads, reads counters and adds a listener."""
    import threading

    from attn_tune.runtime.active.layers import reload

    done = []

    def busy(answer):
        thread = threading.Thread(
            target=lambda: (
                reload(),
                lookup_counters.stats(),
                add_listener(print)(),
                done.append(1),
            )
        )
        thread.start()
        thread.join(PATIENCE_S)

    remove = add_listener(busy)
    ask()
    remove()
    assert done == [1]


def test_what_is_no_function_is_refused():
    with pytest.raises(UsageError, match="a listener must be a function of an Answer, got 3"):
        add_listener(3)
