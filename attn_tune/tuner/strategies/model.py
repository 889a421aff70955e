"""A regression of log time on configs and shapes: forests of scikit-learn, the only part that needs it."""

import importlib.util
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from attn_tune.schema.digest import digest_text
from attn_tune.schema.errors import UsageError
from attn_tune.tuner.strategies.features import config_rows, shape_rows
from attn_tune.tuner.strategies.nearness import nearest, weight
from attn_tune.tuner.strategies.portfolio import expected_ratios
from attn_tune.tuner.strategies.space import Space

if TYPE_CHECKING:
    import numpy as np

_TREES = 100
_FAILED_ELSEWHERE = math.log(4.0)
_LEAST_SPREAD = 0.01


def require_scikit_learn() -> None:
    """Says how to get what the model needs.

    Raises:
      UsageError: scikit-learn is not installed.
    """
    if importlib.util.find_spec("sklearn") is None:
        raise UsageError(
            "the strategy 'surrogate' needs scikit-learn, which is not installed: pip install 'attn-tune[search]', "
            "or choose --strategy portfolio"
        )


class TimeModel:
    """Predicts the candidates of one space: first from the prior, then ever more from their own times.

    What the prior says is the base line, and what was seen here corrects it; without a prior the base line is flat.
    A second forest learns which candidates fail.
    """

    def __init__(self, space: Space):
        """Reads the prior of ``space``.

        Raises:
          UsageError: scikit-learn is not installed.
        """
        require_scikit_learn()
        self._space = space
        self._seed = int(digest_text(space.seed)[-8:], 16)
        self._place = {digest: i for i, digest in enumerate(space.by_digest)}
        self._rows = config_rows(list(space.candidates))
        self._base = self._base_line()

    def expected_gain(self, times: Mapping[str, float]) -> "np.ndarray":
        """Expected improvement on the best of ``times``, in log time, times the chance to be right; one a candidate.

        The formula is that of Jones, Schonlau and Welch (1998), with the spread of the trees as deviation.
        """
        import numpy as np
        from scipy.stats import norm

        places = np.array([self._place[d] for d in times], dtype=int)
        logs = np.log(np.array(list(times.values()), dtype=float))
        right = np.isfinite(logs)
        if not right.any():
            return self._chance(places, right) * np.exp(-self._base)
        mean, spread = self._predict(places[right], logs[right])
        ahead = float(logs[right].min()) - mean
        scaled = ahead / spread
        gain = ahead * norm.cdf(scaled) + spread * norm.pdf(scaled)
        return gain * self._chance(places, right)

    def _predict(self, places: "np.ndarray", logs: "np.ndarray") -> tuple["np.ndarray", ...]:
        import numpy as np
        from sklearn.ensemble import ExtraTreesRegressor

        rows = np.column_stack([self._rows, self._base])
        forest = ExtraTreesRegressor(_TREES, min_samples_leaf=1, random_state=self._seed)
        forest.fit(rows[places], logs - self._base[places])
        each = np.stack([tree.predict(rows) for tree in forest.estimators_])
        return each.mean(axis=0) + self._base, np.maximum(each.std(axis=0), _LEAST_SPREAD)

    def _chance(self, places: "np.ndarray", right: "np.ndarray") -> "np.ndarray":
        """How likely each candidate is to be right."""
        import numpy as np
        from sklearn.ensemble import ExtraTreesClassifier

        if right.all() or not len(right):
            return np.ones(len(self._rows))
        if not right.any():
            # Nothing to tell them apart by: away from what failed.
            far = np.abs(self._rows[:, None] - self._rows[None, places]).sum(axis=2).min(axis=1)
            return far / max(float(far.max()), 1.0)
        forest = ExtraTreesClassifier(_TREES, min_samples_leaf=1, random_state=self._seed)
        forest.fit(self._rows[places], right)
        return np.asarray(forest.predict_proba(self._rows))[:, 1]

    def _base_line(self) -> "np.ndarray":
        """Log of time over best, as the prior has it: the near cases' mean, and a forest over shapes and knobs."""
        import numpy as np
        from sklearn.ensemble import ExtraTreesRegressor

        past = nearest(self._space)
        known = expected_ratios(self._space)
        if not known:
            return np.zeros(len(self._rows))
        mean = np.full(len(self._rows), np.nan)
        mean[[self._place[d] for d in known]] = np.log(list(known.values()))
        shapes = shape_rows([case.signature for _, case in past], self._space.fields)
        rows, logs, shares = [], [], []
        for (far, case), shape in zip(past, shapes, strict=True):
            for digest, ratio in case.ratios.items():
                if digest in self._place:
                    rows.append(np.concatenate([self._rows[self._place[digest]], shape]))
                    logs.append(math.log(ratio) if math.isfinite(ratio) else _FAILED_ELSEWHERE)
                    shares.append(weight(far))
        forest = ExtraTreesRegressor(_TREES, min_samples_leaf=2, random_state=self._seed)
        forest.fit(np.array(rows), np.array(logs), sample_weight=np.array(shares))
        here = self._shape_here()
        whole = np.column_stack([self._rows, np.tile(here, (len(self._rows), 1))])
        guessed = forest.predict(whole)
        return np.where(np.isnan(mean), guessed, (mean + guessed) / 2)

    def _shape_here(self) -> "np.ndarray":
        import numpy as np

        signatures = [case.signature for _, case in nearest(self._space)]
        if self._space.signature is None:
            return np.zeros(shape_rows(signatures, self._space.fields).shape[1])
        return shape_rows([*signatures, self._space.signature], self._space.fields)[-1]


def spread_out(
    rows: "np.ndarray", start: Sequence[int], among: Sequence[int], count: int
) -> list[int]:
    """``count`` of ``among``, each the farthest from ``start`` and those before it."""
    import numpy as np

    chosen: list[int] = []
    among = list(among)
    while among and len(chosen) < count:
        held = rows[[*start, *chosen]]
        far = np.abs(rows[among][:, None] - held[None]).sum(axis=2).min(axis=1)
        chosen.append(among.pop(int(far.argmax())))
    return chosen
