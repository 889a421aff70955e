"""One question to the lookup, and what decides whether a kernel or a stored row may answer it here."""

import dataclasses
import functools
import importlib.util
from collections.abc import Mapping
from typing import Any, NamedTuple

from attn_tune.devices import environments
from attn_tune.kernels.registry import find_kernel, kernels_of
from attn_tune.kernels.source import current_digest
from attn_tune.kernels.spec import PLATFORMS, KernelSpec
from attn_tune.ops.contract import Op
from attn_tune.packs.override_entries import Asked
from attn_tune.packs.reader import Pack
from attn_tune.packs.rows import Row
from attn_tune.runtime.determinism import VARIABLE, Determinism
from attn_tune.runtime.lookup.answer import Rejection
from attn_tune.runtime.overrides.active import NO_OVERRIDES, Overrides
from attn_tune.runtime.unproven import VARIABLE as UNPROVEN
from attn_tune.schema.config import config_from_dict, config_to_dict, config_to_json
from attn_tune.schema.decision import Proof
from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment, Grade
from attn_tune.schema.errors import UnsupportedError, UsageError, unknown_name
from attn_tune.schema.signature import Signature

AUTO = "auto"
# The errors of kernels that could not be loaded in this process, or returned what they must not, by ``op/name``.
left_out: dict[str, str] = {}
# The errors of configs that could not be traced or compiled in this process, by kernel, question and config.
failed_configs: dict["TriedConfig", str] = {}
_FORBIDDEN = f"{VARIABLE}=1 forbids that"


class TriedConfig(NamedTuple):
    """A config for a question.

    Attributes:
      kernel: ``op/name``.
      direction, signature, device: those of the ``Answer``.
      config: its config as JSON; ``""`` is every config of the kernel.
    """

    kernel: str
    direction: str
    signature: str
    device: str
    config: str

    @property
    def failure(self) -> str | None:
        """The error that this config, or every config of its kernel, ended with in this process, or None."""
        return failed_configs.get(self) or failed_configs.get(self._replace(config=""))


class Question:
    """One question with its problem, and the judge of stored rows for it. ``kernel`` None or ``"auto"`` is any."""

    def __init__(
        self,
        op: Op,
        direction: str,
        problem: Any,
        device: Device,
        kernel: str | None,
        overrides: Overrides = NO_OVERRIDES,
        determinism: Determinism = Determinism.USUAL,
        unproven: bool = False,
    ):
        if direction not in op.directions:
            raise unknown_name("direction", direction, op.directions)
        if isinstance(problem, str):
            problem = op.parse_signature(problem)
        if isinstance(problem, Signature):
            problem = op.from_signature(problem)
        self.op, self.direction, self.problem, self.device = op, direction, problem, device
        self.signature: Signature = op.to_signature(problem)
        self.kernel = None if kernel in (None, AUTO) else resolve(op.name, kernel).name
        self.overrides = overrides
        self.determinism = determinism
        self.unproven = unproven
        self._refusals: dict[str, str | None] = {}
        self._environments: dict[str, Environment] = {}
        self._other_bits: dict[tuple[str, str], str] = {}

    @functools.cached_property
    def specs(self) -> tuple[KernelSpec, ...]:
        """The kernels that may answer, by name. This imports them all, which a row that answers does not wait for."""
        return tuple(s for s in kernels_of(self.op.name) if self.kernel in (None, s.name))

    def spec(self, kernel: str) -> KernelSpec | None:
        """The kernel of this name; None if it is not installed, or may not answer because another one is asked for."""
        return find_kernel(f"{self.op.name}/{kernel}") if self.kernel in (None, kernel) else None

    def refusal_of(self, spec: KernelSpec) -> str | None:
        """The reason why this kernel cannot do the problem here, or None; asked once."""
        if spec.name not in self._refusals:
            reason = unsupported(spec, self.problem, self.direction, self.device)
            self._refusals[spec.name] = reason or self._not_deterministic(spec)
        return self._refusals[spec.name]

    def _not_deterministic(self, spec: KernelSpec) -> str | None:
        """The reason why a job that requires determinism may not use this kernel, or None."""
        why = spec.searches[self.direction].nondeterministic
        if why and self.determinism is Determinism.REQUIRED:
            return f"it is not deterministic ({why}), and {_FORBIDDEN}"
        return None

    def takes_part(self, row: Row) -> bool:
        """As ``Judge.takes_part``."""
        spec = self.spec(row.kernel)
        if spec is None or lacking(spec, self.direction):
            return False
        return not self.barred(spec, row)

    def barred(self, spec: KernelSpec, row: Row) -> str | None:
        """The reason why the job's wish for determinism turns a row of this kernel down, or None."""
        return self._not_deterministic(spec) or self.reluctance_of(spec) or self._bits_reason(spec, row)

    def reluctance_of(self, spec: KernelSpec) -> str | None:
        """The reason why this kernel does not answer unless it is asked for by name; None if it does."""
        is_asked = self.kernel is not None or self.determinism is Determinism.WAIVED
        if is_asked or not spec.needs_leave(self.direction):
            return None
        why = spec.searches[self.direction].nondeterministic
        return f"it is not deterministic ({why}); {self._leave}"

    @property
    def _leave(self) -> str:
        """The way to let a kernel answer that is not deterministic, or that there is none."""
        if self.determinism is Determinism.REQUIRED:
            return _FORBIDDEN
        return f"ask for it by name, or allow such with {VARIABLE}=0"

    def other_bits(self, spec: KernelSpec, row: Row) -> str | None:
        """The reason why a config whose bits were seen to differ from run to run may not answer, or None.

        It needs the same leave as a kernel that declares this (``reluctance_of``).
        """
        if reason := self._bits_reason(spec, row):
            # Nor do the heuristics choose what was turned down here, while anything else can be had.
            self._other_bits[spec.name, config_to_json(row.config)] = reason
        return reason

    def _bits_reason(self, spec: KernelSpec, row: Row) -> str | None:
        if row.repeatable is not False:
            return None
        if reason := self.forbidden_bits(row.repeatable):
            return reason
        is_asked = self.kernel is not None or self.determinism is Determinism.WAIVED
        if is_asked or not spec.needs_leave(self.direction, row.repeatable):
            return None
        return f"its bits differ from run to run; {self._leave}"

    def forbidden_bits(self, repeatable: bool | None) -> str | None:
        """The reason why a job that requires determinism may not run a config whose bits differ, or None."""
        if repeatable is False and self.determinism is Determinism.REQUIRED:
            return f"its bits differ from run to run, and {_FORBIDDEN}"
        return None

    def unwanted_bits(self, spec: KernelSpec, config: Any) -> str | None:
        """The reason why a row with this config was turned down for its bits, or None."""
        return self._other_bits.get((spec.name, config_to_json(config_to_dict(config))))

    def refusals(self) -> tuple[Rejection, ...]:
        """Every kernel that cannot or does not answer, with its reason."""
        found = ((s.id, self.refusal_of(s) or self.reluctance_of(s)) for s in self.specs)
        return tuple(Rejection(subject=i, reason=reason) for i, reason in found if reason)

    def grade(self, row: Row, pack: Pack) -> Grade:
        """As ``Judge.grade``. An absent kernel has no source to compare: its rows are refused anyway."""
        spec = self.spec(row.kernel)
        if spec is None:
            return Grade.STALE
        if spec.name not in self._environments:
            self._environments[spec.name] = spec.environment(environments.current_environment())
        measured = pack.environments[row.env]
        if (source := current_digest(measured.source_hash)) != measured.source_hash:
            measured = dataclasses.replace(measured, source_hash=source)
        return self._environments[spec.name].grade(
            measured,
            contract=self.op.version,
            row_contract=pack.contracts[spec.id],
        )

    def refusal(self, row: Row, pack: Pack) -> str | None:
        """As ``Judge.refusal``."""
        spec = self.spec(row.kernel)
        reluctance = (self.reluctance_of(spec) or self.other_bits(spec, row)) if spec else None
        if reluctance is None and row.proof is Proof.UNPROVEN and not self.unproven:
            reluctance = f"it is unproven: its config ran no feature problem ({UNPROVEN}=1 allows that)"
        return self.overrides.broken or reluctance or self.config_of(row.kernel, row.config)[1]

    def adapt(self, row: Row) -> Row | str:
        """As ``Judge.adapt``. A row of a kernel that may not answer stays as it is: ``refusal`` says why."""
        spec = self.spec(row.kernel)
        if spec is None or self.refusal_of(spec):
            return row
        return adapted(self.op, spec, row, self.problem, self.device)

    def config_of(self, kernel: str, data: Mapping[str, Any]) -> tuple[Any, str | None]:
        """A stored config as the kernel's own dataclass, and why it may not run here; None if it may."""
        spec = self.spec(kernel)
        if spec is None:
            return None, f"kernel {self.op.name}/{kernel} is not installed"
        if reason := self.refusal_of(spec):
            return None, reason
        search = spec.searches[self.direction]
        try:
            config = config_from_dict(search.config, data)
        except UsageError as error:
            return None, str(error)
        reason = search.infeasible(self.problem, self.device, config)
        return config, reason or self.forbidden(spec, config)

    @functools.cached_property
    def asked(self) -> Asked:
        """The problem as overrides are compared with it."""
        values = {field.name: field.default for field in self.op.fields} | self.signature.values
        return Asked(self.op.name, self.direction, self.device, self.signature.text, values)

    def forbidden(self, spec: KernelSpec, config: Any) -> str | None:
        """The reason of the override that forbids a config of ``spec``, or the error it ended with here; or None."""
        if failed_configs and self.kernel is None:
            asked = (self.direction, self.signature.text, str(self.device))
            if error := TriedConfig(spec.id, *asked, config_to_json(config_to_dict(config))).failure:
                return f"it failed in this process: {error}"
        return self.overridden(spec, config_to_dict(config)) if self.overrides.never else None

    def overridden(self, spec: KernelSpec, config: Mapping[str, Any]) -> str | None:
        """The reason of the override that forbids a config of ``spec``, as plain data; or None."""
        entry = self.overrides.forbidding(self.asked, spec.name, config)
        if entry is None:
            return None
        origin = f" ({entry.origin})" if entry.origin else ""
        return f"an override forbids it: {entry.reason}{origin}"


def adapted(op: Op, spec: KernelSpec, row: Row, problem: Any, device: Device) -> Row | str:
    """A row of another problem with the config that its kernel makes of it for ``problem``, or why it makes none."""
    search = spec.searches[row.direction]
    try:
        stored = config_from_dict(search.config, row.config)
        tuned = op.from_signature(op.parse_signature(row.signature))
        config = search.adapt(tuned, problem, device, stored)
    except (UsageError, UnsupportedError) as error:
        return str(error)
    if config is None:
        return f"{spec.id} has no such config for this problem"
    return row if config == stored else dataclasses.replace(row, config=config_to_dict(config))


def resolve(op: str, kernel: str) -> KernelSpec:
    """The kernel of ``op`` called ``"triton"`` or ``"OP/triton"``.

    Raises:
      UsageError: there is none; near names are suggested.
    """
    name = kernel.removeprefix(f"{op}/")
    spec = find_kernel(f"{op}/{name}")
    if spec is None:
        raise unknown_name(f"kernel of {op}", kernel, [known.name for known in kernels_of(op)])
    return spec


def unsupported(spec: KernelSpec, problem: Any, direction: str, device: Device) -> str | None:
    """The reason why ``spec`` cannot do ``problem`` here, or None: a direction or a module is missing, or its own."""
    return lacking(spec, direction) or spec.unsupported(problem, direction, device)


def lacking(spec: KernelSpec, direction: str) -> str | None:
    """The reason why ``spec`` can do no problem at all here: it lacks the direction, or a module; None if it may."""
    if direction not in spec.searches:
        return f"it has no {direction}"
    if spec.id in left_out:
        return f"it is left out of this process: {left_out[spec.id]}"
    return missing(spec)


def runs_on(spec: KernelSpec, device: Device) -> bool:
    """True if ``spec`` can run something on ``device``: its backend has the platform, its modules are installed."""
    return device.platform in PLATFORMS.get(spec.backend, (device.platform,)) and not missing(spec)


def missing(spec: KernelSpec) -> str | None:
    """A sentence that names a missing module of ``spec`` and what installs it; None if all are installed."""
    for module in spec.requires:
        if not is_installed(module):
            remedy = f"; pip install 'attn-tune[{spec.extra}]'" if spec.extra else ""
            return f"the module {module!r} is not installed{remedy}"
    return None


@functools.cache
def is_installed(module: str) -> bool:
    """True if ``module`` can be imported. It is not imported, only the packages around it."""
    try:
        return importlib.util.find_spec(module) is not None
    except Exception:
        # A package around it is missing or raises anything, or a module was replaced by hand without a spec.
        return False
