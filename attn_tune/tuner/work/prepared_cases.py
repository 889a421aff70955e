"""`PreparedCases`: the worker's store of prepared cases, made once and dropped when the sweep moves on."""

import functools
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from attn_tune.ops.contract import load
from attn_tune.ops.registry import get_op
from attn_tune.schema.errors import AttnTuneError, short
from attn_tune.tuner.protocol import ConfigRef, Phase
from attn_tune.tuner.work.case_functions import CaseFunctions, compile_case_functions
from attn_tune.tuner.work.validate import Prepared

logger = logging.getLogger(__name__)

# Feature problems are tiny, and shared by many cases.
_FEATURES_KEPT = 32
_FUNCTIONS_KEPT = 256
_THREADS = 4

# Op, problem, direction and seed.
type _Key = tuple[str, Any, str, int]


class PrepareError(AttnTuneError):
    """The inputs or the reference could not be made: the case's trouble, not the config's."""


class PreparedCases:
    """Prepared cases by (op, problem, direction, seed). ``enter`` is called before one is made."""

    def __init__(self, enter: Callable[[Phase], object]):
        self._enter = enter
        self._cases: dict[_Key, Prepared] = {}
        self._feature = functools.lru_cache(_FEATURES_KEPT)(self._make)
        self._functions = functools.lru_cache(_FUNCTIONS_KEPT)(self._submit)
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="reference")

    def case(self, ref: ConfigRef, seed: int) -> Prepared:
        """The case that ``ref`` runs on.

        The memory of a signature's case is freed when another signature or direction is asked for; of feature
        problems the latest few are kept.

        Raises:
          PrepareError: it cannot be made.
        """
        key = (ref.signature.op, ref.runs_on, ref.direction, seed)
        if ref.problem is not None:
            return self._feature(key)
        if key not in self._cases:
            # The device holds one case at a time: the largest ones leave no room for two.
            self._cases = {k: v for k, v in self._cases.items() if k[:3] == key[:3]}
            self._cases[key] = self._make(key)
            if features := get_op(key[0]).features:
                self._foresee(key[0], load(features)(key[1]), key[2])
        return self._cases[key]

    def foresee(self, ref: ConfigRef) -> None:
        """Compile what prepares a ref that will come soon. May be called from another thread."""
        self._foresee(ref.signature.op, (ref.runs_on,), ref.direction)

    def _make(self, key: _Key) -> Prepared:
        name, problem, direction, seed = key
        self._enter(Phase.PREPARE)
        try:
            return self._functions(name, problem, direction).result().make(seed)
        except Exception as error:
            what = f"inputs or reference of {get_op(name).to_signature(problem)} {direction} cannot be made"
            raise PrepareError(f"{what}: {short(f'{type(error).__name__}: {error}')}") from error

    def _submit(self, op: str, problem: Any, direction: str) -> Future[CaseFunctions]:
        import jax

        made = self._pool.submit(compile_case_functions, get_op(op), problem, direction)
        if jax.default_backend() != "cpu":
            self._pool.submit(_compile_judgement, made)
        return made

    def _foresee(self, op: str, problems: Iterable[Any], direction: str) -> None:
        """Compile meanwhile, where that does not take the time of what is measured."""
        import jax

        if jax.default_backend() == "cpu":
            return
        for problem in problems:
            self._functions(op, problem, direction)


def _compile_judgement(made: Future[CaseFunctions]) -> None:
    """Compile what judges a case's outputs. It only saves time: what judges compiles what it does not find."""
    try:
        made.result().compile_judgement()
    except Exception as error:
        logger.debug("compiling ahead what judges outputs: %s: %s", type(error).__name__, error)
