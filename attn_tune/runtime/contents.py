"""The rows of one pack: proven one by one as lookups use them, and all together when somebody needs to know that.

A shard in the writer's spelling is left as the bytes it is until then: of hundreds of rows a lookup needs one or two.
Any other is parsed whole when the pack is opened, with the same checks.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attn_tune.runtime.locks import Lock
from attn_tune.runtime.raw_table import RawTable, raw_table
from attn_tune.runtime.rows import Row, digest_lines, row_from_json
from attn_tune.runtime.strict_json import parse_json
from attn_tune.runtime.tables import Rows, Table, parsed_table, plain_table
from attn_tune.schema.device import Device
from attn_tune.schema.environment import Environment
from attn_tune.schema.errors import IntegrityError

_lock = Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One file of rows; ``count`` is how many the manifest says it has."""

    path: str
    op: str
    direction: str
    count: int
    data: bytes


class Contents:
    """The rows of one pack.

    Attributes:
      tables: for lookups, a shard each. A row of a ``RawTable`` is proven when it is asked for.
      decision_digest, count: what the manifest claims; true of what ``prove`` has passed.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        *,
        devices: Mapping[str, Device],
        environments: Mapping[str, Environment],
        contracts: Mapping[str, int],
        decision_digest: str,
        count: int,
        where: str,
    ):
        self.decision_digest, self.count = decision_digest, count
        self._shards, self._where = tuple(shards), where
        self._devices, self._environments = devices, environments
        self._kernels = {tuple(kernel.split("/", 1)) for kernel in contracts}
        self._rows: Rows | None = None
        self._error: IntegrityError | None = None
        self.tables: tuple[RawTable | Table, ...] = tuple(
            raw_table(s.data, op=s.op, direction=s.direction, count=s.count)
            or _counted(_parsed(s, where), s, where)
            for s in self._shards
        )

    def check(self, row: Row) -> None:
        """Refuses a row that points to what the manifest does not hold.

        Raises:
          IntegrityError: it does.
        """
        if row.device not in self._devices:
            raise IntegrityError("it is of a device that the manifest does not describe")
        if row.env not in self._environments:
            raise IntegrityError("it is of an environment that the manifest does not describe")
        if (row.op, row.kernel) not in self._kernels:
            raise IntegrityError("it is of a kernel that the manifest does not list")

    def prove(self) -> Rows:
        """All rows, once everything that the pack claims of them is proven. The work is done once.

        Raises:
          IntegrityError: a row is broken or there twice, or they are not those that the manifest claims.
        """
        if self._rows is None:
            with _lock:
                if self._rows is None and self._error is None:
                    try:
                        self._rows = self._proven()
                    except IntegrityError as error:
                        self._error = error
        if self._rows is None:
            raise IntegrityError(str(self._error))
        return self._rows

    def _proven(self) -> Rows:
        tables = [
            table
            if isinstance(table, Table)
            else _counted(_proven(shard, self._where), shard, self._where)
            for table, shard in zip(self.tables, self._shards, strict=True)
        ]
        self._check_tables(tables)
        digest = digest_lines(line for table in tables for line in table.lines)
        if digest != self.decision_digest:
            raise IntegrityError(
                f"{self._where}: its rows do not have the decision digest it claims"
            )
        rows = Rows(tables)
        if self.count != len(rows):
            raise IntegrityError(
                f"{self._where}: it has {len(rows)} rows, the manifest says {self.count}"
            )
        return rows

    def _check_tables(self, tables: list[Table]) -> None:
        """What rows point to is there, and no problem is answered twice."""
        answered: dict[str, set[tuple[str, str, str]]] = defaultdict(set)
        ranked: dict[str, set[tuple[str, str, int]]] = defaultdict(set)
        for t in tables:
            kernels, ranks = answered[t.direction], ranked[t.direction]
            count = len(kernels) + len(t)
            kernels.update(zip(t.devices, t.signatures, t.kernels, strict=True))
            ranks.update(zip(t.devices, t.signatures, t.ranks, strict=True))
            if not set(t.devices) <= self._devices.keys():
                wrong = "a row is of a device that the manifest does not describe"
            elif not set(t.envs) <= self._environments.keys():
                wrong = "a row is of an environment that the manifest does not describe"
            elif not {(t.op, kernel) for kernel in t.kernels} <= self._kernels:
                wrong = "a row is of a kernel that the manifest does not list"
            elif len(kernels) != count or len(ranks) != count:
                wrong = f"{_twice(tables)} appears twice for one device"
            else:
                continue
            raise IntegrityError(f"{self._where}: {t.op}.{t.direction}: {wrong}")


def _proven(shard: Shard, where: str) -> Table:
    table = plain_table(shard.data, op=shard.op, direction=shard.direction)
    return table or _parsed(shard, where)


def _parsed(shard: Shard, where: str) -> Table:
    where = f"{where}: {shard.path}"
    items = parse_json(shard.data, where)
    if not isinstance(items, list):
        raise IntegrityError(f"{where} is not an array of the rows the manifest says")
    rows = []
    for number, item in enumerate(items, start=1):
        try:
            rows.append(row_from_json(item, op=shard.op, direction=shard.direction))
        except IntegrityError as error:
            raise IntegrityError(f"{where} row {number}: {error}") from None
    return parsed_table(rows, op=shard.op, direction=shard.direction)


def _counted(table: Table, shard: Shard, where: str) -> Table:
    if len(table) != shard.count:
        raise IntegrityError(f"{where}: {shard.path} is not an array of the rows the manifest says")
    return table


def _twice(tables: list[Table]) -> str:
    """The first row whose kernel or rank was there before."""
    seen: set[tuple[str | int, ...]] = set()
    for t in tables:
        for row in zip(t.devices, t.signatures, t.kernels, t.ranks, strict=True):
            keys = ((*row[:3], t.direction), (*row[:2], row[3], t.direction))
            if not seen.isdisjoint(keys):
                return f"the row {row[1]!r} of kernel {row[2]!r}"
            seen.update(keys)
    return "a row"
