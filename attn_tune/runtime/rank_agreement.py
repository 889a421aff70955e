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
from collections.abc import Callable, Container
from typing import Any

from attn_tune.runtime.active.view import View
from attn_tune.runtime.locks import Lock
from attn_tune.runtime.rank_statement import UNUSABLE, device_statement, differences, statement_of
from attn_tune.schema.device import Device
from attn_tune.schema.digest import canonical_json, digest_json
from attn_tune.schema.errors import DisagreementError, UsageError
from attn_tune.schema.logs import log

# Shorter than the 30 s that collectives of CPUs wait for a process.
_deadline_s = 20.0
# Once somebody differs the job is lost: the rest gets this long to be named in the same message.
GRACE_S = 0.4
ACK_S = 2.0
VERDICT_S = 1.0
# A process that did not come in time is not waited for again, until packs are read again.
LATER_S = 1.0
_GAVE_UP = "given up"
# The client dies with the process that made it: a forked child has no business with it.
_forked = False
_round = 0
_has_waited = False
_unusable: set[tuple[int, str]] = set()
_lock = Lock()


def is_job() -> bool:
    """Whether this is one process of several that JAX's distributed client connects."""
    return not _forked and _client() is not None


def set_rank_deadline(seconds: float) -> None:
    """Set the time that the first lookup waits for the other processes of a job: 20 s unless set; 0 asks none.

    Raises:
      UsageError: the time is negative or not finite.
    """
    global _deadline_s
    if not 0 <= seconds < float("inf"):
        raise UsageError(f"seconds must be 0 (asks none) or a positive number, got {seconds!r}")
    _deadline_s = float(seconds)


def next_round() -> None:
    """Compare every view again from now on, changed or not, for the packs may have changed."""
    global _round, _has_waited
    _round += 1
    _has_waited = False


def check(view: View) -> None:
    """Compare the statement of ``view`` with those of the job's other processes, once.

    It needs no device and starts none: JAX's own start waits for all processes, minutes long if one of them looks
    elsewhere.

    Raises:
      DisagreementError: they differ, with every difference; and again at every later call.
      UsageError: the miss mode in the environment is none.
    """
    _check(view, "packs", lambda: statement_of(view))


def check_device(view: View, device: Device) -> None:
    """Compare the device that is asked about, as the packs of ``view`` see it, likewise."""
    _check(view, "device", lambda: device_statement(view, device))


def report_unusable(error: Exception) -> None:
    """Tell the job's other processes, once, that this one cannot read its settings: they would wait for its statement.

    Process 0, whose end is that of the store, waits for them; others do not.
    """
    said = (_round, str(error))
    if is_job() and said not in _unusable:
        _unusable.add(said)
        with _lock:
            _ask("packs", (), {UNUSABLE: str(error)}, waits=_state().process_id == 0)


def _check(view: View, topic: str, statement: Callable[[], dict[str, str]]) -> None:
    """Ask once a round and a topic. ``View.agreement`` keeps the error, ``""`` where all agree or none answers."""
    errors, key = view.agreement, (_round, topic)
    if key not in errors:
        if not is_job():
            return
        with _lock:
            if key not in errors:
                errors[key] = _ask(topic, tuple(layer.name for layer in view.layers), statement())
    if errors[key]:
        raise DisagreementError(errors[key])


def _ask(topic: str, blocks: tuple[str, ...], statement: dict[str, str], *, waits: bool = True) -> str:
    global _has_waited
    deadline_s = min(_deadline_s, LATER_S) if _has_waited else _deadline_s
    state = _state()
    if deadline_s <= 0 or state is None:
        return ""
    try:
        exchange = _Exchange(state, f"{_round}/{topic}", blocks, statement, deadline_s)
        exchange.publish()
        if not waits:
            return ""
        verdict = exchange.verdict()
    except Exception as error:
        # Any error of jaxlib whose store is gone. The job is not ours to end for that: JAX does it, if it must.
        log.warning("cannot compare packs with the other processes of the job: %s", error)
        return ""
    if absent := verdict["absent"]:
        if not _has_waited:
            apart = f" ({verdict['apart']} are in blocks of other packs or overrides)" if verdict["apart"] else ""
            log.warning(
                "no word of packs from processes %s within %g s%s; they are not compared (attn_tune.set_rank_deadline)",
                absent,
                deadline_s,
                apart,
            )
        _has_waited = True
    if not verdict["differences"]:
        return ""
    head = "the processes of this job would choose different kernels or configs:"
    return "\n  ".join([head, *verdict["differences"]])


class _Exchange:
    """One comparison of one statement, in the store under the prefix of its round and topic.

    Equal statements meet by their digest, whenever each comes to its own: threads and processes may come to theirs in
    any order. Two that are made in ``with`` blocks of the same names, and differ, are a disagreement. Others may be
    those of two programs.
    """

    def __init__(self, state: Any, topic: str, blocks: tuple[str, ...], statement: dict[str, str], deadline_s: float):
        self.client = state.client
        self.me, self.count = state.process_id, state.num_processes
        self.prefix = f"attn_tune/ranks/{topic}"
        self.statement = statement
        # Where statements can disagree: of the names of `with` blocks, whose content is in the statement.
        self.blocks = digest_json(list(blocks))[3:]
        self.digest = digest_json([self.blocks, statement])
        # The others give process 0, which waits as long as they do, the time to say so.
        self.until = time.monotonic() + deadline_s + (0.0 if self.me == 0 else VERDICT_S)

    def publish(self) -> None:
        """Publish the statement of this process.

        ``text`` has it once for all who say the same, ``said`` who ever did, ``at`` each process's latest of a name.
        """
        self._set(f"text/{self.digest}", canonical_json(self.statement))
        self._set(f"said/{self.digest}/{self.me}", "")
        self._set(f"at/{self.blocks}/{self.me}", self.digest)

    def verdict(self) -> dict[str, Any]:
        """Return the verdict of process 0, after its statement was published."""
        verdict = self._judge() if self.me == 0 else self._await_verdict()
        if verdict["differences"]:
            self._wait_until_read(verdict)
        return verdict

    def _judge(self) -> dict[str, Any]:
        pause, give_up = 0.002, self.until
        while True:
            now = time.monotonic()
            same = {int(name) for name in self._dir(f"said/{self.digest}")}
            others = self._others(same, given_up=now >= self.until)
            if others:
                give_up = min(give_up, now + GRACE_S)
            if len(same) + len(others) == self.count or now >= give_up:
                break
            time.sleep(min(pause, give_up - now))
            pause = min(pause * 1.5, 0.02)
        lines = self._compare(dict.fromkeys(same, self.digest) | others)
        verdict = self._record([] if lines else sorted({*range(self.count)} - same), lines, {*same, *others})
        for digest in {self.digest, *others.values()}:
            self._set(f"verdict/{digest}", canonical_json(verdict))
        return verdict

    def _await_verdict(self) -> dict[str, Any]:
        while (left := self.until - time.monotonic()) > 0:
            if late := self._as_latecomer():
                return late
            # In short waits: Ctrl-C is only heard in between.
            try:
                verdict = json.loads(self._get(f"verdict/{self.digest}", min(left, 1.0)))
                # One that was given without this process is one on its statement all the same.
                return verdict | {"absent": [i for i in verdict["absent"] if i != self.me]}
            except Exception as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise
        self._set(f"at/{self.blocks}/{self.me}", f"{self.digest} {_GAVE_UP}")
        others = self._others({self.me}, given_up=True)
        lines = self._compare({self.me: self.digest} | others)
        return self._record([] if lines else [0], lines, {self.me, *others})

    def _as_latecomer(self) -> dict[str, Any] | None:
        """The verdict where process 0 has judged these blocks without this process, which says otherwise."""
        judged = self._dir(f"at/{self.blocks}").get("0", self.digest)
        if judged == self.digest or self.me not in self._verdict_on(judged).get("absent", ()):
            return None
        return self._record([], self._compare({0: judged, self.me: self.digest}), {self.me})

    def _record(self, absent: list[int], lines: list[str], present: set[int]) -> dict[str, Any]:
        """A verdict of this process, as it is published if that is process 0."""
        closed = self._dir("verdict")
        waiting = {int(key.rpartition("/")[2]) for key, value in self._tree("at").items() if _is_open(value, closed)}
        apart = sorted(waiting.intersection(absent))
        return {"of": self.digest, "absent": absent, "apart": apart, "present": sorted(present), "differences": lines}

    def _others(self, same: set[int], *, given_up: bool) -> dict[int, str]:
        """The digests of processes that are at another statement of the same blocks, which has no verdict.

        With ``given_up`` those too that waited for a verdict in vain.
        """
        at = {int(name): value for name, value in self._dir(f"at/{self.blocks}").items() if int(name) not in same}
        closed = self._dir("verdict") if at else {}
        return {
            i: value.partition(" ")[0]
            for i, value in at.items()
            if _is_open(value, closed) or (given_up and value.endswith(_GAVE_UP))
        }

    def _verdict_on(self, digest: str) -> dict[str, Any]:
        found = self._dir("verdict").get(digest)
        return json.loads(found) if found else {}

    def _compare(self, digests: dict[int, str]) -> list[str]:
        """The differences of processes, by the digests of their statements."""
        texts = {digest: json.loads(self._get(f"text/{digest}")) for digest in set(digests.values())}
        return differences({i: texts[digest] for i, digest in digests.items()})

    def _wait_until_read(self, verdict: dict[str, Any]) -> None:
        """Wait until the others have heard: process 0 holds the store, and must not raise, and end, before."""
        self._set(f"read/{verdict['of']}/{self.me}", "")
        until = time.monotonic() + ACK_S
        while self.me == 0 and len(self._dir(f"read/{verdict['of']}")) < len(verdict["present"]):
            if time.monotonic() >= until:
                break
            time.sleep(0.005)

    def _dir(self, name: str) -> dict[str, str]:
        """The values in a folder by the last part of their keys."""
        return {key.rpartition("/")[2]: value for key, value in self._tree(name).items()}

    def _tree(self, name: str) -> dict[str, str]:
        return dict(self.client.key_value_dir_get(f"{self.prefix}/{name}/"))

    def _set(self, key: str, value: str) -> None:
        self.client.key_value_set(f"{self.prefix}/{key}", value, allow_overwrite=True)

    def _get(self, key: str, timeout_s: float = 5.0) -> str:
        timeout_ms = max(1, int(timeout_s * 1000))
        return self.client.blocking_key_value_get(f"{self.prefix}/{key}", timeout_ms)


def _is_open(value: str, closed: Container[str]) -> bool:
    """Whether the process at ``value``, a digest, waits for a verdict: it is not one of those that have one."""
    return not value.endswith(_GAVE_UP) and value not in closed


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
