"""The worker's store of prepared cases: made once, dropped when the sweep moves on."""

from collections import OrderedDict
from collections.abc import Callable

from attn_tune.kernels.registry import get_op
from attn_tune.kernels.spec import Op, Problem
from attn_tune.schema.errors import AttnTuneError
from attn_tune.schema.signature import Signature
from attn_tune.tuner.faults import short
from attn_tune.tuner.protocol import Phase
from attn_tune.tuner.validate import Prepared, prepare

# Battery problems are tiny, and shared by many cases.
_BATTERY_KEPT = 32
_BATTERY_SEED = 1009

type _Key = tuple[str, Problem, str, int]


class PrepareError(AttnTuneError):
    """The inputs or the reference could not be made: the case's trouble, not the config's."""


class PreparedCases:
    """Prepared cases by (op, problem, direction, seed). ``enter`` is called before one is made."""

    def __init__(self, enter: Callable[[Phase], object]):
        self._enter = enter
        self._cases: dict[_Key, Prepared] = {}
        self._battery: OrderedDict[_Key, Prepared] = OrderedDict()

    def case(self, signature: Signature, direction: str, seed: int) -> Prepared:
        """The case, whose memory is freed when another signature or direction is asked for."""
        key = (signature.op, get_op(signature.op).from_signature(signature), direction, seed)
        if key not in self._cases:
            # The device holds one case at a time: the largest ones leave no room for two.
            self._cases = {k: v for k, v in self._cases.items() if k[:3] == key[:3]}
            self._cases[key] = self._make(key)
        return self._cases[key]

    def battery(self, op: Op, problem: Problem, direction: str) -> Prepared:
        """A battery problem, on inputs that no search has seen; the latest few are kept."""
        key = (op.name, problem, direction, _BATTERY_SEED)
        if key not in self._battery:
            self._battery[key] = self._make(key)
            while len(self._battery) > _BATTERY_KEPT:
                self._battery.popitem(last=False)
        self._battery.move_to_end(key)
        return self._battery[key]

    def _make(self, key: _Key) -> Prepared:
        name, problem, direction, seed = key
        op = get_op(name)
        self._enter(Phase.PREPARE)
        try:
            return prepare(op, problem, direction, seed)
        except Exception as error:
            what = f"inputs or reference of {op.to_signature(problem)} {direction} cannot be made"
            raise PrepareError(f"{what}: {short(f'{type(error).__name__}: {error}')}") from error
