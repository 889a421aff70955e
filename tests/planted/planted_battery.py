"""The planted-fault battery: what is planted, what it must be called, and how many workers it may cost.

Each fault runs between two good configs, on a worker that was used before.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from attn_tune.schema.device import Device
from attn_tune.schema.signature import Signature
from attn_tune.schema.trial import Status
from attn_tune.tuner.protocol import ConfigRef, Limits, MeasurePolicy, Outcome, Run
from attn_tune.tuner.run.executor import Executor, IsolatedExecutor

POLICY = MeasurePolicy(warmup=1, samples=3, min_samples=1, max_s=0.1)
LIGHT = {"defect": "none", "work": 0}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One row. ``lost`` workers: the one it hit, and the fresh one on which it was tried again."""

    name: str
    status: Status
    words: str
    lost: int = 0
    platforms: tuple[str, ...] = ("cpu", "cuda")


@dataclass(frozen=True, kw_only=True)
class Result:
    """Outcomes of one row and of the good configs before and after it."""

    fault: Fault
    outcome: Outcome
    before: Outcome
    after: Outcome

    @property
    def named_right(self) -> bool:
        """Whether status and reason are those of the row."""
        return self.outcome.status is self.fault.status and self.fault.words in self.outcome.reason

    @property
    def harmless(self) -> bool:
        """Whether both neighbours are right."""
        return self.before.status is self.after.status is Status.OK


def _crash(name: str, words: str, *, lost: int = 2, **changes) -> Fault:
    return Fault(name=name, status=Status.CRASHED, words=words, lost=lost, **changes)


def _late(name: str, phase: str, **changes) -> Fault:
    words = f"{phase}: no end within"
    return Fault(name=name, status=Status.TIMED_OUT, words=words, lost=2, **changes)


def _memory(name: str, words: str) -> Fault:
    return Fault(name=name, status=Status.OUT_OF_RESOURCES, words=words, lost=2)


def _wrong(name: str, words: str) -> Fault:
    return Fault(name=name, status=Status.INCORRECT, words=words)


FAULTS = (
    _crash("segfault_in_run", "validate: the worker process ended: killed by SIGSEGV"),
    _late("hang_in_compile", "compile"),
    _crash("abort_in_run", "killed by SIGABRT"),
    _crash("sys_exit_in_trace", "exit status 1; it wrote: no such tile"),
    _crash("exit_in_trace", "exit status 7; it wrote: last words of a dying compiler"),
    _late("loop_in_compile", "compile"),
    Fault(name="raise_in_trace", status=Status.COMPILE_ERROR, words="this tile has no lowering"),
    Fault(name="raise_in_run", status=Status.RUNTIME_ERROR, words="the launch was refused"),
    # A kill from outside is seldom the config's fault: it has two more tries.
    _crash(
        "killed_in_run",
        "killed by SIGKILL from outside, perhaps by the kernel's OOM killer",
        lost=3,
    ),
    _memory("memory_error", "MemoryError"),
    _memory("memory_eater", "validate: host memory: "),
    _late("hang_in_run", "validate"),
    _wrong("nan", "out is wrong: not finite where the reference is"),
    _wrong("wrong", "out is wrong"),
    _wrong("flaky", "different bits"),
    _wrong("wrong_dk", "dk is wrong"),
    _memory("out_of_memory", "emory"),
    _crash("illegal_access", "CUDA_ERROR_ILLEGAL_ADDRESS"),
    Fault(name="chatter", status=Status.OK, words=""),
    Fault(name="child_stays", status=Status.OK, words=""),
    _crash("child_survives", "exit status 5"),
    _crash("write_out_of_bounds", "ILLEGAL_ADDRESS", platforms=("cuda",)),
    _late("spin", "validate", platforms=("cuda",)),
)


class PatientExecutor(IsolatedExecutor):
    """Gives every phase ten minutes, but ``hang_s`` to the one in which a config is planted to hang.

    So a busy machine is not taken for a hang, and a hang costs little.
    """

    hang_s = 1.0

    def run(self, request: Run) -> Outcome:
        """See ``Executor.run``."""
        phase = _HANGS.get(str(request.ref.config.get("defect")))
        self.limits = replace(_PATIENT, memory_gib=self.limits.memory_gib, **({phase: self.hang_s} if phase else {}))
        return super().run(request)


_PATIENT = Limits(start=600.0, prepare=600.0, compile=600.0, validate=600.0, measure=600.0)
_HANGS = {fault.name: fault.words.partition(":")[0] for fault in FAULTS if fault.status is Status.TIMED_OUT}


def run_battery(executor: Executor, faults: Iterable[Fault], signature: Signature, device: Device) -> Iterator[Result]:
    """Runs each row, and a good config before and after it; the one after is the one before the next."""

    def run(defect: str, turn: int) -> Outcome:
        return executor.run(request(signature, device, defect, turn))

    before = run("none", 1)
    for turn, fault in enumerate(faults, start=2):
        outcome = run(fault.name, turn)
        after = run("none", turn)
        yield Result(fault=fault, outcome=outcome, before=before, after=after)
        before = after


def request(signature: Signature, device: Device, defect: str, turn: int = 1) -> Run:
    """The request for a config with ``defect``."""
    backward = defect == "wrong_dk"
    ref = ConfigRef(
        kernel="flash_attention/planted_backward" if backward else "flash_attention/planted_deadly",
        signature=signature,
        direction="bwd" if backward else "fwd",
        config={"dq": LIGHT, "dkv": {"defect": defect, "work": 0}} if backward else {"defect": defect, "turn": turn},
    )
    return Run(ref=ref, device=device, policy=POLICY, seeds=(0,))
