"""Metadata by which Datasette shows a lab database: what tables and columns hold, facets, and the questions."""

from typing import Any

from attn_tune.db.described import relations
from attn_tune.db.questions import QUESTIONS

# Columns with few values, by table or view; counting the samples of a large lab would take too long.
_FACETS = {
    "winners": ("op", "kernel", "direction", "device", "rule"),
    "failures": ("kernel", "direction", "status", "device"),
    "trial": ("op", "kernel", "direction", "device", "stage", "status"),
    "decision": ("op", "kernel", "direction", "device", "rank", "rule"),
    "run": ("status", "host"),
}


def datasette_metadata(name: str) -> dict[str, Any]:
    """The metadata of the database that Datasette calls ``name``: the name of its file without the ending."""
    tables = {
        relation.name: {
            "description": relation.about,
            "columns": dict(relation.columns),
            **({"facets": list(_FACETS[relation.name])} if relation.name in _FACETS else {}),
        }
        for relation in relations()
    }
    tables["trial"]["sort_desc"] = "id"
    queries = {
        key: {"title": one.title, "description": f"{one.note}.", "sql": one.sql} for key, one in QUESTIONS.items()
    }
    return {
        "title": "Lab database of attn-tune",
        "description": "Trials of attention kernels, the decisions that follow from them, and five questions.",
        "databases": {name: {"tables": tables, "queries": queries}},
    }
