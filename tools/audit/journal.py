"""Keep the answers of compilers in a file, one a line, so that an audit that was cut short can continue."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from attn_tune.schema.digest import digest_json
from attn_tune.schema.errors import UsageError
from attn_tune.schema.trial import Resources, Shortage, Status
from attn_tune.tuner.offline.compilers.protocol import Compiled
from attn_tune.tuner.protocol import ConfigRef
from tools.audit.claims import Compiler

_HEADER = {"format": "attn-tune compiler journal", "version": 1}


class Journal:
    """The answers in one file. Each is written as it comes, by one process at a time."""

    def __init__(self, path: str | Path):
        """Read the file, which is made with the first answer. A line that a crash cut off is left out.

        Raises:
          UsageError: the file is something else, or cannot be read.
        """
        self._path = Path(path)
        self._known: dict[str, Compiled] = {}
        try:
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the journal {path} cannot be read: {error}") from None
        header, *lines = text.splitlines() or [""]
        if text and _parsed(header) != _HEADER:
            raise UsageError(f"{path} is not a journal of an audit: name another file, or a new one")
        for line in lines:
            if (row := _parsed(line)) is not None:
                self._known[row["key"]] = _compiled(row)
        self._start = "" if text else f"{json.dumps(_HEADER)}\n"
        if text and not text.endswith("\n"):
            self._start = "\n"

    def wrap(self, compiler: Compiler, scope: Callable[[ConfigRef], object]) -> Compiler:
        """A compiler that asks ``compiler`` only for what its file lacks.

        Answers hold where ``scope(ref)``, plain data, is the same.
        """
        return _Recorded(self, compiler, scope)

    def find(self, key: str) -> Compiled | None:
        """The answer under ``key``, if there is one."""
        return self._known.get(key)

    def add(self, key: str, compiled: Compiled) -> None:
        """Write one answer, whole.

        Raises:
          OSError: it cannot be written.
        """
        self._known[key] = compiled
        row = {"key": key} | {n: getattr(compiled, n) for n in ("status", "reason", "compile_ms")}
        row["resources"] = asdict(compiled.resources)
        row["shortage"] = asdict(compiled.shortage) if compiled.shortage else None
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{self._start}{json.dumps(row)}\n")
        self._start = ""


class _Recorded:
    def __init__(self, log: Journal, compiler: Compiler, scope: Callable[[ConfigRef], object]):
        self._log, self._compiler, self._scope = log, compiler, scope

    def compile(self, refs: Sequence[ConfigRef], *, whole: bool = False) -> Iterator[tuple[int, Compiled]]:
        keys = [digest_json([self._scope(ref), whole, list(map(str, ref.key))]) for ref in refs]
        open_: list[int] = []
        for index, key in enumerate(keys):
            if (known := self._log.find(key)) is None:
                open_.append(index)
            else:
                yield index, known
        for place, compiled in self._compiler.compile([refs[i] for i in open_], whole=whole):
            self._log.add(keys[open_[place]], compiled)
            yield open_[place], compiled


def _parsed(line: str) -> Mapping[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _compiled(row: Mapping[str, Any]) -> Compiled:
    return Compiled(
        status=Status(row["status"]),
        reason=row["reason"],
        compile_ms=row["compile_ms"],
        resources=Resources(**row["resources"]),
        shortage=Shortage(**row["shortage"]) if row["shortage"] else None,
    )
