"""Write ``attn_tune/kernels/source_table.json``: what parsing the modules of this package's kernels yields.

    python tools/source_table.py

The first lookup of a process is faster by it (``attn_tune/kernels/source.py``). A test fails when it is stale.
"""

import json
from typing import Any

from attn_tune.kernels import source
from attn_tune.kernels.registry import kernels


def table() -> dict[str, dict[str, Any]]:
    """The entry of every module that a kernel of this package reaches."""
    own = [spec for spec in kernels().values() if not spec.entry_point]
    calls = {search.call.partition(":")[0] for spec in own for search in spec.searches.values()}
    return {name: source.table_entry(name) for name in sorted(source.reached_modules(calls))}


def text() -> str:
    """The table as its file has it: a line for each module, so that branches which change two of them can be merged."""
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in table().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    source.TABLE.write_text(text(), encoding="utf-8")
