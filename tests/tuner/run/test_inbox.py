"""Messages of child processes that come in part, in pieces, or after their sender has ended."""

import functools
import pickle
import socket
import struct
import threading
from multiprocessing.connection import Connection

import pytest

from attn_tune.tuner.protocol import Limits, Ready
from attn_tune.tuner.run import executor as executor_module
from attn_tune.tuner.run.executor import CaseError, IsolatedExecutor
from attn_tune.tuner.run.helper_processes import Helper, HelperLost
from attn_tune.tuner.run.inbox import Inbox
from attn_tune.tuner.run.process import WorkerDied, WorkerProcess
from tests.patience import PATIENCE_S


def framed(message: object) -> bytes:
    """``message`` as a ``Connection`` sends it."""
    data = pickle.dumps(message)
    return struct.pack("!i", len(data)) + data


HALF = struct.pack("!i", 1000) + b"half of it"
READY_AND_HALF = f"""
import os, sys, time
os.write(int(sys.argv[1]), {framed(Ready()) + HALF!r})
time.sleep({PATIENCE_S})
"""
LARGE = """
import sys
from multiprocessing.connection import Connection
Connection(int(sys.argv[1])).send(bytes(40_000_000) + b"end")
"""


@pytest.fixture
def sockets():
    ours, theirs = socket.socketpair()
    with theirs, Connection(ours.detach()) as connection:
        yield connection, theirs


def test_a_worker_that_stops_within_a_message_is_killed_at_its_limit(monkeypatch, tmp_path):
    (tmp_path / "half_worker.py").write_text(READY_AND_HALF)
    monkeypatch.syspath_prepend(tmp_path)
    started = []

    def start(*args, **kwargs):
        started.append(WorkerProcess(*args, module="half_worker", **kwargs))
        return started[-1]

    monkeypatch.setattr(executor_module, "WorkerProcess", start)
    limits = Limits(start=PATIENCE_S, prepare=0.0)
    with IsolatedExecutor(limits=limits, cores=1) as executor, pytest.raises(CaseError, match="no end within 0 s"):
        executor.identify()
    assert len(started) == 2
    assert not any(worker.is_running for worker in started)


def test_a_large_message_of_a_worker_that_ends_after_it_arrives_whole(monkeypatch, tmp_path):
    (tmp_path / "large_worker.py").write_text(LARGE)
    monkeypatch.syspath_prepend(tmp_path)
    worker = WorkerProcess(module="large_worker")
    message = worker.receive(PATIENCE_S, lambda: False)
    assert (len(message), message[-3:]) == (40_000_003, b"end")
    with pytest.raises(WorkerDied, match="exit status 0"):
        worker.receive(PATIENCE_S, lambda: False)


def test_a_helper_that_stops_within_a_message_is_lost_at_its_limit(sockets):
    connection, theirs = sockets
    theirs.sendall(framed(12345) + HALF)
    rescue = threading.Timer(PATIENCE_S, functools.partial(theirs.shutdown, socket.SHUT_RDWR))
    rescue.start()
    with pytest.raises(HelperLost, match="no end within"):
        Helper(connection).ask("work", 0.2, lambda: False)
    rescue.cancel()


def test_bytes_of_a_helper_that_are_no_message_lose_it_alone(sockets):
    connection, theirs = sockets
    theirs.sendall(struct.pack("!i", 4) + b"junk")
    with pytest.raises(HelperLost, match="no message"):
        Helper(connection).ask("work", PATIENCE_S, lambda: False)


def test_messages_that_come_in_pieces_and_together_are_taken_one_by_one(sockets):
    connection, theirs = sockets
    inbox = Inbox(connection)
    data = framed("first") + framed(["second"])
    for byte in data[:-1]:
        theirs.sendall(bytes([byte]))
        inbox.poll(0.0)
    assert inbox.poll(0.0)
    assert inbox.take() == "first"
    assert not inbox.poll(0.0)
    theirs.sendall(data[-1:] + framed(3))
    theirs.shutdown(socket.SHUT_WR)
    assert [inbox.poll(0.0) and inbox.take() for _ in range(2)] == [["second"], 3]
    with pytest.raises(EOFError):
        inbox.poll(0.0)


def test_a_length_below_zero_is_no_message(sockets):
    connection, theirs = sockets
    theirs.sendall(b"\xff" * 16)
    with pytest.raises(ValueError, match="a message of -1 bytes"):
        Inbox(connection).poll(0.0)
