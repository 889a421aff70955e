"""A regression of log time on configs and shapes, with scikit-learn: the only part that needs it."""

import importlib.util
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attn_tune.schema.digest import digest_text
from attn_tune.schema.errors import UsageError
from attn_tune.tuner.plan.strategies.features import knob_rows, shape_rows, with_products
from attn_tune.tuner.plan.strategies.nearness import nearest, weight
from attn_tune.tuner.plan.strategies.portfolio import expected_ratios
from attn_tune.tuner.plan.strategies.space import PastCase, Space

if TYPE_CHECKING:
    import numpy as np

_TREES = 30
# Farther cases than so many add time and little else.
_MOST_CASES = 12
_FAILED_ELSEWHERE = math.log(4.0)
_LEAST_SPREAD = 0.003


def has_scikit_learn() -> bool:
    """Whether the surrogate can run here."""
    return importlib.util.find_spec("sklearn") is not None


def require_scikit_learn() -> None:
    """Say how to get what the model needs.

    Raises:
      UsageError: scikit-learn is not installed.
    """
    if not has_scikit_learn():
        raise UsageError(
            "the strategy 'surrogate' needs scikit-learn, which is not installed: pip install 'attn-tune[search]', "
            "or choose --strategy portfolio"
        )


class TimeModel:
    """Predicts the candidates of one space: first from the prior, then ever more from their own times.

    The base line is what a forest makes of the other shapes; a Gaussian process over the knobs corrects it by what was
    seen here, which a few points suffice for. Without a prior the base line is flat. A second forest learns which
    candidates fail.
    """

    def __init__(self, space: Space):
        """Read the prior of ``space``.

        Raises:
          UsageError: scikit-learn is not installed.
        """
        require_scikit_learn()
        self._space = space
        self._seed = int(digest_text(space.seed)[-8:], 16)
        self._digests = list(space.by_digest)
        self._place = {digest: i for i, digest in enumerate(self._digests)}
        self._knobs = _standard(knob_rows(list(space.candidates)))
        self._rows = with_products(knob_rows(list(space.candidates)))
        self._base = self._base_line()

    def choose(self, times: Mapping[str, float], count: int) -> list[str]:
        """The ``count`` candidates beside ``times`` (ns) from which most is expected, the best first.

        Each is chosen as if those before it had come out as predicted, so that they are not all of a kind. What counts
        is the expected improvement in log time (Jones, Schonlau and Welch, 1998) times the chance not to fail.
        """
        import numpy as np
        from threadpoolctl import threadpool_limits

        logs = np.full(len(self._digests), np.nan)
        for digest, ns in times.items():
            logs[self._place[digest]] = math.log(ns)
        # The matrices are small, and the other cores compile.
        with threadpool_limits(limits=1):
            return self._choose(logs, count)

    def _choose(self, logs: "np.ndarray", count: int) -> list[str]:
        import numpy as np

        chance = self._chance(logs)
        process = self._fit(logs) if np.isfinite(logs).any() else None
        chosen: list[str] = []
        while len(chosen) < count and np.isnan(logs).any():
            mean, spread = self._predict(process, logs)
            score = np.where(np.isnan(logs), _improvement(logs, mean, spread) * chance, -1.0)
            place = int(score.argmax())
            chosen.append(self._digests[place])
            logs[place] = mean[place]
        return chosen

    def spread_out(self, start: Sequence[str], count: int) -> list[str]:
        """``count`` untried candidates, each the farthest from ``start`` and from those before it."""
        import numpy as np

        held = [self._place[digest] for digest in start]
        among = [self._place[d] for d in self._space.open if d not in start]
        chosen: list[str] = []
        while among and len(chosen) < count:
            apart = np.abs(self._knobs[among][:, None] - self._knobs[held][None])
            place = among.pop(int(apart.sum(axis=2).min(axis=1).argmax()))
            held.append(place)
            chosen.append(self._digests[place])
        return chosen

    def _fit(self, logs: "np.ndarray"):
        """The correction of the base line, with a length scale a knob fitted to what was seen."""
        import numpy as np
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        scales: Any = np.full(self._knobs.shape[1], 2.0)
        kernel = ConstantKernel(0.1, (1e-3, 1e1)) * Matern(scales, (0.5, 20.0), nu=1.5)
        kernel = kernel + WhiteKernel(1e-3, (1e-5, 1e-1))
        process = GaussianProcessRegressor(kernel, random_state=self._seed % 2**32)
        seen = np.isfinite(logs)
        off = logs[seen] - self._base[seen]
        with warnings.catch_warnings():
            # A scale at its bound is a knob that does not matter, or no point to tell by.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return process.fit(self._knobs[seen], off - off.mean())

    def _predict(self, process, logs: "np.ndarray") -> tuple["np.ndarray", "np.ndarray"]:
        """Mean and deviation of each candidate's log time, given ``logs`` and the scales of ``process``."""
        import numpy as np
        from sklearn.gaussian_process import GaussianProcessRegressor

        if process is None:
            return self._base, np.ones(len(self._base))
        seen = np.isfinite(logs)
        off = logs[seen] - self._base[seen]
        fixed = GaussianProcessRegressor(process.kernel_, optimizer=None)  # type: ignore[arg-type]
        fixed.fit(self._knobs[seen], off - off.mean())
        mean, spread = fixed.predict(self._knobs, return_std=True)
        return mean + off.mean() + self._base, np.maximum(spread, _LEAST_SPREAD)

    def _chance(self, logs: "np.ndarray") -> "np.ndarray":
        """The probability of each candidate not to fail."""
        import numpy as np
        from sklearn.ensemble import ExtraTreesClassifier

        tried = ~np.isnan(logs)
        right = np.isfinite(logs[tried])
        if right.all():
            return np.ones(len(logs))
        if not right.any():
            # Nothing to tell them apart by: away from what failed.
            apart = np.abs(self._knobs[:, None] - self._knobs[tried][None]).sum(axis=2).min(axis=1)
            return apart / max(float(apart.max()), 1e-9)
        forest = ExtraTreesClassifier(_TREES, random_state=self._seed % 2**32)
        forest.fit(self._rows[tried], right)
        return np.asarray(forest.predict_proba(self._rows))[:, 1]

    def _base_line(self) -> "np.ndarray":
        """Log of time over best as the prior has it: the mean of near cases, and a forest over shapes and knobs."""
        import numpy as np

        past = nearest(self._space)[:_MOST_CASES]
        known = expected_ratios(self._space)
        if not known or self._space.signature is None:
            return np.zeros(len(self._digests))
        signatures = [*(case.signature for _, case in past), self._space.signature]
        *shapes, here = shape_rows(signatures, self._space.fields)
        rows, logs, shares = [], [], []
        for (far, case), shape in zip(past, shapes, strict=True):
            for digest, ratio in _here(case, self._place).items():
                rows.append(np.concatenate([self._rows[self._place[digest]], shape]))
                logs.append(math.log(ratio) if math.isfinite(ratio) else _FAILED_ELSEWHERE)
                shares.append(weight(far))
        if not rows:
            return np.zeros(len(self._digests))
        from sklearn.ensemble import ExtraTreesRegressor

        forest = ExtraTreesRegressor(_TREES, min_samples_leaf=2, random_state=self._seed % 2**32)
        forest.fit(np.array(rows), np.array(logs), sample_weight=np.array(shares))
        tiled = np.tile(here, (len(self._digests), 1))
        guessed = forest.predict(np.column_stack([self._rows, tiled]))
        mean = np.array([math.log(known[d]) if d in known else np.nan for d in self._digests])
        return np.where(np.isnan(mean), guessed, (mean + guessed) / 2)


def _here(case: PastCase, place: Mapping[str, int]) -> dict[str, float]:
    return {digest: ratio for digest, ratio in case.ratios.items() if digest in place}


def _standard(rows: "np.ndarray") -> "np.ndarray":
    """Columns of mean 0 and deviation 1; one that never varies becomes 0."""
    import numpy as np

    spread = rows.std(axis=0)
    return (rows - rows.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def _improvement(logs: "np.ndarray", mean: "np.ndarray", spread: "np.ndarray") -> "np.ndarray":
    """Expected improvement on the best of ``logs``; without any, the lowest mean is best."""
    import numpy as np
    from scipy.special import ndtr

    seen = logs[np.isfinite(logs)]
    if not len(seen):
        return np.exp(-mean)
    ahead = float(seen.min()) - mean
    scaled = ahead / spread
    density = np.exp(-(scaled**2) / 2) / math.sqrt(2 * math.pi)
    return ahead * ndtr(scaled) + spread * density
