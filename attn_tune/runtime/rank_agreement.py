"""The comparison of a job's processes: at first use, before anything is traced with an answer.

Processes that choose differently compile different programs, and their collectives hang. So each publishes its
statement (``rank_statement``) in the key-value store of JAX's distributed client; process 0 compares and publishes its
verdict, which the others wait for. There is no collective here and every wait has a deadline: a process that does not
take part (a job of several programs) costs the others the deadline once and a warning, never a hang.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from attn_tune.runtime.active.view import View
from attn_tune.runtime.locks import Lock
from attn_tune.runtime.rank_statement import device_statement, differences, statement_of
from attn_tune.schema.device import Device
from attn_tune.schema.digest import canonical_json, digest_json
from attn_tune.schema.errors import DisagreementError, UsageError
from attn_tune.schema.logs import log

_deadline_s = 30.0
# Once somebody differs the job is lost: the rest gets this long to be named in the same message.
GRACE_S = 0.4
ACK_S = 2.0
VERDICT_S = 1.0
# The client dies with the process that made it: a forked child has no business with it.
_forked = False
_round = 0
_lock = Lock()


def is_job() -> bool:
    """Whether this is one process of several that JAX's distributed client connects."""
    return not _forked and _client() is not None


def set_rank_deadline(seconds: float) -> None:
    """Set the time that the first lookup waits for the other processes of a job: 30 s unless set; 0 asks none.

    Raises:
      UsageError: the time is negative or not finite.
    """
    global _deadline_s
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"seconds must be 0 (asks none) or a positive number, got {seconds!r}")
    _deadline_s = float(seconds)


def next_round() -> None:
    """Compare every view again from now on, changed or not, for the packs may have changed."""
    global _round
    _round += 1


def check(view: View) -> None:
    """Compare the statement of ``view`` with those of the job's other processes, once.

    It needs no device and starts none: JAX's own start waits for all processes, minutes long if one of them looks
    elsewhere.

    Raises:
      DisagreementError: they differ, with every difference; and again at every later call.
      UsageError: the deadline in the environment is no number.
    """
    _check(view, "packs", lambda: statement_of(view))


def check_device(view: View, device: Device) -> None:
    """Compare the device that is asked about, as the packs of ``view`` see it, likewise."""
    _check(view, "device", lambda: device_statement(view, device))


def _check(view: View, topic: str, statement: Callable[[], dict[str, str]]) -> None:
    """Ask once a round and a topic. ``View.agreement`` keeps the error, ``""`` where all agree or none answers."""
    errors, key = view.agreement, (_round, topic)
    if key not in errors:
        if not is_job():
            return
        with _lock:
            if key not in errors:
                errors[key] = _ask(f"{topic}/{_meeting(view)}", statement())
    if errors[key]:
        raise DisagreementError(errors[key])


def _ask(topic: str, statement: dict[str, str]) -> str:
    deadline_s = _deadline_s
    state = _state()
    if deadline_s <= 0 or state is None:
        return ""
    try:
        verdict = _Exchange(state, topic, deadline_s).verdict(statement)
    except Exception as error:
        # Any error of jaxlib whose store is gone. The job is not ours to end for that: JAX does it, if it must.
        log.warning("cannot compare packs with the other processes of the job: %s", error)
        return ""
    if absent := verdict["absent"]:
        log.warning(
            "no word of packs from processes %s within %g s; they are not compared (attn_tune.set_rank_deadline)",
            absent,
            deadline_s,
        )
    if not verdict["differences"]:
        return ""
    head = "the processes of this job would choose different kernels or configs:"
    return "\n  ".join([head, *verdict["differences"]])


class _Exchange:
    """One comparison, in the store under one prefix."""

    def __init__(self, state: Any, topic: str, deadline_s: float):
        self.client = state.client
        self.me, self.count = state.process_id, state.num_processes
        self.prefix = f"attn_tune/ranks/{topic}"
        # The others give process 0, which waits as long as they do, the time to say so.
        self.until = time.monotonic() + deadline_s + (0.0 if self.me == 0 else VERDICT_S)

    def verdict(self, statement: dict[str, str]) -> dict[str, Any]:
        """Publish the statement of this process; return the verdict of process 0."""
        digest = digest_json(statement)
        # The text goes in once for all who say the same; only digests are collected.
        self._set(f"text/{digest}", canonical_json(statement))
        self._set(f"say/{self.me}", digest)
        verdict = self._judge(digest) if self.me == 0 else self._await_verdict()
        if verdict["differences"]:
            self._wait_until_read(set(verdict["present"]))
        return verdict

    def _judge(self, mine: str) -> dict[str, Any]:
        pause, give_up = 0.002, self.until
        while True:
            digests = self._statement_digests()
            if len(digests) == self.count:
                break
            now = time.monotonic()
            if any(digest != mine for digest in digests.values()):
                give_up = min(give_up, now + GRACE_S)
            if now >= give_up:
                break
            time.sleep(min(pause, give_up - now))
            pause = min(pause * 1.5, 0.02)
        lines = self._compare(digests)
        absent = [] if lines else [i for i in range(self.count) if i not in digests]
        verdict = {"absent": absent, "present": sorted(digests), "differences": lines}
        self._set("verdict", canonical_json(verdict))
        return verdict

    def _await_verdict(self) -> dict[str, Any]:
        while (left := self.until - time.monotonic()) > 0:
            # In short waits: Ctrl-C is only heard in between.
            try:
                return self._as_latecomer(json.loads(self._get("verdict", min(left, 1.0))))
            except Exception as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
        return {"absent": [0], "present": [], "differences": []}

    def _as_latecomer(self, verdict: dict[str, Any]) -> dict[str, Any]:
        """The verdict, or one of process 0 and this process, if that one was given without it."""
        if verdict["differences"] or self.me in verdict["present"]:
            return verdict
        both = {i: digest for i, digest in self._statement_digests().items() if i in (0, self.me)}
        return {"absent": [], "present": [], "differences": self._compare(both)}

    def _compare(self, digests: dict[int, str]) -> list[str]:
        """The differences of processes, by the digests of their statements."""
        texts = {digest: json.loads(self._get(f"text/{digest}")) for digest in set(digests.values())}
        return differences({i: texts[digest] for i, digest in digests.items()})

    def _wait_until_read(self, present: set[int]) -> None:
        """Wait until the others have heard: process 0 holds the store, and must not raise, and end, before."""
        self._set(f"read/{self.me}", "")
        until = time.monotonic() + ACK_S
        while self.me == 0 and len(self._dir("read")) < len(present) and time.monotonic() < until:
            time.sleep(0.005)

    def _statement_digests(self) -> dict[int, str]:
        return {int(key.rpartition("/")[2]): digest for key, digest in self._dir("say")}

    def _dir(self, name: str) -> list[tuple[str, str]]:
        return self.client.key_value_dir_get(f"{self.prefix}/{name}/")

    def _set(self, key: str, value: str) -> None:
        self.client.key_value_set(f"{self.prefix}/{key}", value, allow_overwrite=True)

    def _get(self, key: str, timeout_s: float = 5.0) -> str:
        timeout_ms = max(1, int(timeout_s * 1000))
        return self.client.blocking_key_value_get(f"{self.prefix}/{key}", timeout_ms)


def _meeting(view: View) -> str:
    """The place where equal views meet: by the names of their layers, for the content is the question.

    Not by a count of views: threads may come to theirs in any order.
    """
    return f"{_round}/{digest_json([layer.name for layer in view.layers])[3:]}"


def _state() -> Any:
    """The record that JAX has of the job. It has no public name; without it there is no job to ask."""
    return getattr(sys.modules.get("jax._src.distributed"), "global_state", None)


def _client() -> Any:
    state = _state()
    client = getattr(state, "client", None)
    return client if client is not None and getattr(state, "num_processes", 1) > 1 else None


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
