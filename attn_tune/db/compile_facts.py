"""What compiling alone tells of a trial, to JSON and back: the numbers of a shortage, a prediction."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from attn_tune.schema import Prediction, Shortage, Trial, canonical_json


def facts_text(trial: Trial) -> str:
    """``""`` where there is nothing to tell."""
    facts: dict[str, Any] = {}
    if trial.shortage is not None:
        facts["shortage"] = asdict(trial.shortage)
    if trial.prediction is not None:
        facts["prediction"] = asdict(trial.prediction)
    return canonical_json(facts) if facts else ""


def read_facts(text: str | None) -> dict[str, Any]:
    """The ``shortage`` and ``prediction`` of a trial, as its arguments.

    Raises:
      TypeError, ValueError: it was not written by ``facts_text``.
    """
    facts: Mapping[str, Any] = json.loads(text) if text else {}
    return {
        "shortage": Shortage(**facts["shortage"]) if "shortage" in facts else None,
        "prediction": Prediction(**facts["prediction"]) if "prediction" in facts else None,
    }
